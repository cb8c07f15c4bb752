// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/xsk"
)

// chooser is a Choose that a test has in hand.
type chooser struct {
	mu    sync.Mutex
	way   Way
	asked atomic.Int32
}

func (c *chooser) choose() Way {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked.Add(1)
	return c.way
}

func (c *chooser) set(w Way) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.way = w
}

// closed counts how often its program was closed.
type closed struct {
	*everything
	times atomic.Int32
}

func (c *closed) Close() error {
	c.times.Add(1)
	return nil
}

func TestTheWayChangesAsChosenAndDatagramsGoOn(t *testing.T) {
	p := newPair(t, 1)
	u := p.openUDP(0, udp.Config{})
	var c chooser
	c.set(Way{Final: true})
	var port *Port
	must(t, p.hosts[0].Do(func() (err error) {
		port, err = Open(Config{UDP: u, Choose: c.choose})
		return err
	}))
	t.Cleanup(func() { must(t, port.Close()) })
	s := &scene{pair: p, port: port, peer: p.stock(1)}
	s.to = p.at(1, s.peer, false)
	s.expect(100, false)
	if st := port.Status(); st.Attached || st.Ready() != 0 || st.Why() == "" || listening(port) {
		t.Fatalf("without a device: %+v", st)
	}
	first, second := &closed{everything: newEverything(t, u.LocalPort())}, &closed{everything: newEverything(t, u.LocalPort())}
	for i, program := range []*closed{first, second} {
		c.set(Way{Device: p.devs[0], Mode: xsk.Copy, Program: program})
		port.Reconsider()
		await(t, "a socket", func() bool { st := port.Status(); return st.Attached && st.Ready() == 1 })
		express(t, port, &s.to)
		s.drain()
		s.expect(101+i, true)
		c.set(Way{Final: i == 1})
		port.Reconsider()
		await(t, "none", func() bool { st := port.Status(); return !st.Attached && st.Ready() == 0 })
		s.expect(201+i, false)
		await(t, "the program's end", func() bool { return program.times.Load() == 1 })
	}
}

func listening(p *Port) bool {
	p.keeper.mu.Lock()
	defer p.keeper.mu.Unlock()
	return p.keeper.report.listening
}

func setMTU(mtu int) func(netlink.Link) error {
	return func(l netlink.Link) error { return netlink.LinkSetMTU(l, mtu) }
}

// TestAChangeOfTheNetworkHasTheWayChosenAgain unless that is said to be of no use.
func TestAChangeOfTheNetworkHasTheWayChosenAgain(t *testing.T) {
	p := newPair(t, 1)
	u := p.openUDP(0, udp.Config{})
	var c chooser
	var port *Port
	must(t, p.hosts[0].Do(func() (err error) {
		port, err = Open(Config{UDP: u, Choose: c.choose})
		return err
	}))
	t.Cleanup(func() { must(t, port.Close()) })
	s := &scene{pair: p, port: port}
	asked := c.asked.Load()
	s.link(0, setMTU(1400))
	await(t, "to be asked", func() bool { return c.asked.Load() > asked })
	c.set(Way{Final: true})
	port.Reconsider()
	await(t, "silence", func() bool { return !listening(port) })
	asked = c.asked.Load()
	s.link(0, setMTU(1500))
	s.link(0, setMTU(1400))
	port.Reconsider()
	await(t, "to be asked once", func() bool { return c.asked.Load() == asked+1 })
}
