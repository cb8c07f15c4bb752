// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// watch captures the encrypted packets of the left side as they leave a device, after all programs and qdiscs.
type watch struct {
	*lab
	capture *netlab.Capture

	mu       sync.Mutex
	sent     [flowCount]map[uint16]int // number of messages, by flow and source port
	last     [flowCount]uint64         // counter of the flow's last message, plus one
	overtook int
	mixed    map[uint16]int // trains of several flows, by source port
}

func (l *lab) watch(h *netlab.Host, device string) *watch {
	l.Helper()
	w := &watch{lab: l, mixed: map[uint16]int{}}
	for i := range w.sent {
		w.sent[i] = map[uint16]int{}
	}
	var err error
	w.capture, err = h.Capture(netlab.CaptureConfig{Device: device, Queues: queues, Handle: w.take})
	expect.NoError(l, err)
	l.Cleanup(func() { _ = w.capture.Close() })
	return w
}

func (w *watch) take(p netlab.Packet) {
	m, ok := parseMessage(p)
	if !p.Outgoing || !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	flow, n, ok := flowOf(m.length)
	if !ok {
		if m.length >= primes[0]*sizeUnit && m.length != probeSize { // else a keepalive or a hello
			w.mixed[m.port]++
		}
		return
	}
	w.sent[flow][m.port] += n
	if m.counter < w.last[flow] {
		w.overtook++
	}
	w.last[flow] = m.counter + 1
}

// message is a WireGuard data message, or a train whose first message is parsed.
type message struct {
	port    uint16 // source
	counter uint64
	length  int
}

const etherLen = 14

// probeSize is the size in bytes of the engine's probes of a path MTU that suffices for the tunnel's of 1420.
const probeSize = 32 + 1420

func parseMessage(p netlab.Packet) (m message, ok bool) {
	b := p.Data
	if len(b) < etherLen+20 {
		return m, false
	}
	at, next := 0, byte(0)
	switch binary.BigEndian.Uint16(b[12:]) {
	case unix.ETH_P_IP:
		at, next = etherLen+20, b[etherLen+9]
	case unix.ETH_P_IPV6:
		at, next = etherLen+40, b[etherLen+6]
	}
	if next != unix.IPPROTO_UDP || len(b) < at+8+16 || binary.LittleEndian.Uint32(b[at+8:]) != 4 {
		return m, false
	}
	return message{
		port: binary.BigEndian.Uint16(b[at:]), counter: binary.LittleEndian.Uint64(b[at+16:]), length: p.Len - at - 8,
	}, true
}

// outcome is the result of some rounds.
type outcome struct {
	ports     [flowCount][]uint16 // source ports of each flow
	overtook  int                 // messages sent after a later one of their flow
	reordered uint64              // datagrams that arrived out of order
	queues    []uint64            // packets by queue
	mixed     map[uint16]int      // trains of several flows, by source port
}

func (w *watch) end() (o outcome) {
	w.Helper()
	expect.NoError(w, w.capture.Stop())
	counts, err := w.capture.Queues()
	expect.NoError(w, err)
	if missed := w.capture.Stats().Missed; missed > 0 {
		w.Errorf("the capture missed %d packets", missed)
	}
	for _, c := range counts {
		o.queues = append(o.queues, c.Packets)
	}
	for i, ports := range w.sent {
		for p := range ports {
			o.ports[i] = append(o.ports[i], p)
		}
		slices.Sort(o.ports[i])
	}
	o.overtook, o.mixed = w.overtook, w.mixed
	return o
}

// busiestQueueShare is the load of the busiest queue as a multiple of the mean.
func (o outcome) busiestQueueShare() float64 {
	var sum uint64
	for _, n := range o.queues {
		sum += n
	}
	return float64(slices.Max(o.queues)) * float64(len(o.queues)) / float64(max(sum, 1))
}

// distinctPorts is the number of source ports of all flows together.
func (o outcome) distinctPorts() int {
	ports := slices.AppendSeq(slices.Concat(o.ports[:]...), maps.Keys(o.mixed))
	slices.Sort(ports)
	return len(slices.Compact(ports))
}

// allOnOnePort reports whether all flows left from the listen port.
func (o outcome) allOnOnePort() bool {
	return o.distinctPorts() == 1 && (len(o.mixed) > 0 || o.ports[0][0] == port) && (len(o.mixed) == 0 || o.mixed[port] > 0)
}

// flowsOnSeparatePorts reports whether each flow used one source port of its own.
func (o outcome) flowsOnSeparatePorts() bool {
	return o.movedFlows() == 0 && o.distinctPorts() == flowCount && len(o.mixed) == 0
}

// movedFlows returns the number of flows that used more than one source port.
func (o outcome) movedFlows() (flows int) {
	for _, p := range o.ports {
		if len(p) > 1 {
			flows++
		}
	}
	return flows
}

func (o outcome) String() string {
	return fmt.Sprintf("%d ports, busiest queue %.2f times the mean, %d flows on more than one port, reordered: %d sent, %d received",
		o.distinctPorts(), o.busiestQueueShare(), o.movedFlows(), o.overtook, o.reordered)
}

// send sends rounds of new flows, one after the other, and returns their outcome.
func (l *lab) send(rounds int) outcome {
	l.Helper()
	o, _ := l.sendFlows(l.watch(l.router, toRight), rounds, func() {})
	return o
}

// sendFlows is send with a capture. It calls between after each round.
func (l *lab) sendFlows(w *watch, rounds int, between func()) (outcome, *flows) {
	l.Helper()
	f := l.newFlows()
	defer f.close()
	for i := range rounds {
		if !f.round(patience) {
			l.Fatalf("in round %d, only %d of %d datagrams arrived", i, f.got.Load(), f.numbers*flowCount)
		}
		between()
	}
	o := w.end()
	o.reordered = f.reordered.Load()
	if n := f.corrupt.Load(); n > 0 {
		l.Errorf("%d datagrams are corrupt", n)
	}
	return o, f
}
