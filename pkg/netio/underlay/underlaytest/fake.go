// SPDX-License-Identifier: Apache-2.0

package underlaytest

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// fakeDepth is the number of elements that wait for a lane of a Fake. Further ones are lost, as with a full socket
// buffer.
const fakeDepth = 1024

// Verdict is the decision of a Filter about a datagram.
type Verdict int

// Verdicts.
const (
	Deliver   Verdict = iota
	Drop              // lose it
	Duplicate         // deliver it twice
	Delay             // deliver it after the next datagram to the same lane
)

// Filter decides about each datagram of a Network. It may change the payload in place. The senders' goroutines call it
// concurrently.
type Filter func(from, to netip.AddrPort, datagram []byte) Verdict

// Routed is one datagram of a Network with a Router.
type Routed struct {
	From, To netip.AddrPort
	Lane     int // of the sender
	ECN      packet.ECN
	Payload  []byte
}

// Router takes each datagram of a Network. It passes datagrams that arrive to Network.Deliver, at
// any time, perhaps with other addresses. Payload is valid during the call only. The senders'
// goroutines call it concurrently.
type Router func(Routed)

// Network is an in-memory network of Fakes, for tests. Datagrams to an address without a Fake are lost without an
// error, as on a real network.
type Network struct {
	filter Filter
	router Router // nil: everything arrives at once
	mu     sync.RWMutex
	ports  map[netip.AddrPort]*Fake // includes sources
}

// NewNetwork returns a network without ports. With a nil filter, everything is delivered and runs stay in one piece. A
// filter sees datagrams, so everything arrives as single datagrams.
func NewNetwork(filter Filter) *Network {
	return &Network{filter: filter, ports: make(map[netip.AddrPort]*Fake)}
}

// NewRoutedNetwork returns a network without ports on which a Router decides what arrives, where and when.
func NewRoutedNetwork(router Router) *Network {
	return &Network{router: router, ports: make(map[netip.AddrPort]*Fake)}
}

// Deliver passes a datagram to the port at d.To. It reports whether there is one.
func (n *Network) Deliver(d Routed) bool {
	target := n.find(d.To)
	if target == nil {
		return false
	}
	from := underlay.Endpoint{Dst: d.From, Src: d.To.Addr()}
	target.laneOf(d.From, d.To.Port(), d.Lane).take(fakeElement{from: from, ecn: d.ECN}, d.Payload)
	return true
}

// Open adds a port with an IPv4 address, an IPv6 address and a UDP port. Datagrams from lane i of a sender reach lane i
// modulo lanes, unless a Selection decides otherwise. The address and port are free again after Close. If they are
// taken, the error is EADDRINUSE.
func (n *Network) Open(v4, v6 netip.Addr, port uint16, lanes int) (*Fake, error) {
	f := &Fake{
		net: n, v4: netip.AddrPortFrom(v4, port), v6: netip.AddrPortFrom(v6, port), sources: underlay.NewSources(port, 0),
	}
	for i := range lanes {
		f.lanes = append(f.lanes, newFakeLane(f, i))
	}
	f.secondary = newFakeLane(f, 0)
	if err := n.bind(f, port); err != nil {
		return nil, err
	}
	return f, nil
}

// bind assigns a port at both addresses of f to f.
func (n *Network) bind(f *Fake, port uint16) error {
	v4, v6 := f.at(port, false), f.at(port, true)
	n.mu.Lock()
	defer n.mu.Unlock()
	_, taken4 := n.ports[v4]
	_, taken6 := n.ports[v6]
	if taken4 || taken6 {
		return syscall.EADDRINUSE
	}
	n.ports[v4], n.ports[v6] = f, f
	return nil
}

func (n *Network) remove(f *Fake) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range f.sources.Len() {
		delete(n.ports, f.at(f.sources.Port(i), false))
		delete(n.ports, f.at(f.sources.Port(i), true))
	}
}

func (n *Network) find(to netip.AddrPort) *Fake {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.ports[to]
}

