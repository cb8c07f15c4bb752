// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// Addresses of the simulated network. Hosts know only their inside address; others see the outside address, which changes when a host
// roams. Both are the same at first if flows must be spread: there is no spread through a NAT. Nobody who is at an address of strangers is a peer.
func (s *schedule) inside(n int) netip.Addr {
	if s.Spray || s.Calm {
		return outside(n, 0)
	}
	return netip.AddrFrom4([4]byte{192, 0, 2, byte(n)})
}

func outside(n, generation int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18, byte(generation), byte(n)})
}

func stranger(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(n)}), 4000)
}

const (
	attacker = 66  // a stranger that sends hostile datagrams
	silent   = 200 // a stranger that never answers
	port     = 51820
)

// simNetwork carries datagrams between hosts. Its lock comes after all of a device's.
type simNetwork struct {
	s       *schedule
	lan     *underlaytest.Network
	watch   *watch
	mu      sync.Mutex // guards all below, and watch
	access  []*access  // by host; 0 is unused
	links   map[[2]int]*link
	perfect bool                  // nothing is lost, duplicated or late any more
	replies []underlaytest.Routed // what hosts have sent to strangers since the last call of takeReplies
}

// access is where a host is connected.
type access struct {
	inside      netip.Addr
	nated       bool
	keepsPorts  bool // the NAT keeps source ports, but not the listen port
	uplinks     bool // what leaves from odd source ports has another address
	forges      bool // what leaves has an address at which the host receives nothing
	alive       bool
	generation  int                       // of the outside address
	out         map[uint16]netip.AddrPort // of a NAT, by inside port
	mappings    int                       // that the NAT has made
	pausedUntil time.Time                 // the host receives nothing until then
	captured    []transit                 // the last that arrived
	captureFrom time.Time                 // before that, the host may have refused what arrived
	firewall    firewall
}

// firewall drops what leaves from a host's source ports.
type firewall struct {
	until time.Time
	share uint16 // of the ports: all if it is 0, else those that are 0 modulo share
}

func (f *firewall) drops(from netip.AddrPort) bool {
	return from.Port() != port && time.Now().Before(f.until) && (f.share == 0 || from.Port()%f.share == 0)
}

// link is one direction between two hosts.
type link struct {
	queue     []transit            // by time of arrival
	last      map[uint16]time.Time // arrival of the last datagram of each path, if the link is ordered
	cutUntil  time.Time
	narrow    int // the largest datagram, 0 for any
	narrowTo  time.Time
	held      int // datagrams to delay
	holdFor   time.Duration
	sessions  map[uint32]uint64 // number of each session, by receiver index
	handshake map[wire.Type]uint64
}

// transit is one datagram in transit.
type transit struct {
	underlaytest.Routed
	src, dst int
	sent     time.Time
	due      time.Time
	copy     bool // a duplicate
}

func newNetwork(s *schedule, w *watch) *simNetwork {
	n := &simNetwork{s: s, watch: w, access: make([]*access, s.Hosts+1), links: map[[2]int]*link{}}
	n.lan = underlaytest.NewRoutedNetwork(n.route)
	for i := range n.access {
		n.access[i] = &access{inside: s.inside(i), nated: s.nated(i), out: map[uint16]netip.AddrPort{}}
	}
	return n
}

// link returns the link between two hosts. The caller holds mu.
func (n *simNetwork) link(src, dst int) *link {
	l := n.links[[2]int{src, dst}]
	if l == nil {
		l = &link{last: map[uint16]time.Time{}, sessions: map[uint32]uint64{}, handshake: map[wire.Type]uint64{}}
		n.links[[2]int{src, dst}] = l
	}
	return l
}

// route is the underlaytest.Router: it takes a datagram from a host.
func (n *simNetwork) route(d underlaytest.Routed) {
	n.mu.Lock()
	defer n.mu.Unlock()
	src := int(d.From.Addr().As4()[3])
	if !n.access[src].alive {
		return // the process is dead
	}
	d.From = n.access[src].translate(src, d.From)
	dst, known := n.hostAt(d.To)
	n.watch.transmit(src, dst, known, d.To, d.Payload)
	if !known {
		n.replies = append(n.replies, underlaytest.Routed{To: d.To, Payload: bytes.Clone(d.Payload)})
		return
	}
	d.Payload = bytes.Clone(d.Payload)
	l := n.link(src, dst)
	f := n.fate(l, src, dst, d.Payload)
	if n.access[src].firewall.drops(d.From) {
		f.copies = 0
	}
	if f.copies == 0 || f.delay > longDelay {
		n.watch.liveness.lost(src, dst, time.Time{})
	}
	f.delay += time.Duration(n.path(d.From)) * time.Millisecond
	for i := range f.copies {
		t := transit{Routed: d, src: src, dst: dst, sent: time.Now(), copy: i > 0}
		t.due = t.sent.Add(f.delay + time.Duration(i)*f.gap)
		n.enqueue(l, t)
	}
}

// path returns the path that datagrams from a port take: one of four, of which each is a millisecond longer than the one before. All take the first one
// unless flows are sprayed.
func (n *simNetwork) path(from netip.AddrPort) uint16 {
	if !n.s.Spray {
		return 0
	}
	return from.Port() % 4
}

