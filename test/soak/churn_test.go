// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/test/expect"
)

const (
	churnPeers = 500                  // peers that are added and removed in each cycle
	streamStep = 256                  // KiB that must arrive after each change
	streamRest = 4 * time.Millisecond // pause after each chunk, which leaves CPU time to the changes
	restEvery  = 20                   // cycles, some minutes: a test of seconds has no rest
)

// churn is two daemons between which a TCP connection in each direction must survive all changes.
type churn struct {
	*testing.T
	a, b     *daemon
	received [2]atomic.Int64 // bytes of the streams to b and to a
	others   []noise.PublicKey
	spare    byte // last byte of b's other outer address
	began    time.Time
	renewals int // of sessions that no change renewed
}

// change is one kind of event.
type change struct {
	name string
	do   func(*churn) error
}

// changes is one cycle. It ends with the configuration that it began with.
var changes = []change{
	{"adding peers", (*churn).addPeers},
	{"roaming", (*churn).roam},
	{"spread off", setSpread(config.SpreadOff)},
	{"AF_XDP", setUnderlay(config.UnderlayXDP)},
	{"upgrading a daemon that uses AF_XDP", (*churn).upgrade},
	{"a smaller MTU", setMTU(1400)},
	{"UDP sockets", setUnderlay(config.UnderlayUDP)},
	{"spread on", setSpread(config.SpreadOn)},
	{"removing the peers", (*churn).removePeers},
	{"a larger MTU", setMTU(1500)},
	{"down and up", (*churn).downUp},
	{"spread auto", setSpread(config.SpreadAuto)},
	{"upgrading", (*churn).upgrade},
}

// TestChurnLeaksNothing runs cycle after cycle of changes to two daemons. No TCP connection through the tunnel may end, and the
// daemons' memory, goroutines, descriptors and BPF objects must not grow.
func TestChurnLeaksNothing(t *testing.T) {
	skipUnless(t, "churn")
	requireXDP(t)
	c := newChurn(t)
	stop := c.startStreams()
	var samples []sample
	for end := time.Now().Add(*duration); ; {
		c.cycle(len(samples) + 1)
		samples = append(samples, c.sample())
		t.Logf("cycle %d: %v", len(samples), samples[len(samples)-1])
		if time.Now().After(end) {
			break
		}
	}
	stop()
	t.Logf("%d MiB to the second daemon, %d MiB to the first, %d renewals of sessions that no change renewed\n%s",
		c.received[0].Load()>>20, c.received[1].Load()>>20, c.renewals, table(samples))
	if err := verdict(samples); err != nil {
		t.Error(err)
	}
	if c.renewals == 0 && *duration >= time.Hour {
		t.Errorf("no session was old enough for a renewal in %d cycles", len(samples))
	}
}

// cycle makes each change in turn, and waits for traffic after each. Each restEvery-th cycle has a rest, each time after another change.
func (c *churn) cycle(n int) {
	c.Helper()
	for i, change := range changes {
		before := c.progress()
		if err := change.do(c); err != nil {
			c.Fatalf("%s: %v", change.name, err)
		}
		c.awaitTraffic("traffic after "+change.name, before)
		if n%restEvery == 0 && n/restEvery%len(changes) == i {
			c.rest("the rest after " + change.name)
		}
	}
}

// progress returns how many bytes of each stream have arrived.
func (c *churn) progress() [2]int64 { return [2]int64{c.received[0].Load(), c.received[1].Load()} }

// awaitTraffic waits until more of both streams has arrived than before.
func (c *churn) awaitTraffic(what string, before [2]int64) {
	c.Helper()
	expect.Eventually(c, what, func() bool {
		now := c.progress()
		return now[0] >= before[0]+streamStep<<10 && now[1] >= before[1]+streamStep<<10
	})
}

