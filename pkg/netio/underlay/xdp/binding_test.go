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
	"github.com/ropewalk/ropewalk/test/expect"
)

// chooser is a Choose function whose result the test sets.
type chooser struct {
	mu      sync.Mutex
	binding Binding
	asked   atomic.Int32
}

func (c *chooser) choose() Binding {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked.Add(1)
	return c.binding
}

func (c *chooser) set(w Binding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.binding = w
}

// closeCounter counts the Close calls of its program.
type closeCounter struct {
	*redirectAll
	times atomic.Int32
}

func (c *closeCounter) Close() error {
	c.times.Add(1)
	return nil
}

func TestBindingChangesWithoutInterruptingTraffic(t *testing.T) {
	p := newPair(t, 1)
	u := p.openUDP(0, udp.Config{})
	var c chooser
	c.set(Binding{Final: true})
	var port *Port
	expect.NoError(t, p.hosts[0].Do(func() (err error) {
		port, err = Open(Config{UDP: u, Choose: c.choose})
		return err
	}))
	t.Cleanup(func() { expect.NoError(t, port.Close()) })
	s := &testNet{pair: p, port: port, peer: p.openKernelSocket(1)}
	s.to = p.kernelEndpoint(1, s.peer, false)
	s.expect(100, false)
	if st := port.Status(); st.Attached || st.Ready() != 0 || listening(port) {
		t.Fatalf("without a device: %+v", st)
	}
	first, second := &closeCounter{redirectAll: newRedirectAll(t, u.LocalPort())}, &closeCounter{redirectAll: newRedirectAll(t, u.LocalPort())}
	for i, program := range []*closeCounter{first, second} {
		c.set(Binding{Device: p.devs[0], Mode: xsk.Copy, Program: program})
		port.Reconsider()
		expect.Eventually(t, "a socket", func() bool { st := port.Status(); return st.Attached && st.Ready() == 1 })
		awaitXDP(t, port, &s.to)
		s.drain()
		s.expect(101+i, true)
		c.set(Binding{Final: i == 1})
		port.Reconsider()
		expect.Eventually(t, "none", func() bool { st := port.Status(); return !st.Attached && st.Ready() == 0 })
		s.expect(201+i, false)
		expect.Eventually(t, "the program's end", func() bool { return program.times.Load() == 1 })
	}
}

// removeRecorder is a program that signals RemoveSocket calls.
type removeRecorder struct {
	*redirectAll
	left chan struct{}
	once sync.Once
}

func (l *removeRecorder) RemoveSocket(queue int) error {
	err := l.redirectAll.RemoveSocket(queue)
	l.once.Do(func() { close(l.left) })
	return err
}

// TestBindingChangeKeepsOrderWithoutLoss changes the binding while datagrams wait. They must arrive before those of the
// next path.
func TestBindingChangeKeepsOrderWithoutLoss(t *testing.T) {
	p := newPair(t, 1)
	u := p.openUDP(0, udp.Config{})
	var c chooser
	var port *Port
	expect.NoError(t, p.hosts[0].Do(func() (err error) {
		port, err = Open(Config{UDP: u, Choose: c.choose})
		return err
	}))
	t.Cleanup(func() { expect.NoError(t, port.Close()) })
	port.supervisor.drainTimeout = deadline // the supervisor is idle, and reads it when it is woken
	peer := p.openKernelSocket(1)
	sent := 0
	send := func() {
		for range 5 {
			sent++
			_, err := peer.WriteToUDPAddrPort(message(4, 100+sent), netip.AddrPortFrom(addrs4[0].Addr(), port.LocalPort()))
			expect.NoError(t, err)
		}
	}
	got := 0
	receive := func() {
		t.Helper()
		for got < sent {
			b, _ := recvOne(t, port.Lane(0))
			if got++; len(b) != 100+got {
				t.Fatalf("got %d bytes, want %d", len(b), 100+got)
			}
		}
	}
	for range 3 {
		send()
		program := &removeRecorder{redirectAll: newRedirectAll(t, u.LocalPort()), left: make(chan struct{})}
		c.set(Binding{Device: p.devs[0], Mode: xsk.Copy, Program: program})
		port.Reconsider()
		expect.Eventually(t, "a socket", func() bool { return lanesReady(port) == 1 })
		send()
		receive()
		send()
		c.set(Binding{})
		port.Reconsider()
		<-program.left
		send()
		receive()
		done := make(chan struct{})
		go func() { // an empty receive lets the supervisor continue
			defer close(done)
			_, _ = port.Lane(0).Recv([]underlay.Datagrams{{Buf: make([]byte, 65535)}})
		}()
		expect.Eventually(t, "no socket", func() bool { return lanesReady(port) == 0 })
		sent, got = sent+1, got+1
		_, err := peer.WriteToUDPAddrPort(message(4, 100+sent), netip.AddrPortFrom(addrs4[0].Addr(), port.LocalPort()))
		expect.NoError(t, err)
		<-done
	}
	if r := port.Status().Lanes[0].Received; r < 10 {
		t.Errorf("%d datagrams received through AF_XDP", r)
	}
}

func lanesReady(p *Port) int {
	s := p.Status()
	return s.Ready()
}

func TestChangedReportsDeviceOutcome(t *testing.T) {
	p := newPair(t, 1)
	u := p.openUDP(0, udp.Config{})
	changes := make(chan int, 100)
	p.open(0, u, newRedirectAll(t, u.LocalPort()), Config{
		Binding: Binding{Mode: xsk.Copy}, Changed: func(ready int, _ error) { changes <- ready },
	})
	s := &testNet{pair: p}
	next := func(want int) {
		t.Helper()
		select {
		case got := <-changes:
			if got != want {
				t.Fatalf("got %d lanes, want %d", got, want)
			}
		case <-time.After(deadline):
			t.Fatal("Config.Changed was not called")
		}
	}
	next(1)
	s.link(0, netlink.LinkSetDown)
	next(0)
	s.link(0, netlink.LinkSetUp)
	next(1)
}

func listening(p *Port) bool {
	p.supervisor.mu.Lock()
	defer p.supervisor.mu.Unlock()
	return p.supervisor.report.listening
}

func setMTU(mtu int) func(netlink.Link) error {
	return func(l netlink.Link) error { return netlink.LinkSetMTU(l, mtu) }
}

// TestNetworkChangeTriggersChoose also checks that a final binding stops the watcher.
func TestNetworkChangeTriggersChoose(t *testing.T) {
	p := newPair(t, 1)
	u := p.openUDP(0, udp.Config{})
	var c chooser
	var port *Port
	expect.NoError(t, p.hosts[0].Do(func() (err error) {
		port, err = Open(Config{UDP: u, Choose: c.choose})
		return err
	}))
	t.Cleanup(func() { expect.NoError(t, port.Close()) })
	s := &testNet{pair: p, port: port}
	asked := c.asked.Load()
	s.link(0, setMTU(1400))
	expect.Eventually(t, "a call of Choose", func() bool { return c.asked.Load() > asked })
	c.set(Binding{Final: true})
	port.Reconsider()
	expect.Eventually(t, "silence", func() bool { return !listening(port) })
	asked = c.asked.Load()
	s.link(0, setMTU(1500))
	s.link(0, setMTU(1400))
	for i := range int32(2) { // at the second call, the result of the first one has been reported
		port.Reconsider()
		expect.Eventually(t, "one call of Choose", func() bool { return c.asked.Load() == asked+i+1 })
	}
	if listening(port) {
		t.Error("the watcher runs again")
	}
}