// translate returns the outside address of a host's socket. A NAT makes a mapping.
func (a *access) translate(host int, from netip.AddrPort) netip.AddrPort {
	switch {
	case a.forges:
		return netip.AddrPortFrom(outside(host, a.generation+100), from.Port())
	case a.uplinks:
		return netip.AddrPortFrom(outside(host, a.generation+int(from.Port()%2)), from.Port())
	case !a.nated:
		return netip.AddrPortFrom(outside(host, a.generation), from.Port())
	}
	to, ok := a.out[from.Port()]
	if !ok {
		a.mappings++
		to = netip.AddrPortFrom(outside(host, a.generation), uint16(20000+a.mappings))
		if a.keepsPorts && from.Port() != port {
			to = netip.AddrPortFrom(to.Addr(), from.Port())
		}
		a.out[from.Port()] = to
	}
	return to
}

// hostAt returns the host that has, or had, an outside address.
func (n *simNetwork) hostAt(to netip.AddrPort) (host int, ok bool) {
	b := to.Addr().As4()
	return int(b[3]), b[0] == 198 && int(b[3]) < len(n.access)
}

// socketAt returns the inside address to which the outside address of a host leads now.
func (a *access) socketAt(host int, to netip.AddrPort) (socket netip.AddrPort, ok bool) {
	if !a.nated {
		here := to.Addr() == outside(host, a.generation) || a.uplinks && to.Addr() == outside(host, a.generation+1)
		return netip.AddrPortFrom(a.inside, to.Port()), here
	}
	for port, mapped := range a.out {
		if mapped == to {
			return netip.AddrPortFrom(a.inside, port), true
		}
	}
	return netip.AddrPort{}, false
}

// enqueue lets a datagram arrive when it is due. The caller holds mu.
func (n *simNetwork) enqueue(l *link, t transit) {
	path := n.path(t.From)
	if last := l.last[path]; n.s.Network.Ordered && t.due.Before(last) {
		t.due = last
	}
	l.last[path] = t.due
	at, _ := slices.BinarySearchFunc(l.queue, t, func(a, b transit) int {
		return cmp.Or(a.due.Compare(b.due), -1) // after those with the same time
	})
	l.queue = slices.Insert(l.queue, at, t)
	time.AfterFunc(max(time.Until(t.due), 1), func() { n.arrive(l) })
}

// arrive takes the first datagram of a link's queue if it is due. It is called for each datagram when it is due.
func (n *simNetwork) arrive(l *link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(l.queue) == 0 || l.queue[0].due.After(time.Now()) {
		return // the queue has changed since
	}
	t := l.queue[0]
	l.queue = slices.Delete(l.queue, 0, 1)
	a := n.access[t.dst]
	if time.Now().Before(a.pausedUntil) {
		t.due = a.pausedUntil
		n.enqueue(l, t)
		n.watch.liveness.lost(t.src, t.dst, t.due)
		return
	}
	socket, ok := a.socketAt(t.dst, t.To)
	if !ok || !n.deliver(t.dst, t.Routed, socket) {
		n.watch.liveness.lost(t.src, t.dst, time.Time{})
		return
	}
	n.watch.arrive(&t)
	n.capture(a, t)
}

// deliver passes a datagram to a socket of a host, and counts it. The caller holds mu.
func (n *simNetwork) deliver(dst int, d underlaytest.Routed, socket netip.AddrPort) bool {
	d.To = socket
	d.Lane = int(d.From.Port()) // as SO_REUSEPORT: by addresses and ports, which differ in the source port only
	if !n.access[dst].alive || !n.lan.Deliver(d) {
		return false
	}
	n.watch.count(dst, d.Payload)
	return true
}

// maxCaptured is the number of datagrams of one host that an attacker remembers.
const maxCaptured = 256

// capture remembers a datagram for later replay.
func (n *simNetwork) capture(a *access, t transit) {
	if time.Now().Before(a.captureFrom) {
		return
	}
	if len(a.captured) == maxCaptured {
		a.captured = a.captured[1:]
	}
	a.captured = append(a.captured, t)
}

// inject lets a hostile datagram arrive at a host now, from any address.
func (n *simNetwork) inject(host int, from netip.AddrPort, payload []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := underlaytest.Routed{From: from, Payload: payload}
	n.deliver(host, d, netip.AddrPortFrom(n.access[host].inside, port))
}

// takeReplies returns what hosts have sent to a stranger, and forgets what they have sent to all.
func (n *simNetwork) takeReplies(to netip.AddrPort) (replies [][]byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range n.replies {
		if d.To == to {
			replies = append(replies, d.Payload)
		}
	}
	n.replies = nil
	return replies
}

// change calls f with the network locked.
func (n *simNetwork) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// heal ends all disturbances, for the rest of the simulation. Held datagrams arrive after the hosts have settled: they may come from an
// address that a host had before, and move the endpoint back there.
func (n *simNetwork) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.perfect = true
	for _, a := range n.access {
		a.pausedUntil, a.firewall = time.Time{}, firewall{}
	}
	for _, l := range n.links {
		l.cutUntil, l.narrowTo, l.held = time.Time{}, time.Time{}, 0
		queue := l.queue
		l.queue, l.last = nil, map[uint16]time.Time{}
		for _, t := range queue {
			if late := time.Until(t.due) > 2*time.Second; late && !n.s.Network.Ordered {
				t.due = laterOf(t.due, time.Now().Add((settleSeconds+10)*time.Second))
			} else if late {
				t.due = time.Now()
			}
			n.enqueue(l, t)
		}
	}
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
