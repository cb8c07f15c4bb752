// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/test/expect"
)

// slowDevice is the device of the left host behind which the slow peer is.
const slowDevice = "slow"

// addSlowPeer adds a host with a tunnel behind a device of its own. The device has its full speed as yet.
func (l *lab) addSlowPeer(t *testing.T, impl implementation) *tunnel {
	t.Helper()
	h := newHost(t, "slow")
	attrs := netlink.NewLinkAttrs()
	attrs.Name = slowDevice
	expect.NoError(t, l.left.host.nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: slowDevice, PeerNamespace: netlink.NsFd(int(h.ns))}))
	for x, p := range map[*host]string{l.left.host: "198.51.100.1/24", h: "198.51.100.2/24"} {
		expect.NoError(t, x.setUp(slowDevice))
		expect.NoError(t, x.addAddress(slowDevice, netip.MustParsePrefix(p)))
	}
	x := newTunnel(t, impl, h, rightPort+1, "10.77.0.3/24", "fd77::3/64")
	x.start(t, l.left.asPeer(netip.MustParseAddrPort("198.51.100.1:51820"), nil))
	expect.NoError(t, l.left.configure(wgtypes.Config{
		Peers: []wgtypes.PeerConfig{x.asPeer(netip.MustParseAddrPort("198.51.100.2:51822"), nil)},
	}))
	return x
}

// throttle gives a device a rate of 1 kB/s, without a limit of its queue.
func (h *host) throttle(t *testing.T, device string) {
	t.Helper()
	d, err := h.nl.LinkByName(device)
	expect.NoError(t, err)
	q := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: d.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       1000, Buffer: netlink.Xmittime(1000, 4000), Limit: 1 << 30,
	}
	if err := h.nl.QdiscAdd(q); err != nil {
		t.Skipf("needs the tbf qdisc: %v", err)
	}
	t.Cleanup(func() { expect.NoError(t, h.nl.QdiscDel(q)) }) // packets that wait would hold the namespace for an hour
}

// TestStandingDeviceStopsNoOtherPeer fills all queues in front of a device that sends nothing for minutes. Data of the other peer, a new
// handshake with it, and the end of the tunnel must not wait for that.
func TestStandingDeviceStopsNoOtherPeer(t *testing.T) {
	forPairings(t, []pairing{{ropewalk, ropewalk}, {ropewalk, wireguardGo}}, func(t *testing.T, p pairing) {
		l := newLab(t, p, false)
		l.start(t)
		for _, x := range l.both() {
			serveEcho(t, x.host)
		}
		slow := l.addSlowPeer(t, p.right)
		serveEcho(t, slow.host)
		exchange(t, l.left, slow.inner4.Addr(), 100)
		l.left.host.throttle(t, slowDevice)
		fill(t, l.left, slow)
		l.shortTransfer(t)
		l.right.restart(t, l.peerOf(l.right))
		exchange(t, l.right, l.left.inner4.Addr(), 100) // it initiates at once
		l.shortTransfer(t)
	})
}

// fill sends 16 MB in 16 flows.
func fill(t *testing.T, from, to *tunnel) {
	t.Helper()
	datagram := make([]byte, mtu-28)
	for range 16 {
		c, err := dialUDP(from.host, netip.AddrPortFrom(to.inner4.Addr(), sinkPort))
		expect.NoError(t, err)
		for range 1 << 20 / len(datagram) {
			_, _ = c.Write(datagram) // fails after an ICMP error, too
		}
		expect.NoError(t, c.Close())
	}
}