// rest changes nothing until both daemons have renewed the session because of its age, and waits for traffic in the new one. A handshake
// soon after the last one is no such renewal: two that the change before caused may have crossed. Nor is one after the session has expired.
func (c *churn) rest(name string) {
	c.Helper()
	c.awaitTraffic("traffic at the beginning of "+name, c.progress()) // all that arrived after an upgrade may have left before it
	daemons := [2]*daemon{c.a, c.b}
	var before, last [2]time.Time
	for i, d := range daemons {
		var err error
		before[i], err = d.lastHandshake()
		expect.NoError(c, err)
	}
	for i, d := range daemons {
		expect.EventuallyNoError(c, "a renewal by "+d.ifname+" in "+name, func() (err error) {
			last[i], err = d.lastHandshake()
			if age := last[i].Sub(before[i]); err == nil && (age < rekeyAfter/2 || age >= time.Duration(session.RejectAfterTime)) {
				err = fmt.Errorf("the last handshake was %v after that before the rest", age)
			}
			return err
		})
	}
	c.awaitTraffic("traffic after the renewal in "+name, c.progress())
	c.renewals++
	c.Logf("%s: the daemons renewed the session after %v and %v", name, last[0].Sub(before[0]), last[1].Sub(before[1]))
}

func newChurn(t *testing.T) *churn {
	t.Helper()
	lab, err := netlab.New("churn")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, lab.Close()) })
	var hosts [2]*netlab.Host
	for i := range hosts {
		hosts[i], err = lab.Host([]string{"first", "second"}[i])
		expect.NoError(t, err)
		expect.NoError(t, hosts[i].SetUp("lo", 0))
	}
	c := &churn{T: t, a: newDaemon(t, hosts[0], 1), b: newDaemon(t, hosts[1], 2), spare: 3, began: time.Now()}
	cable, err := lab.Cable(hosts[0], hosts[1], netlab.CableConfig{
		Queues: lanes, MTU: 1500, AddrsA: []netip.Prefix{c.a.outer}, AddrsB: []netip.Prefix{c.b.outer},
	})
	expect.NoError(t, err)
	c.a.cable, c.b.cable = cable.DeviceA, cable.DeviceB
	port := uint16(listenPort)
	for _, d := range [][2]*daemon{{c.a, c.b}, {c.b, c.a}} {
		expect.NoError(t, d[0].configure(config.Device{ListenPort: &port, Peers: []config.Peer{d[1].peer()}}))
		expect.NoError(t, d[0].host.SetUp(d[0].ifname, 0, d[0].inner))
	}
	return c
}

// countedConn is a TCP connection that pauses after writes and counts what it reads.
type countedConn struct {
	*net.TCPConn
	received *atomic.Int64
}

// Write writes b and then pauses.
func (c countedConn) Write(b []byte) (int, error) {
	defer time.Sleep(streamRest)
	return c.TCPConn.Write(b)
}

// Read reads into b.
func (c countedConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	c.received.Add(int64(n))
	return n, err
}

// startStreams starts a stream in each direction. The returned function ends them and waits.
func (c *churn) startStreams() (stop func()) {
	c.Helper()
	over := make(chan struct{})
	var streams sync.WaitGroup
	var conns []net.Conn
	for i, pair := range [2][2]*daemon{{c.a, c.b}, {c.b, c.a}} {
		from, to, err := connect(pair[0], pair[1])
		expect.NoError(c, err)
		conns = append(conns, from, to)
		received := &c.received[i]
		streams.Go(func() {
			_, err := stream(countedConn{from, received}, countedConn{to, received}, over)
			if err = errors.Join(err, from.Close(), to.Close()); err != nil && !c.Failed() {
				c.Errorf("stream %d: %v", i, err)
			}
		})
	}
	stop = sync.OnceFunc(func() {
		close(over)
		for _, conn := range conns {
			_ = conn.SetDeadline(time.Now().Add(patience)) // a failed stream's connections are closed already
		}
		streams.Wait()
	})
	c.Cleanup(stop)
	return stop
}

