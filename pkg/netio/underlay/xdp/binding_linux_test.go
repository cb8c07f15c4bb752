// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
)

// chooser is a Choose that a test has in hand.
type chooser struct {
	mu    sync.Mutex
	way   Binding
	asked atomic.Int32
}

func (c *chooser) choose() Binding {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked.Add(1)
	return c.way
}

func (c *chooser) set(w Binding) {
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
	c.set(Binding{Final: true})
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
		c.set(Binding{Device: p.devs[0], Mode: xsk.Copy, Program: program})
		port.Reconsider()
		await(t, "a socket", func() bool { st := port.Status(); return st.Attached && st.Ready() == 1 })
		express(t, port, &s.to)
		s.drain()
		s.expect(101+i, true)
		c.set(Binding{Final: i == 1})
		port.Reconsider()
		await(t, "none", func() bool { st := port.Status(); return !st.Attached && st.Ready() == 0 })
		s.expect(201+i, false)
		await(t, "the program's end", func() bool { return program.times.Load() == 1 })
	}
}

// leaver is a program that says when it is told to leave a queue alone.
type leaver struct {
	*everything
	left chan struct{}
	once sync.Once
}

func (l *leaver) RemoveSocket(queue int) error {
	err := l.everything.RemoveSocket(queue)
	l.once.Do(func() { close(l.left) })
	return err
}

// TestNothingIsLostOrOvertakenWhereWaysMeet: what nobody has received yet when the way changes comes before what comes by the next
// one.
func TestNothingIsLostOrOvertakenWhereWaysMeet(t *testing.T) {
	p := newPair(t, 1)
	u := p.openUDP(0, udp.Config{})
	var c chooser
	var port *Port
	must(t, p.hosts[0].Do(func() (err error) {
		port, err = Open(Config{UDP: u, Choose: c.choose})
		return err
	}))
	t.Cleanup(func() { must(t, port.Close()) })
	port.supervisor.drainTimeout = deadline // the keeper is at rest, and reads it when it is woken
	peer := p.stock(1)
	sent := 0
	send := func() {
		for range 5 {
			sent++
			_, err := peer.WriteToUDPAddrPort(message(4, 100+sent), netip.AddrPortFrom(addrs4[0].Addr(), port.LocalPort()))
			must(t, err)
		}
	}
	got := 0
	receive := func() {
		t.Helper()
		for got < sent {
			b, _ := recvOne(t, port.Lane(0))
			if got++; len(b) != 100+got {
				t.Fatalf("%d bytes, want %d", len(b), 100+got)
			}
		}
	}
	for range 3 {
		send()
		program := &leaver{everything: newEverything(t, u.LocalPort()), left: make(chan struct{})}
		c.set(Binding{Device: p.devs[0], Mode: xsk.Copy, Program: program})
		port.Reconsider()
		await(t, "a socket", func() bool { return lanesReady(port) == 1 })
		send()
		receive()
		send()
		c.set(Binding{})
		port.Reconsider()
		<-program.left
		send()
		receive()
		done := make(chan struct{})
		go func() { // who finds nothing more lets the keeper go on
			defer close(done)
			_, _ = port.Lane(0).Recv([]underlay.Datagrams{{Buf: make([]byte, 65535)}})
		}()
		await(t, "no socket", func() bool { return lanesReady(port) == 0 })
		sent, got = sent+1, got+1
		_, err := peer.WriteToUDPAddrPort(message(4, 100+sent), netip.AddrPortFrom(addrs4[0].Addr(), port.LocalPort()))
		must(t, err)
		<-done
	}
	if r := port.Status().Lanes[0].Received; r < 10 {
		t.Errorf("%d by AF_XDP", r)
	}
}

func lanesReady(p *Port) int {
	s := p.Status()
	return s.Ready()
}

func TestWhatBecameOfTheDeviceIsTold(t *testing.T) {
	p := newPair(t, 1)
	u := p.openUDP(0, udp.Config{})
	news := make(chan int, 100)
	p.open(0, u, newEverything(t, u.LocalPort()), Config{
		Binding: Binding{Mode: xsk.Copy}, Changed: func(ready int, _ error) { news <- ready },
	})
	s := &scene{pair: p}
	next := func(want int) {
		t.Helper()
		select {
		case got := <-news:
			if got != want {
				t.Fatalf("%d lanes, want %d", got, want)
			}
		case <-time.After(deadline):
			t.Fatal("nothing is told")
		}
	}
	next(1)
	s.link(0, netlink.LinkSetDown)
	next(0)
	s.link(0, netlink.LinkSetUp)
	next(1)
}

// TestAnotherProgramThatWorksAloneIsTold although nothing else is other.
func TestAnotherProgramThatWorksAloneIsTold(t *testing.T) {
	p := newPair(t, 1)
	u := p.openUDP(0, udp.Config{})
	var c chooser
	var alone [4]Binding // made before the port, whose cleanup is to be the first
	for i := range alone {
		alone[i] = Binding{Device: p.devs[0], NoSockets: true, Program: &closed{everything: newEverything(t, u.LocalPort())}}
	}
	c.set(alone[0])
	news := make(chan int, 100)
	var port *Port
	must(t, p.hosts[0].Do(func() (err error) {
		port, err = Open(Config{UDP: u, Choose: c.choose, Changed: func(ready int, _ error) { news <- ready }})
		return err
	}))
	t.Cleanup(func() { must(t, port.Close()) })
	for _, next := range alone[1:] {
		select {
		case <-news:
		case <-time.After(deadline):
			t.Fatal("nothing is told")
		}
		c.set(next)
		port.Reconsider()
	}
}

func listening(p *Port) bool {
	p.supervisor.mu.Lock()
	defer p.supervisor.mu.Unlock()
	return p.supervisor.report.listening
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
	c.set(Binding{Final: true})
	port.Reconsider()
	await(t, "silence", func() bool { return !listening(port) })
	asked = c.asked.Load()
	s.link(0, setMTU(1500))
	s.link(0, setMTU(1400))
	for i := range int32(2) { // when it is asked the second time, what the first came to is told
		port.Reconsider()
		await(t, "to be asked once", func() bool { return c.asked.Load() == asked+i+1 })
	}
	if listening(port) {
		t.Error("it listens again")
	}
}