// Pipe returns two ports with the given number of lanes, alone on a network without loss.
func Pipe(lanes int) (a, b *Fake) {
	n := NewNetwork(nil)
	a, _ = n.Open(netip.AddrFrom4([4]byte{192, 0, 2, 1}), netip.MustParseAddr("2001:db8::1"), 51820, lanes)
	b, _ = n.Open(netip.AddrFrom4([4]byte{192, 0, 2, 2}), netip.MustParseAddr("2001:db8::2"), 51820, lanes)
	return a, b
}

// Fake is a Port of a Network.
type Fake struct {
	net       *Network
	v4, v6    netip.AddrPort
	lanes     []*fakeLane
	secondary *fakeLane
	sources   *underlay.Sources
	opening   sync.Mutex // held by OpenSource, and by Close to end it
	mark      atomic.Uint32
	underlay.Loops
	// dontFragment is the inverse of the value that SetFragments has set.
	dontFragment atomic.Bool
	closed       atomic.Bool
	kept         atomic.Bool
	// selection is the active one; nil if there is none.
	selection atomic.Pointer[underlay.Selection]
}

var (
	_ underlay.Port     = (*Fake)(nil)
	_ underlay.Selector = (*Fake)(nil)
	_ underlay.Counter  = (*Fake)(nil)
)

// Endpoint returns the endpoint of this port for others.
func (f *Fake) Endpoint(ipv6 bool) underlay.Endpoint {
	return underlay.Endpoint{Dst: f.at(f.LocalPort(), ipv6)}
}

// at returns the address of f with a port.
func (f *Fake) at(port uint16, ipv6 bool) netip.AddrPort {
	if ipv6 {
		return netip.AddrPortFrom(f.v6.Addr(), port)
	}
	return netip.AddrPortFrom(f.v4.Addr(), port)
}

// Lane implements Port.
func (f *Fake) Lane(i int) underlay.Lane { return f.lanes[i] }

// Lanes implements Port.
func (f *Fake) Lanes() int { return len(f.lanes) }

// LocalPort implements Port.
func (f *Fake) LocalPort() uint16 { return f.v4.Port() }

// OpenGroup implements Port. A fake has no send buffers.
func (f *Fake) OpenGroup(int) error { return nil }

// OpenSource implements Port.
func (f *Fake) OpenSource(port uint16) (source int, err error) {
	f.opening.Lock()
	defer f.opening.Unlock()
	if f.closed.Load() {
		return 0, net.ErrClosed
	}
	return f.sources.Add(port, func() (int, error) { return 0, f.net.bind(f, port) })
}

// SecondaryPorts implements Port.
func (f *Fake) SecondaryPorts() underlay.Receiver { return f.secondary }

// Source implements Port.
func (f *Fake) Source(source int) uint16 { return f.sources.Port(source) }

// SendTo implements Port. The datagram arrives at lane 0, unless a Selection decides otherwise.
func (f *Fake) SendTo(to *underlay.Endpoint, datagram []byte) error {
	run := underlay.Run{To: to, Parts: [][]byte{datagram}, SegSize: len(datagram), Segments: 1}
	return f.send(&run, 0)
}

// SendRun implements Port. The run arrives as with SendTo.
func (f *Fake) SendRun(r *underlay.Run) error { return f.send(r, 0) }

// SetMark implements Port.
func (f *Fake) SetMark(mark uint32) error {
	f.mark.Store(mark)
	return nil
}

// RoutesChanged implements Port.
func (f *Fake) RoutesChanged() {}

// Mark returns the mark that was set last.
func (f *Fake) Mark() uint32 { return f.mark.Load() }

// SetFragments implements Port. The network drops or passes datagrams of any size.
func (f *Fake) SetFragments(permitted bool) error {
	f.dontFragment.Store(!permitted)
	return nil
}

