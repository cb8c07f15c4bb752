// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// primes identify the flows: data messages of flow i are primes[i] times 16 bytes long. The length of a train of fewer than
// 17 messages then also identifies its flow.
var primes = []int{17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79}

const (
	flowCount = queues
	sizeUnit  = 16 // of WireGuard's padding
	perRound  = 8  // packets of each flow
)

// flowOf returns the flow of a data message, or a train of them, of n bytes.
func flowOf(n int) (flow, messages int, ok bool) {
	for i, p := range primes {
		if n%(p*sizeUnit) == 0 && n/(p*sizeUnit) <= 2*perRound {
			return i, n / (p * sizeUnit), true
		}
	}
	return 0, 0, false
}

// payloadLen is the payload length of flow i's datagrams: without the message's header and tag, and the IPv4 and UDP headers.
func payloadLen(flow int) int { return (primes[flow]-2)*sizeUnit - 28 }

// flows are UDP flows of equal rate from left to right.
type flows struct {
	*lab
	senders  []*net.UDPConn
	receiver *net.UDPConn
	numbers  uint64 // sent so far, of each flow
	slowest  time.Duration
	begun    time.Time // the last round

	arrived            chan struct{}
	got                atomic.Uint64
	reordered, corrupt atomic.Uint64
}

// newFlows opens the sockets of new flows.
func (l *lab) newFlows() *flows {
	l.Helper()
	f := &flows{lab: l, arrived: make(chan struct{}, 1)}
	expect.NoError(l, l.right.host.Do(func() (err error) {
		f.receiver, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(l.right.inner.Addr(), 0)))
		return errors.Join(err, growBuffer(f.receiver))
	}))
	to := f.receiver.LocalAddr().(*net.UDPAddr)
	expect.NoError(l, l.left.host.Do(func() error {
		for range flowCount {
			c, err := net.DialUDP("udp4", nil, to)
			if err != nil {
				return err
			}
			f.senders = append(f.senders, c)
		}
		return nil
	}))
	go f.receive()
	return f
}

func growBuffer(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	ctlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) })
	return errors.Join(err, ctlErr)
}

func (f *flows) close() {
	for _, c := range append(f.senders, f.receiver) {
		_ = c.Close()
	}
}

// receive checks the datagrams that arrive. A datagram is late if a later one of its flow arrived before it.
func (f *flows) receive() {
	var next [flowCount]uint64
	b := make([]byte, 2048)
	for {
		n, err := f.receiver.Read(b)
		if err != nil {
			return
		}
		flow, number, ok := parseDatagram(b[:n])
		switch {
		case !ok:
			f.corrupt.Add(1)
		case number < next[flow]:
			f.reordered.Add(1)
		default:
			next[flow] = number + 1
		}
		f.got.Add(1)
		select {
		case f.arrived <- struct{}{}:
		default:
		}
	}
}

func datagram(flow int, number uint64) []byte {
	b := make([]byte, payloadLen(flow))
	b[0] = byte(flow)
	binary.BigEndian.PutUint64(b[1:], number)
	for i := 9; i < len(b); i++ {
		b[i] = byte(i*7 + flow + int(number))
	}
	return b
}

func parseDatagram(b []byte) (flow int, number uint64, ok bool) {
	if len(b) < 9 || int(b[0]) >= flowCount {
		return 0, 0, false
	}
	flow, number = int(b[0]), binary.BigEndian.Uint64(b[1:])
	return flow, number, string(b) == string(datagram(flow, number))
}

// round sends some datagrams of each flow in turn. It waits until all have arrived, or none arrives within timeout.
func (f *flows) round(timeout time.Duration) (complete bool) {
	f.Helper()
	before, want := f.begun, f.got.Load()
	f.begun = time.Now()
	for range perRound {
		for i, c := range f.senders {
			_, err := c.Write(datagram(i, f.numbers))
			expect.NoError(f, err)
		}
		f.numbers++
		want += flowCount
	}
	defer func() {
		if !before.IsZero() {
			f.slowest = max(f.slowest, time.Since(before))
		}
	}()
	for f.got.Load() < want {
		select {
		case <-f.arrived:
		case <-time.After(timeout):
			return false
		}
	}
	return true
}
