// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/test/expect"
)

// modes are the modes of a port on a veth.
var modes = []struct {
	name   string
	config Config
	udp    udp.Config
}{
	{"native", Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{}},
	{"native with checksums in software", Config{Binding: Binding{Mode: xsk.Copy}, NoChecksumOffload: true}, udp.Config{}},
	{"busy polling", Config{Binding: Binding{Mode: xsk.Copy}, BusyPoll: true}, udp.Config{}},
}

func TestPortsPassContract(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			underlaytest.RunContract(t, func(t *testing.T) underlaytest.Subject {
				p := newPair(t, 1)
				a, b := p.openRedirectAll(0, mode.config, mode.udp), p.openRedirectAll(1, mode.config, mode.udp)
				toB := func(ipv6 bool) underlay.Endpoint { return p.endpoint(1, b, ipv6) }
				p.awaitXDPBothWays(a, b)
				return underlaytest.Subject{A: a, B: b, ToB: toB}
			})
		})
	}
}

// TestSelectionAppliesToUDPSockets has no device, so everything uses the UDP sockets.
func TestSelectionAppliesToUDPSockets(t *testing.T) {
	underlaytest.RunSelectorContract(t, func(t *testing.T, lanes int) underlaytest.Subject {
		p := newPair(t, 1)
		u := p.openUDP(1, udp.Config{Lanes: lanes})
		p.devs[1] = "nowhere"
		b := p.open(1, u, newRedirectAll(t, u.LocalPort()), Config{})
		if st := b.Status(); st.Ready() != 0 || st.Err == nil || !errors.Is(st.Lanes[0].Err, xsk.ErrGone) {
			t.Errorf("got %+v", st)
		}
		toB := func(ipv6 bool) underlay.Endpoint { return p.endpoint(1, b, ipv6) }
		a := p.openUDP(0, udp.Config{})
		p.awaitUDPBothWays(a, b)
		return underlaytest.Subject{A: a, B: b, ToB: toB}
	})
}

// awaitUDPBothWays waits until UDP datagrams from a arrive at b over both families, and makes the neighbour entries
// permanent. A device that has just come up drops packets until the kernel has started its queue. It also drops the
// neighbour solicitations; after three seconds without an answer the kernel drops the waiting datagram. The contract
// sends each datagram only once.
func (p *pair) awaitUDPBothWays(a *polled, b *Port) {
	p.Helper()
	for _, ipv6 := range []bool{false, true} {
		to := p.endpoint(1, b, ipv6)
		p.probe(a, b, &to)
		p.setNeighbour(0, p.neighbour(0, to.Dst.Addr()), netlink.NUD_PERMANENT)
	}
}

// probe sends one datagram after the other until one arrives. It sends the next only when the one before has arrived or
// timed out, so that none is left over.
func (p *pair) probe(a *polled, b *Port, to *underlay.Endpoint) {
	p.Helper()
	const givenUp = 5 * time.Second
	rx := elements(1, 65535)
	var sent time.Time
	expect.Eventually(p.TB, "a datagram over a new cable", func() bool {
		if time.Since(sent) > givenUp {
			sent = time.Now()
			expect.NoError(p.TB, a.SendTo(to, message(2, 92)))
		}
		for i := range b.Lanes() {
			if b.Lane(i).TryRecv(rx) > 0 {
				return true
			}
		}
		return false
	})
}

// TestSingleElementReceivesAlternateBetweenSockets checks that steady traffic on one socket does not starve the other.
func TestSingleElementReceivesAlternateBetweenSockets(t *testing.T) {
	const each = 100
	p := newPair(t, 1)
	a, b := p.classify(0, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{NoGRO: true}), p.openKernelSocket(1)
	to := p.endpoint(0, a, false)
	for i := range 2 * each { // data of different sizes, which share no element, and handshakes
		_, err := b.WriteToUDPAddrPort(message(byte(4-3*(i%2)), 200+i), to.Dst)
		expect.NoError(t, err)
	}
	expect.Eventually(t, "all to be there", func() bool {
		counters, err := a.supervisor.config.Program.(*programs.Classify).Counters()
		expect.NoError(t, err)
		return counters.Events[programs.ClassifySocket] == each
	})
	var seen [2]int
	rx := elements(1, 65535)
	for got := range 2 * each {
		if a.Lane(0).TryRecv(rx) != 1 {
			t.Fatalf("nothing received after %d datagrams", got)
		}
		if seen[rx[0].Buf[0]&1]++; got == each && (seen[0] < each/20 || seen[1] < each/20) {
			t.Errorf("%d through AF_XDP and %d through UDP of the first %d datagrams", seen[0], seen[1], got+1)
		}
	}
}

// openRedirectAll opens a port whose program redirects all datagrams.
func (p *pair) openRedirectAll(end int, c Config, slow udp.Config) *Port {
	p.Helper()
	slow.Lanes = p.queue
	u := p.openUDP(end, slow)
	return p.open(end, u, newRedirectAll(p.TB, u.LocalPort()), c)
}

// awaitXDPBothWays waits until both ends reach each other through AF_XDP, over both families, and no datagram is left
// over. It makes the neighbour entries permanent. Then the supervisors have nothing to do, and allocate nothing during
// the measurement.
func (p *pair) awaitXDPBothWays(a, b *Port) {
	p.Helper()
	for _, ipv6 := range []bool{false, true} {
		toA, toB := p.endpoint(0, a, ipv6), p.endpoint(1, b, ipv6)
		awaitXDP(p.TB, a, &toB)
		awaitXDP(p.TB, b, &toA)
		for end, to := range []underlay.Endpoint{toB, toA} {
			p.setNeighbour(end, p.neighbour(end, to.Dst.Addr()), netlink.NUD_PERMANENT)
		}
	}
	stranger := underlay.Endpoint{Dst: netip.MustParseAddrPort("192.0.2.77:1")}
	for _, port := range []*Port{a, b} { // all earlier messages have been processed by now
		expect.Eventually(p.TB, "the supervisor to resolve the path", func() bool { return port.table.present(targetOf(&stranger)).reason != Unresolved })
		port.table.find(targetOf(&stranger)).used.Store(false)
	}
	rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
	for _, port := range []*Port{a, b} {
		for port.Lane(0).TryRecv(rx) > 0 {
		}
	}
}