// SetSelection implements Selector. There is room for every plan.
func (f *Fake) SetSelection(s *underlay.Selection) (plans int, err error) {
	f.opening.Lock()
	defer f.opening.Unlock()
	if f.closed.Load() {
		return 0, net.ErrClosed
	}
	if !s.Selects() {
		f.selection.Store(nil)
		return 0, nil
	}
	c := s.Clone()
	f.selection.Store(&c)
	return len(c.Plans), nil
}

// Selection returns the active selection, or the zero Selection.
func (f *Fake) Selection() underlay.Selection {
	if s := f.selection.Load(); s != nil {
		return s.Clone()
	}
	return underlay.Selection{}
}

// Features implements Port. A Fake has all features but Filter.
func (f *Fake) Features() underlay.Features {
	return underlay.Features{GSO: true, GRO: true, IPv4: true, IPv6: true, Select: f.selection.Load() != nil, DontFragment: f.dontFragment.Load()}
}

// SocketDrops implements Counter. It counts elements beyond a lane's capacity, and elements that
// waited at Close.
func (f *Fake) SocketDrops(lanes []underlay.SocketDrops) (sources underlay.SocketDrops) {
	clear(lanes)
	for i := range min(len(lanes), len(f.lanes)) {
		n := f.lanes[i].lost.Load()
		lanes[i] = underlay.SocketDrops{Buffers: n, Datagrams: n}
	}
	n := f.secondary.lost.Load()
	return underlay.SocketDrops{Buffers: n, Datagrams: n}
}

// Keep lets a later Close leave what waits to a port that takes it over.
func (f *Fake) Keep() { f.kept.Store(true) }

// TakeOver moves what waits in a port that has closed after Keep to f. Both have as many lanes.
func (f *Fake) TakeOver(kept *Fake) {
	for i, l := range f.receivers() {
		l.takeOver(kept.receivers()[i])
	}
}

// receivers are the lanes and the secondary ports.
func (f *Fake) receivers() []*fakeLane { return append(slices.Clip(f.lanes), f.secondary) }

// Close implements Port.
func (f *Fake) Close() error {
	f.opening.Lock()
	defer f.opening.Unlock()
	if f.closed.Swap(true) {
		return nil
	}
	f.net.remove(f)
	for _, l := range f.receivers() {
		l.close(f.kept.Load())
	}
	return nil
}

func (f *Fake) send(r *underlay.Run, lane int) error {
	if f.closed.Load() {
		return net.ErrClosed
	}
	if err := r.Check(); err != nil {
		return err
	}
	if f.IsLoop(r.To) {
		return underlay.ErrLoop
	}
	port := f.sources.Port(r.Source)
	if port == 0 {
		return underlay.ErrBadRun
	}
	if f.net.router != nil {
		f.route(r, port, lane)
		return nil
	}
	target := f.net.find(r.To.Dst)
	if target == nil {
		return nil
	}
	from := underlay.Endpoint{Dst: f.at(port, r.To.Dst.Addr().Is6()), Src: r.To.Dst.Addr()}
	target.laneOf(from.Dst, r.To.Dst.Port(), lane).deliver(f.net.filter, &from, r)
	return nil
}

// route passes the datagrams of a run to the network's Router.
func (f *Fake) route(r *underlay.Run, port uint16, lane int) {
	from := f.at(port, r.To.Dst.Addr().Is6())
	for datagram := range r.Datagrams {
		f.net.router(Routed{From: from, To: r.To.Dst, Lane: lane, ECN: r.ECN, Payload: datagram})
	}
}

// laneOf returns the lane at which a datagram arrives that lane i of a Fake sends from an address to a port.
func (f *Fake) laneOf(from netip.AddrPort, port uint16, i int) *fakeLane {
	if port != f.LocalPort() {
		return f.secondary
	}
	if s := f.selection.Load(); s != nil {
		if lane, ok := s.Lane(from, len(f.lanes)); ok {
			return f.lanes[lane]
		}
	}
	return f.lanes[i%len(f.lanes)]
}
