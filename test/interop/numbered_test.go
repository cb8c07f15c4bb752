// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/test/expect"
)

const (
	numberedFlowCount = 4
	trainDatagrams    = 16 // of each flow per round
	numberedRounds    = 16
	ect0              = 2 // ECN-capable: a receive queue that stands on a slow machine marks packets and drops none (RFC 3168)
)

// numberedFlows are UDP flows of numbered datagrams between two tunnels. The datagrams of a flow have one size, by which their
// messages are known on the network.
type numberedFlows struct {
	from, to *tunnel
	network  *impairedNetwork
	senders  []*net.UDPConn
	sent     int // datagrams of each flow

	mu       sync.Mutex
	received [numberedFlowCount][]uint32
	corrupt  error
}

// numberedSize is the payload size of a flow.
func numberedSize(flow int) int { return 600 + 64*flow }

// numberedMessage is the length of the message that carries a datagram of a flow.
func numberedMessage(flow int) int { return (20+8+numberedSize(flow)+15)&^15 + wire.DataOverhead }

func numberedDatagram(flow int, number uint32) []byte {
	b := pattern(numberedSize(flow), uint64(number))
	binary.BigEndian.PutUint32(b, number)
	return b
}

func newNumberedFlows(t *testing.T, n *impairedNetwork, from, to *tunnel) *numberedFlows {
	t.Helper()
	f := &numberedFlows{from: from, to: to, network: n}
	sink := listenUDP(t, to.host, sinkPort)
	expect.NoError(t, setOption(sink, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20))
	for i := range numberedFlowCount {
		c, err := dialUDP(from.host, netip.AddrPortFrom(to.inner(false), sinkPort))
		expect.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		expect.NoError(t, setSegment(c, numberedSize(i)))
		expect.NoError(t, setOption(c, unix.IPPROTO_IP, unix.IP_TOS, ect0))
		f.senders = append(f.senders, c)
	}
	go f.receive(sink)
	return f
}

// receive records the numbers of the datagrams that arrive, until the socket is closed.
func (f *numberedFlows) receive(sink *net.UDPConn) {
	b := make([]byte, 2048)
	for {
		n, err := sink.Read(b)
		if err != nil {
			return
		}
		f.record(b[:n])
	}
}

func (f *numberedFlows) record(b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	flow := (len(b) - numberedSize(0)) / (numberedSize(1) - numberedSize(0))
	if len(b) < numberedSize(0) || flow >= numberedFlowCount || len(b) != numberedSize(flow) {
		f.corrupt = fmt.Errorf("received a datagram of %d bytes", len(b))
		return
	}
	number := binary.BigEndian.Uint32(b)
	if !bytes.Equal(b, numberedDatagram(flow, number)) {
		f.corrupt = fmt.Errorf("datagram %d of flow %d differs", number, flow)
	}
	f.received[flow] = append(f.received[flow], number)
}

// send sends a train of each flow per round, and waits until each datagram has arrived or was dropped by the network.
func (f *numberedFlows) send(t *testing.T) {
	t.Helper()
	for range numberedRounds {
		for flow, c := range f.senders {
			var train []byte
			for i := range trainDatagrams {
				train = append(train, numberedDatagram(flow, uint32(f.sent+i))...)
			}
			_, err := c.Write(train)
			expect.NoError(t, err)
		}
		f.sent += trainDatagrams
		expect.EventuallyNoError(t, fmt.Sprintf("%s to receive the datagrams of %s", f.to, f.from), f.roundArrived)
	}
}

func (f *numberedFlows) roundArrived() error {
	drops, err := f.network.drops(f.to.host)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	arrived := 0
	for _, numbers := range f.received {
		arrived += len(numbers)
	}
	if arrived+drops < numberedFlowCount*f.sent {
		return fmt.Errorf("%d of %d datagrams arrived, and the network dropped %d packets", arrived, numberedFlowCount*f.sent, drops)
	}
	return f.corrupt
}

// wantArrivals asserts that the datagrams of each flow left in the order of their counters, and that the peer received exactly
// those that the network passed on, in the order in which it passed them on.
func (f *numberedFlows) wantArrivals(t *testing.T) {
	t.Helper()
	expect.EventuallyNoError(t, fmt.Sprintf("%s to receive all messages of %s that the network passes on", f.to, f.from), func() error {
		sent, arrived, err := f.network.passed(f.from.host, f.to.host)
		if err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		for flow, received := range f.received {
			if err := compareArrivals(flow, f.sent, received, sent, arrived); err != nil {
				return err
			}
		}
		return f.corrupt
	})
}

// compareArrivals compares the datagrams received of one flow with the captured messages.
func compareArrivals(flow, datagrams int, received []uint32, sent, arrived []wireMessage) error {
	sent, arrived = messagesOf(flow, sent), messagesOf(flow, arrived)
	if len(sent) != datagrams {
		return fmt.Errorf("flow %d: %d messages were sent for %d datagrams", flow, len(sent), datagrams)
	}
	numbers, err := numberMessages(sent)
	if err != nil {
		return fmt.Errorf("flow %d: %w", flow, err)
	}
	var want []uint32
	for _, m := range arrived {
		want = append(want, numbers[m.header])
	}
	if !slices.Equal(received, want) {
		return fmt.Errorf("flow %d: received %d datagrams, want %d: got %v, want %v", flow, len(received), len(want), received, want)
	}
	return nil
}

// messagesOf returns the messages that carry the datagrams of a flow.
func messagesOf(flow int, all []wireMessage) (out []wireMessage) {
	for _, m := range all {
		if m.isData() && m.length == numberedMessage(flow) {
			out = append(out, m)
		}
	}
	return out
}

// numberMessages returns the numbers of a flow's datagrams by the headers of the messages that carry them. A flow leaves in order.
func numberMessages(sent []wireMessage) (map[dataHeader]uint32, error) {
	numbers := map[dataHeader]uint32{}
	for i, m := range sent {
		if i > 0 && m.receiver() == sent[i-1].receiver() && m.counter() <= sent[i-1].counter() {
			return nil, fmt.Errorf("counter %d was sent after counter %d", m.counter(), sent[i-1].counter())
		}
		numbers[m.header] = uint32(i)
	}
	return numbers, nil
}

// reordered returns how many datagrams arrived after a later one of their flow.
func (f *numberedFlows) reordered() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, numbers := range f.received {
		next := uint32(0)
		for _, number := range numbers {
			if number < next {
				n++
			}
			next = max(next, number+1)
		}
	}
	return n
}
