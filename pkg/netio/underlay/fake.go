// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
)

// fakeDepth is how many elements wait for a lane of a Fake before further ones are lost, as in a full socket buffer.
const fakeDepth = 1024

// Verdict is what a Filter decides for a datagram on its way.
type Verdict int

// The verdicts of a Filter.
const (
	Deliver   Verdict = iota
	Drop              // lose it
	Duplicate         // deliver it twice
	Delay             // deliver it after the next datagram to the same lane
)

// Filter decides over each datagram of a Network; the payload may be changed in place. It is called by the senders'
// goroutines, concurrently.
type Filter func(from, to netip.AddrPort, datagram []byte) Verdict

// Network is an in-memory network of Fakes, for tests. Datagrams to where no Fake is are lost without an error, as on a
// real one.
type Network struct {
	filter Filter
	mu     sync.RWMutex
	ports  map[netip.AddrPort]*Fake // sources are there too
}

// NewNetwork returns a network without ports. A nil filter delivers everything, and runs stay in one piece; a filter
// sees datagrams, so everything then arrives in single ones.
func NewNetwork(filter Filter) *Network {
	return &Network{filter: filter, ports: make(map[netip.AddrPort]*Fake)}
}

// Open adds a port with its own IPv4 address, IPv6 address and UDP port. What lane i of a sender sends reaches lane
// i modulo lanes, unless a Selection says otherwise. The address and port are free again after Close; a taken one is EADDRINUSE.
func (n *Network) Open(v4, v6 netip.Addr, port uint16, lanes int) (*Fake, error) {
	f := &Fake{
		net: n, v4: netip.AddrPortFrom(v4, port), v6: netip.AddrPortFrom(v6, port), sources: NewSources(port, 0),
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

// bind gives a port at both addresses of f to f.
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
	sources   *Sources
	opening   sync.Mutex // held by OpenSource, and by Close to end it
	mark      atomic.Uint32
	closed    atomic.Bool
	// selection is in force; nil: there is none.
	selection atomic.Pointer[Selection]
}

var (
	_ Port     = (*Fake)(nil)
	_ Selector = (*Fake)(nil)
	_ Counter  = (*Fake)(nil)
)

// Endpoint is how others reach this port.
func (f *Fake) Endpoint(ipv6 bool) Endpoint {
	return Endpoint{Dst: f.at(f.LocalPort(), ipv6)}
}

// at is a port at an address of f.
func (f *Fake) at(port uint16, ipv6 bool) netip.AddrPort {
	if ipv6 {
		return netip.AddrPortFrom(f.v6.Addr(), port)
	}
	return netip.AddrPortFrom(f.v4.Addr(), port)
}

// Lane implements Port.
func (f *Fake) Lane(i int) Lane { return f.lanes[i] }

// Lanes implements Port.
func (f *Fake) Lanes() int { return len(f.lanes) }

// LocalPort implements Port.
func (f *Fake) LocalPort() uint16 { return f.v4.Port() }

// OpenSource implements Port.
func (f *Fake) OpenSource(port uint16) (source int, err error) {
	f.opening.Lock()
	defer f.opening.Unlock()
	if f.closed.Load() {
		return 0, net.ErrClosed
	}
	return f.sources.Add(port, func() (int, error) { return 0, f.net.bind(f, port) })
}

// Strays implements Port.
func (f *Fake) SecondaryPorts() Receiver { return f.secondary }

// Source implements Port.
func (f *Fake) Source(source int) uint16 { return f.sources.Port(source) }

// SendTo implements Port; the datagram arrives at lane 0, unless a Selection says otherwise.
func (f *Fake) SendTo(to *Endpoint, datagram []byte) error {
	run := Run{To: to, Parts: [][]byte{datagram}, SegSize: len(datagram), Segments: 1}
	return f.send(&run, 0)
}

// SendRun implements Port; the run arrives as with SendTo.
func (f *Fake) SendRun(r *Run) error { return f.send(r, 0) }

// SetMark implements Port.
func (f *Fake) SetMark(mark uint32) error {
	f.mark.Store(mark)
	return nil
}

// Mark is the mark last set.
func (f *Fake) Mark() uint32 { return f.mark.Load() }

// SetSelection implements Selector. There is room for every plan.
func (f *Fake) SetSelection(s *Selection) (plans int, err error) {
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

// Selection is the one in force; the zero Selection if there is none.
func (f *Fake) Selection() Selection {
	if s := f.selection.Load(); s != nil {
		return s.Clone()
	}
	return Selection{}
}

// Features implements Port: a Fake does everything but filter.
func (f *Fake) Features() Features {
	return Features{GSO: true, GRO: true, IPv4: true, IPv6: true, Select: f.selection.Load() != nil}
}

// SocketDrops implements Counter: a lane has room for a number of elements.
func (f *Fake) SocketDrops(lanes []uint64) (sources uint64) {
	clear(lanes)
	for i := range min(len(lanes), len(f.lanes)) {
		lanes[i] = f.lanes[i].lost.Load()
	}
	return f.secondary.lost.Load()
}

// Close implements Port.
func (f *Fake) Close() error {
	f.opening.Lock()
	defer f.opening.Unlock()
	if f.closed.Swap(true) {
		return nil
	}
	f.net.remove(f)
	for _, l := range append(f.lanes, f.secondary) {
		l.close()
	}
	return nil
}

func (f *Fake) send(r *Run, lane int) error {
	if f.closed.Load() {
		return net.ErrClosed
	}
	if err := r.Check(); err != nil {
		return err
	}
	port := f.sources.Port(r.Source)
	if port == 0 {
		return ErrBadRun
	}
	target := f.net.find(r.To.Dst)
	if target == nil {
		return nil
	}
	from := Endpoint{Dst: f.at(port, r.To.Dst.Addr().Is6()), Src: r.To.Dst.Addr()}
	target.laneOf(from.Dst, r.To.Dst.Port(), lane).deliver(f.net.filter, &from, r)
	return nil
}

// laneOf returns where what lane i of somebody sends from there to a port arrives.
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
