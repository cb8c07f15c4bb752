// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

const (
	streams = 8
	// sendBuffer bounds a stream's data in flight, so that no queue overflows. Without loss, every out-of-order segment was
	// reordered.
	sendBuffer  = 24 << 10
	streamBytes = 1 << 20
	// fewSegments is a twentieth of all segments. If a daemon's thread migrates between two sends, the packets may be reordered
	// in the kernel's per-processor backlogs, with or without spreading. Spreading by packet reorders half of all segments.
	fewSegments = streams * streamBytes / 1400 / 20
)

// transfer sends TCP streams from left to right and checks each byte. It returns the number of out-of-order segments.
func (l *lab) transfer(n int) (outOfOrder uint64) {
	l.Helper()
	before := l.outOfOrder()
	var ln *net.TCPListener
	expect.NoError(l, l.right.host.Do(func() (err error) {
		ln, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(l.right.inner.Addr(), 0)))
		return err
	}))
	defer ln.Close()
	results := make(chan error, 2*streams)
	for i := range streams {
		var out *net.TCPConn
		expect.NoError(l, l.left.host.Do(func() (err error) {
			out, err = net.DialTCP("tcp4", nil, ln.Addr().(*net.TCPAddr))
			return err
		}))
		defer out.Close()
		in, err := ln.AcceptTCP() // streams run one by one, so this is the right one
		expect.NoError(l, err)
		defer in.Close()
		data := bytes.Repeat([]byte{byte(i), 1, 2, 3, 5, 8, 13}, n/7)
		go func() { results <- sendStream(out, data) }()
		go func() { results <- receiveStream(in, data) }()
	}
	for range 2 * streams {
		expect.NoError(l, <-results)
	}
	return l.outOfOrder() - before
}

func sendStream(c *net.TCPConn, data []byte) error {
	if err := errors.Join(c.SetWriteBuffer(sendBuffer), c.SetDeadline(time.Now().Add(2*patience))); err != nil {
		return err
	}
	_, err := c.Write(data)
	return errors.Join(err, c.CloseWrite())
}

func receiveStream(c *net.TCPConn, data []byte) error {
	if err := c.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err == nil && !bytes.Equal(got, data) {
		err = fmt.Errorf("received %d bytes that differ from the %d bytes sent", len(got), len(data))
	}
	return err
}

// outOfOrder returns the number of TCP segments that both hosts queued out of order.
func (l *lab) outOfOrder() (n uint64) {
	l.Helper()
	for _, s := range l.both() {
		expect.NoError(l, s.host.Do(func() error {
			count, err := netstat("TcpExt:", "TCPOFOQueue")
			n += count
			return err
		}))
	}
	return n
}

// netstat reads a counter of the calling thread's namespace.
func netstat(group, name string) (uint64, error) {
	text, err := os.ReadFile("/proc/thread-self/net/netstat")
	if err != nil {
		return 0, err
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || fields[0] != group:
		case names == nil:
			names = fields
		default:
			for i, f := range names {
				if f == name && i < len(fields) {
					return strconv.ParseUint(fields[i], 10, 64)
				}
			}
		}
	}
	return 0, fmt.Errorf("counter %s%s not found", group, name)
}

// checkInOrder transfers until at most limit segments arrive out of order, with a few retries. The kernel's tunnel itself may
// rarely reorder packets when two processors send at the same time. Spreading by packet reorders each time.
func (l *lab) checkInOrder(what string, limit uint64) {
	l.Helper()
	var seen []uint64
	for range attempts {
		seen = append(seen, l.transfer(streamBytes))
		if seen[len(seen)-1] <= limit {
			break
		}
	}
	l.Logf("%s: TCP segments out of order: %v", what, seen)
	if seen[len(seen)-1] > limit {
		l.Errorf("%s: in all attempts, more than %d TCP segments were out of order: %v", what, limit, seen)
	}
}

// TestSpreadKeepsTCPSegmentsInOrder transfers TCP through a kernel tunnel with spreading off and on.
func TestSpreadKeepsTCPSegmentsInOrder(t *testing.T) {
	needKernel(t)
	l := newLab(t)
	l.connectHosts(false, true)
	l.startKernel()
	l.checkInOrder("off", 0)
	l.attachPlanned()
	l.checkInOrder("on", 0)
	for _, s := range l.both() {
		l.checkEndpoint(s)
	}
	l.checkNoErrors()
}