// connect opens a TCP connection through the tunnel.
func connect(a, b *daemon) (from, to *net.TCPConn, err error) {
	var ln *net.TCPListener
	err = b.host.Do(func() (err error) {
		ln, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(b.inner.Addr(), 0)))
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	defer ln.Close()
	err = a.host.Do(func() error {
		conn, err := (&net.Dialer{Timeout: patience}).DialContext(context.Background(), "tcp", ln.Addr().String())
		if err == nil {
			from = conn.(*net.TCPConn)
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if err = ln.SetDeadline(time.Now().Add(patience)); err == nil {
		to, err = ln.AcceptTCP()
	}
	if err != nil {
		return nil, nil, errors.Join(err, from.Close())
	}
	return from, to, nil
}

// addPeers adds peers without an endpoint to both daemons.
func (c *churn) addPeers() error {
	var peers []config.Peer
	for i := range churnPeers {
		key, err := noise.NewPrivateKey(rand.Reader)
		if err != nil {
			return err
		}
		c.others = append(c.others, key.Public())
		peers = append(peers, config.Peer{PublicKey: key.Public(), AllowedIPs: []config.AllowedIP{
			{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 32)},
		}})
	}
	return c.both(config.Device{Peers: peers})
}

func (c *churn) removePeers() error {
	var peers []config.Peer
	for _, key := range c.others {
		peers = append(peers, config.Peer{PublicKey: key, Remove: true})
	}
	c.others = nil
	return c.both(config.Device{Peers: peers})
}

func (c *churn) both(d config.Device) error { return errors.Join(c.a.configure(d), c.b.configure(d)) }

// roam replaces b's outer address.
func (c *churn) roam() error {
	next := outerAddress(c.spare)
	c.spare, c.b.outer = c.b.outer.Addr().As4()[3], next
	return c.b.host.Do(func() error {
		link, err := netlink.LinkByName(c.b.cable)
		if err != nil {
			return err
		}
		old := &netlink.Addr{IPNet: netlink.NewIPNet(outerAddress(c.spare).Addr().AsSlice())}
		fresh := &netlink.Addr{IPNet: netlink.NewIPNet(next.Addr().AsSlice())}
		old.Mask, fresh.Mask = net.CIDRMask(24, 32), net.CIDRMask(24, 32)
		// The old one goes first: the kernel removes a second address of a network together with the first.
		return errors.Join(netlink.AddrDel(link, old), netlink.AddrAdd(link, fresh))
	})
}

func setSpread(mode config.SpreadMode) func(*churn) error {
	return func(c *churn) error { return c.both(config.Device{Settings: config.Settings{Spread: &mode}}) }
}

// setUnderlay switches both daemons to AF_XDP or to UDP sockets, and waits until they use them.
func setUnderlay(mode config.UnderlayMode) func(*churn) error {
	return func(c *churn) error {
		if err := c.both(config.Device{Settings: config.Settings{Underlay: &mode}}); err != nil {
			return err
		}
		for _, d := range []*daemon{c.a, c.b} {
			expect.EventuallyNoError(c, "the underlay of "+d.ifname, func() error {
				path, err := d.path()
				if err == nil && path != mode.String() {
					err = fmt.Errorf("the path is %s, want %s", path, mode)
				}
				return err
			})
		}
		return nil
	}
}

// setMTU sets the MTU of the cable.
func setMTU(bytes int) func(*churn) error {
	return func(c *churn) error {
		return errors.Join(c.a.host.SetUp(c.a.cable, bytes), c.b.host.SetUp(c.b.cable, bytes))
	}
}

// downUp takes b's interface down and up again. Its address stays.
func (c *churn) downUp() error {
	return c.b.host.Do(func() error {
		link, err := netlink.LinkByName(c.b.ifname)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetDown(link), netlink.LinkSetUp(link))
	})
}

// upgrade replaces a's daemon. That of b runs from the beginning to the end.
func (c *churn) upgrade() error {
	if err := c.a.upgrade(ropewalk.Need(c)); err != nil {
		return fmt.Errorf("%s: %w", c.a.ifname, err)
	}
	return nil
}
