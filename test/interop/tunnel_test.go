// SPDX-License-Identifier: Apache-2.0

package interop

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
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/test/expect"
)

// mtu is the inner MTU. Over IPv6, a full inner packet uses exactly the cable's 1500 bytes.
const mtu = 1420

// tunnel is a WireGuard interface in a host.
type tunnel struct {
	impl   implementation
	host   *host
	ifname string
	key    wgtypes.Key
	port   int
	// inner4 and inner6 are the addresses inside the tunnel.
	inner4, inner6 netip.Prefix
	stop           func() error
}

// interfaces numbers all interfaces of the process, because UAPI sockets of all namespaces share one directory.
var interfaces atomic.Uint32

func newTunnel(t *testing.T, impl implementation, h *host, port int, inner4, inner6 string) *tunnel {
	t.Helper()
	key, err := wgtypes.GeneratePrivateKey()
	expect.NoError(t, err)
	tun := &tunnel{
		impl: impl, host: h, key: key, port: port,
		ifname: fmt.Sprintf("i%dx%d", os.Getpid(), interfaces.Add(1)),
		inner4: netip.MustParsePrefix(inner4), inner6: netip.MustParsePrefix(inner6),
	}
	t.Cleanup(func() {
		defer os.Remove("/var/run/wireguard/" + tun.ifname + ".sock") // a killed daemon leaves its socket
		if tun.stop == nil {
			return
		}
		if err := tun.stop(); err != nil && !t.Failed() {
			t.Errorf("stopping %s: %v", tun, err)
		}
	})
	return tun
}

func (x *tunnel) String() string { return x.impl.name + " on " + x.host.name }

// start brings the interface up with its key, port and peers.
func (x *tunnel) start(t *testing.T, peers ...wgtypes.PeerConfig) {
	t.Helper()
	x.stop = x.impl.start(t, x.host, x.ifname)
	expect.EventuallyNoError(t, x.String()+" to answer", func() error {
		_, err := x.read()
		return err
	})
	expect.NoError(t, x.configure(wgtypes.Config{PrivateKey: &x.key, ListenPort: &x.port, Peers: peers}))
	expect.NoError(t, x.setMTU())
	for _, p := range []netip.Prefix{x.inner4, x.inner6} {
		expect.NoError(t, x.host.addAddress(x.ifname, p))
	}
	expect.NoError(t, x.host.setUp(x.ifname))
}

// restart removes the interface and recreates it with the same key and port, without sessions.
func (x *tunnel) restart(t *testing.T, peers ...wgtypes.PeerConfig) {
	t.Helper()
	expect.NoError(t, x.stop())
	x.stop = nil
	x.wantGone(t)
	x.start(t, peers...)
}

// wantGone waits until the interface is removed.
func (x *tunnel) wantGone(t *testing.T) {
	t.Helper()
	expect.EventuallyNoError(t, x.String()+" to be gone", func() error {
		_, err := x.host.nl.LinkByName(x.ifname)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		return errors.Join(errors.New("the interface is still there"), err)
	})
}

func (x *tunnel) setMTU() error {
	l, err := x.host.nl.LinkByName(x.ifname)
	if err != nil {
		return err
	}
	return x.host.nl.LinkSetMTU(l, mtu)
}

// configure applies a change through the kernel's netlink family or the UAPI socket, whichever the interface has.
func (x *tunnel) configure(c wgtypes.Config) error {
	err := x.host.do(func() error {
		client, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer client.Close()
		return client.ConfigureDevice(x.ifname, c)
	})
	if err != nil {
		return fmt.Errorf("configuring %s: %w", x, err)
	}
	return nil
}

func (x *tunnel) read() (d *wgtypes.Device, err error) {
	err = x.host.do(func() error {
		client, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer client.Close()
		d, err = client.Device(x.ifname)
		return err
	})
	return d, err
}

// peer returns the state of the only peer.
func (x *tunnel) peer(t *testing.T) wgtypes.Peer {
	t.Helper()
	d, err := x.read()
	expect.NoError(t, err)
	if len(d.Peers) != 1 {
		t.Fatalf("%s has %d peers, want 1", x, len(d.Peers))
	}
	return d.Peers[0]
}

// handshake returns the time of the last handshake, or zero.
func (x *tunnel) handshake(t *testing.T) time.Time {
	t.Helper()
	at := x.peer(t).LastHandshakeTime
	if at.UnixNano() == 0 { // wgctrl's zero for userspace devices is the epoch
		return time.Time{}
	}
	return at
}

// noErrors asserts that the interface counted neither receive errors (decryption, format) nor transmit errors.
func (x *tunnel) noErrors(t *testing.T) {
	t.Helper()
	l, err := x.host.nl.LinkByName(x.ifname)
	expect.NoError(t, err)
	s := l.Attrs().Statistics
	if s == nil {
		t.Fatalf("%s has no statistics", x)
	}
	if s.RxErrors != 0 || s.TxErrors != 0 || s.RxFrameErrors != 0 {
		t.Errorf("%s counts %d rx errors (%d frame errors), %d tx errors", x, s.RxErrors, s.RxFrameErrors, s.TxErrors)
	}
}

// inner returns the tunnel address of one IP version.
func (x *tunnel) inner(v6 bool) netip.Addr {
	if v6 {
		return x.inner6.Addr()
	}
	return x.inner4.Addr()
}

// asPeer returns the peer configuration that the other side needs. An invalid endpoint is left out.
func (x *tunnel) asPeer(endpoint netip.AddrPort, psk *wgtypes.Key) wgtypes.PeerConfig {
	p := wgtypes.PeerConfig{
		PublicKey: x.key.PublicKey(), PresharedKey: psk, ReplaceAllowedIPs: true,
		AllowedIPs: []net.IPNet{*ipNet(hostPrefix(x.inner4)), *ipNet(hostPrefix(x.inner6))},
	}
	if endpoint.IsValid() {
		p.Endpoint = net.UDPAddrFromAddrPort(endpoint)
	}
	return p
}

func hostPrefix(p netip.Prefix) netip.Prefix { return netip.PrefixFrom(p.Addr(), p.Addr().BitLen()) }
