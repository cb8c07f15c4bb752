// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
)

// linkTUN is a TUN device with the index of another link.
type linkTUN struct {
	tun.Device
	index int
}

func (l linkTUN) Index() int { return l.index }

// addLink makes a link that is up.
func addLink(t *testing.T, name string) (index int) {
	t.Helper()
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-end"}); err != nil {
		t.Skipf("needs veth links: %v", err)
	}
	for _, end := range []string{name + "-end", name} {
		l, err := netlink.LinkByName(end)
		expect.NoError(t, err)
		expect.NoError(t, netlink.LinkSetUp(l))
		index = l.Attrs().Index
	}
	return index
}

// TestRouteLoopsOnlyIfAllDatagramsDo has a default route into the tunnel, and a rule for the listen port that leads to the uplink.
func TestRouteLoopsOnlyIfAllDatagramsDo(t *testing.T) {
	namespace.Enter(t)
	w0, uplink := addLink(t, "w0"), addLink(t, "uplink")
	add := func(table int, prefix string, hops ...int) {
		_, dst, err := net.ParseCIDR(prefix)
		expect.NoError(t, err)
		r := netlink.Route{Table: table, Dst: dst}
		for _, h := range hops {
			r.MultiPath = append(r.MultiPath, &netlink.NexthopInfo{LinkIndex: h})
		}
		expect.NoError(t, netlink.RouteAdd(&r))
	}
	add(unix.RT_TABLE_MAIN, "0.0.0.0/0", w0)
	add(unix.RT_TABLE_MAIN, "203.0.113.0/24", w0, uplink)
	add(unix.RT_TABLE_MAIN, "192.0.2.0/24", w0, w0)
	add(100, "198.51.100.0/24", uplink)
	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Sport = unix.AF_INET, 100, netlink.NewRulePortRange(51820, 51820)
	expect.NoError(t, netlink.RuleAdd(rule))
	for _, tt := range []struct {
		index int
		port  uint16
		dst   string
		want  bool
	}{
		{w0, 51820, "198.51.100.1:51820", false},
		{w0, 51821, "198.51.100.1:51820", true},
		{w0, 51821, "203.0.113.1:51820", false},
		{w0, 51821, "192.0.2.1:51820", true},
		{uplink, 51820, "198.51.100.1:51820", true},
		{0, 51821, "198.51.100.1:51820", false},
		{w0, 51821, "[2001:db8::1]:51820", false}, // no route
	} {
		got, err := new(loopFinder).loops(linkTUN{index: tt.index}, &underlay.Endpoint{Dst: netip.MustParseAddrPort(tt.dst)}, tt.port, 0)
		expect.NoError(t, err)
		if got != tt.want {
			t.Errorf("from port %d to %s by link %d: got loops %t, want %t", tt.port, tt.dst, tt.index, got, tt.want)
		}
	}
}

// TestFailedRouteLookupIsNoRoute has no descriptor left for the lookup's socket.
func TestFailedRouteLookupIsNoRoute(t *testing.T) {
	namespace.Enter(t)
	to := &underlay.Endpoint{Dst: netip.MustParseAddrPort("198.51.100.1:51820")}
	w0 := linkTUN{index: addLink(t, "w0")}
	limitFiles(t)
	if got, err := new(loopFinder).loops(w0, to, 51820, 0); !errors.Is(err, unix.EMFILE) {
		t.Errorf("got loops %t, %v; want %v", got, err, unix.EMFILE)
	}
}

// limitFiles lets no further descriptor be opened during the test.
func limitFiles(t *testing.T) {
	t.Helper()
	var before unix.Rlimit
	expect.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	t.Cleanup(func() { expect.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)) })
	expect.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: before.Max}))
}

