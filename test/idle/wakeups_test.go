// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/test/expect"
)

// scenario is a daemon that carries no traffic.
type scenario struct {
	name            string
	lanes           int
	peers, sessions int
	keepalive       uint16 // persistent keepalive of each peer, in seconds
	moved           bool   // the interface is in another network namespace than the daemon
}

var scenarios = []scenario{
	{name: "no peers", lanes: 2},
	{name: "no peers", lanes: 8},
	{name: "no peers", lanes: 32},
	{name: "interface moved away", lanes: 2, moved: true},
	{name: "1 session", lanes: 2, peers: 1, sessions: 1},
	{name: "1,000 peers", lanes: 2, peers: 1000},
	{name: "100 sessions", lanes: 2, peers: 100, sessions: 100},
	{name: "100 sessions, keepalive 25", lanes: 2, peers: 100, sessions: 100, keepalive: 25},
	{name: "1,000 sessions", lanes: 2, peers: 1000, sessions: 1000},
	{name: "10,000 peers", lanes: 2, peers: 10000},
}

// TestIdleDaemonRarelyWakesUp measures all scenarios at once, because idle daemons need little CPU time.
func TestIdleDaemonRarelyWakesUp(t *testing.T) {
	lab, _ := netlabtest.Hosts(t, "idle")
	var daemons []*daemon
	for _, s := range scenarios {
		daemons = append(daemons, s.start(t, lab))
	}
	settle()
	var before []usage
	for _, d := range daemons {
		before = append(before, d.usage())
	}
	start := time.Now()
	time.Sleep(*measure)
	w := tabwriter.NewWriter(t.Output(), 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "scenario\tlanes\twakeups/s\tCPU ms/min\tRSS MiB\tnot binary\tthreads\t")
	for i, d := range daemons {
		u, passed := d.usage(), time.Since(start)
		fmt.Fprintf(w, "%s\t%d\t%.2f\t%.0f\t%.1f\t%.1f\t%d\t\n", scenarios[i].name, scenarios[i].lanes,
			float64(u.switches-before[i].switches)/passed.Seconds(), float64(u.ticks-before[i].ticks)*10/passed.Minutes(),
			float64(u.rss)/1024, float64(u.anon)/1024, u.threads)
	}
	expect.NoError(t, w.Flush())
	for i, d := range daemons {
		if scenarios[i].peers == 0 {
			d.wantIdle(scenarios[i].name)
		}
	}
}

// maxWakeups is the limit of wakeups per second of a daemon without peers. A daemon that polled its interface once per second
// had 14.
const maxWakeups = 5

// wantIdle waits for one second with at most maxWakeups wakeups. A daemon that polls never has such a second, while the Go
// runtime's occasional work soon ends.
func (d *daemon) wantIdle(name string) {
	d.t.Helper()
	expect.Eventually(d.t, fmt.Sprintf("the daemon is idle: %s", name), func() bool {
		before := d.usage()
		time.Sleep(time.Second)
		return d.usage().switches-before.switches <= maxWakeups
	})
}

// start starts a daemon and brings it into the scenario's state.
func (s *scenario) start(t *testing.T, lab *netlab.Lab) *daemon {
	t.Helper()
	d := startDaemon(t, lab, s.lanes)
	if s.moved {
		d.move(lab)
	}
	if s.peers == 0 {
		return d
	}
	c := newPeerSet(t, s.peers, d.public, func() (conn *net.UDPConn, err error) {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), d.port)
		err = d.host.Do(func() error {
			conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at))
			return err
		})
		return conn, err
	})
	peers := c.config()
	d.apply(peers)
	if s.sessions > 0 {
		c.connect(t)
		expect.Eventually(t, "all peers have a session", func() bool { return connected(d.status(), s.sessions) })
	}
	if s.keepalive > 0 {
		for i := range peers.Peers {
			peers.Peers[i].Keepalive = &s.keepalive
		}
		d.apply(peers)
	}
	return d
}

// move moves the interface to another network namespace and sets it up there.
func (d *daemon) move(lab *netlab.Lab) {
	d.t.Helper()
	far, err := lab.Host("far")
	expect.NoError(d.t, err)
	ns, err := netns.GetFromPath(far.Path())
	expect.NoError(d.t, err)
	defer ns.Close()
	expect.NoError(d.t, d.host.Do(func() error {
		link, err := netlink.LinkByName(d.ifname)
		if err != nil {
			return err
		}
		return netlink.LinkSetNsFd(link, int(ns))
	}))
	expect.NoError(d.t, far.SetUp(d.ifname, 1420))
}
