// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

const (
	queues = 16
	port   = 51820    // of both tunnels
	cable  = "cable0" // each side's device
	// The router's devices.
	fromLeft = "cable0"
	toRight  = "cable1"
	// patience is the timeout of all waits. It suits an emulated and overloaded machine.
	patience = 60 * time.Second
)

// side is one host with its end of the tunnel.
type side struct {
	name   string
	host   *netlab.Host
	ifname string
	key    wgtypes.Key
	outer  netip.Prefix
	inner  netip.Prefix
	inner6 netip.Addr // see wantInner6
}

// lab is the test network of two sides. The left one sends.
type lab struct {
	*testing.T
	net         *netlab.Lab
	left, right *side
	router      *netlab.Host
	rss         *netlab.RSS // of the cable to the right, if it has any
	bin         string
}

// interfaces numbers all interfaces of the process, since the UAPI sockets of all namespaces share one directory.
var interfaces atomic.Uint32

// newLab creates two hosts that are not connected yet.
func newLab(t *testing.T) *lab {
	t.Helper()
	bin := ropewalk.Need(t)
	nl, err := netlab.New("spread")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nl.Close(); err != nil {
			t.Error(err)
		}
	})
	l := &lab{T: t, net: nl, bin: bin}
	l.left, l.right = l.newSide("left", "10.77.0.1/24"), l.newSide("right", "10.77.0.2/24")
	return l
}

func (l *lab) newHost(name string) *netlab.Host {
	l.Helper()
	h, err := l.net.Host(name)
	expect.NoError(l, err)
	return h
}

func (l *lab) newSide(name, inner string) *side {
	l.Helper()
	return l.newSideOn(l.newHost(name), name, inner)
}

func (l *lab) newSideOn(h *netlab.Host, name, inner string) *side {
	l.Helper()
	key, err := wgtypes.GeneratePrivateKey()
	expect.NoError(l, err)
	return &side{
		name: name, host: h, key: key, inner: netip.MustParsePrefix(inner),
		ifname: fmt.Sprintf("s%dx%d", os.Getpid(), interfaces.Add(1)),
	}
}

func (l *lab) both() []*side { return []*side{l.left, l.right} }

func (l *lab) other(s *side) *side {
	if s == l.left {
		return l.right
	}
	return l.left
}

// connectHosts connects the sides through a router with the devices fromLeft and toRight. With rss, the cable to the right
// has queues and selects them as a NIC does, for packets that enter it. The kernel keeps a socket's packets, also those of a
// tunnel, on the queue of the first one (sk_tx_queue_get). It does not keep forwarded packets on a queue, so there is a
// router between the sides.
func (l *lab) connectHosts(v6, rss bool) {
	l.Helper()
	left, right, far := "10.9.0.2/24", "203.0.113.2/24", "203.0.113.1/24"
	if v6 {
		left, right, far = "fd09::2/64", "2001:db8::2/64", "2001:db8::1/64"
	}
	l.left.outer, l.right.outer = netip.MustParsePrefix(left), netip.MustParsePrefix(right)
	l.router = l.newHost("router")
	expect.NoError(l, l.router.Forward())
	l.connectLeft()
	cfg := netlab.CableConfig{AddrsA: []netip.Prefix{netip.MustParsePrefix(far)}, AddrsB: []netip.Prefix{l.right.outer}}
	if rss {
		l.rss = netlab.NewRSS(queues)
		cfg.RSS, cfg.Queues = l.rss, queues
	}
	_, err := l.net.Cable(l.router, l.right.host, cfg)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		l.Skip(err)
	}
	expect.NoError(l, err)
	expect.NoError(l, l.right.host.RouteVia(l.left.outer.Masked(), cfg.AddrsA[0].Addr()))
	if rss {
		l.serveQueues()
	}
}

// connectLeft connects the left side with the router. It may be called again after the cable was deleted.
func (l *lab) connectLeft() {
	l.Helper()
	near := netip.PrefixFrom(l.left.outer.Addr().Prev(), l.left.outer.Bits())
	laid, err := l.net.Cable(l.left.host, l.router, netlab.CableConfig{
		AddrsA: []netip.Prefix{l.left.outer}, AddrsB: []netip.Prefix{near},
	})
	expect.NoError(l, err)
	expect.NoError(l, l.left.host.Do(func() error { return rename(laid.DeviceA, cable) }))
	expect.NoError(l, l.left.host.SetUp(cable, 0))
	expect.NoError(l, l.left.host.RouteVia(l.right.outer.Masked(), near.Addr()))
	expect.NoError(l, serveQueues(l.router, laid.DeviceB, l.TempDir()))
}

// rename renames a device of the calling thread's namespace, and sets it down, unless it has that name already.
func rename(from, to string) error {
	if from == to {
		return nil
	}
	link, err := netlink.LinkByName(from)
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetDown(link), netlink.LinkSetName(link, to))
}

// serveQueues assigns a processor to each queue of the right side, and a different delay, as on a NIC.
func (l *lab) serveQueues() {
	l.Helper()
	expect.NoError(l, serveQueues(l.right.host, cable, l.TempDir()))
	if err := delayQueues(l.router, toRight); errors.Is(err, errNoNetem) {
		l.Logf("the queues are equally fast: %v", err)
	} else {
		expect.NoError(l, err)
	}
}

func (s *side) endpoint() netip.AddrPort { return netip.AddrPortFrom(s.outer.Addr(), port) }

// configure adds the other side as a peer of s. An invalid endpoint means unknown.
func (l *lab) configure(s *side, endpoint netip.AddrPort) {
	l.Helper()
	y, listen := l.other(s), port
	allowed := net.IPNet{IP: y.inner.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}
	peer := wgtypes.PeerConfig{PublicKey: y.key.PublicKey(), AllowedIPs: []net.IPNet{allowed}}
	if endpoint.IsValid() {
		peer.Endpoint = net.UDPAddrFromAddrPort(endpoint)
	}
	expect.NoError(l, s.host.SetUp(s.ifname, 1420, s.inner))
	expect.NoError(l, s.wg(func(c *wgctrl.Client) error {
		return c.ConfigureDevice(s.ifname, wgtypes.Config{PrivateKey: &s.key, ListenPort: &listen, Peers: []wgtypes.PeerConfig{peer}})
	}))
}

// wg runs f with a client for kernel and userspace WireGuard.
func (s *side) wg(f func(*wgctrl.Client) error) error {
	return s.host.Do(func() error {
		c, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer c.Close()
		return f(c)
	})
}

// checkEndpoint fails unless s has the other side's endpoint with its listen port.
func (l *lab) checkEndpoint(s *side) {
	l.Helper()
	expect.NoError(l, s.wg(func(c *wgctrl.Client) error {
		d, err := c.Device(s.ifname)
		if err != nil {
			return err
		}
		want := l.other(s).endpoint()
		at := d.Peers[0].Endpoint.AddrPort()
		if got := netip.AddrPortFrom(at.Addr().Unmap(), at.Port()); got != want {
			return fmt.Errorf("the peer of %s has endpoint %s, want %s", s.name, got, want)
		}
		return nil
	}))
}

// plan returns the source ports for s that map to one queue each of the other side's NIC, by the RSS of the right side's
// cable, which stands in for both NICs.
func (l *lab) plan(s *side) []uint16 {
	l.Helper()
	ports, err := spread.Plan(l.rss, s.outer.Addr(), l.other(s).endpoint(), spread.DefaultPorts, queues)
	expect.NoError(l, err)
	if len(ports) != queues {
		l.Fatalf("the plan has %d ports for %d queues", len(ports), queues)
	}
	return ports
}