// TestLoopThroughAnotherTunnelIsFound has a route into a tunnel whose peer is reached by the device's own.
func TestLoopThroughAnotherTunnelIsFound(t *testing.T) {
	l := newLoopLab(t)
	for n, tt := range []struct {
		endpoint string
		loops    bool
	}{{"192.0.2.1:1", false}, {"203.0.113.1:1", true}, {"203.0.113.1:1", true}, {"192.0.2.1:1", false}} {
		l.reach(tt.endpoint)
		l.want(t, n >= 2, "before "+tt.endpoint)
		if again := l.askOnce(); again != tt.loops {
			t.Errorf("%d: asks again: %v, want %v", n, again, tt.loops)
		}
		l.want(t, tt.loops, tt.endpoint)
	}
	if l.changes != 2 {
		t.Errorf("%d changes were told, want 2", l.changes)
	}
}

// TestLoopIsKeptWhileDaemonIsSilent has a daemon that restarts, or that is busy with the loop, and then an interface that is removed.
func TestLoopIsKeptWhileDaemonIsSilent(t *testing.T) {
	l := newLoopLab(t)
	l.reach("203.0.113.1:1")
	l.want(t, false, "before the first answer")
	l.askOnce()
	restarting, busy, served := uapitest.NewDir(t), uapitest.NewDir(t), l.dir
	uapitest.FillListenQueue(t, busy, "other")
	for n := range maxUnknown - 1 {
		l.dir = restarting
		if !l.askOnce() {
			t.Errorf("%d: asks no more", n)
		}
		l.want(t, true, "without a socket")
	}
	for range maxUnknown {
		l.dir = busy
		l.askOnce()
		l.want(t, true, "with a busy daemon")
	}
	l.dir = restarting
	if l.askOnce() {
		t.Error("asks again after a minute without a daemon")
	}
	l.want(t, false, "a minute without a daemon")
	l.dir = served
	l.askOnce()
	l.want(t, true, "with a daemon again")
	l.dir = busy
	expect.NoError(t, netlink.LinkDel(l.other))
	if l.askOnce() {
		t.Error("asks again without the interface")
	}
	if l.changes != 4 {
		t.Errorf("%d changes were told, want 4", l.changes)
	}
}

// loopLab has the tunnel w0, whose peer's endpoint is reached by the tunnel other.
type loopLab struct {
	*loopFinder
	w0      int
	other   *netlink.Tuntap
	dev     *uapitest.Device
	changes int
}

func newLoopLab(t *testing.T) *loopLab {
	t.Helper()
	namespace.Enter(t)
	l := &loopLab{w0: addLink(t, "w0"), dev: new(uapitest.Device)}
	l.loopFinder = &loopFinder{dir: uapitest.NewDir(t), done: make(chan struct{}), changed: func() { l.changes++ }}
	l.other = &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "other"}, Mode: netlink.TUNTAP_MODE_TUN}
	if err := netlink.LinkAdd(l.other); err != nil {
		t.Skipf("needs TUN devices: %v", err)
	}
	expect.NoError(t, netlink.LinkSetUp(l.other))
	for prefix, link := range map[string]int{"198.51.100.0/24": l.other.Index, "203.0.113.0/24": l.w0} {
		_, dst, err := net.ParseCIDR(prefix)
		expect.NoError(t, err)
		expect.NoError(t, netlink.RouteAdd(&netlink.Route{Dst: dst, LinkIndex: link, Scope: unix.RT_SCOPE_LINK}))
	}
	uapitest.Serve(t, l.dir, "other", l.dev)
	return l
}

// reach sets the endpoint of the peer of the tunnel other.
func (l *loopLab) reach(endpoint string) {
	peer := config.PeerStatus{Endpoint: config.Endpoint{AddrPort: netip.MustParseAddrPort(endpoint)}, AllowedIPs: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}
	l.dev.SetStatus(config.Status{Peers: []config.PeerStatus{peer}})
}

// want looks the endpoint of w0's peer up, without a goroutine that asks.
func (l *loopLab) want(t *testing.T, loops bool, when string) {
	t.Helper()
	l.asking = true
	got, err := l.loops(linkTUN{index: l.w0}, &underlay.Endpoint{Dst: netip.MustParseAddrPort("198.51.100.1:51820")}, 51820, 0)
	if err != nil || got != loops {
		t.Errorf("%s: got loops %v, error %v, want %v", when, got, err, loops)
	}
}
