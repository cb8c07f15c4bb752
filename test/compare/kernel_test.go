// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
)

// inKernel is the kernel's WireGuard. Its network is the loopback device of a namespace, and a packet socket sees the packets that it delivers.
var inKernel = implementation{name: "kernel", start: startKernel, lanes: one}

// TestKernelMakesSameDecisions runs in the virtual machines of make test-kernels. Intended differences: those of FuzzSameDecision, since the
// kernel has the window of wireguard-go and does not look at IPv4 header lengths either.
func TestKernelMakesSameDecisions(t *testing.T) {
	for _, seed := range answerSeeds() {
		t.Run("", func(t *testing.T) {
			namespace.Enter(t)
			compareAnswers(t, implementations[0], inKernel, seed)
		})
	}
}

// startKernel starts a WireGuard interface with e, in the network namespace of the calling thread.
func startKernel(tb testing.TB, e *memoryNet, s endConfig) {
	tb.Helper()
	link := addWireGuard(tb)
	local, remote := netip.MustParseAddrPort("127.0.0.1:51820"), netip.MustParseAddrPort("127.0.0.1:51821")
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(remote))
	expect.NoError(tb, err)
	taps := openTap(tb, link.Attrs().Index)
	configureKernel(tb, link.Attrs().Name, s, local, remote)
	tb.Cleanup(func() {
		e.network[0].setClosed(true)
		_, _ = conn.Close(), taps.Close()
	})
	go func() {
		for e.network[0].take(1, func(_ int, p *element) bool {
			_, _ = conn.WriteToUDPAddrPort(p.data, local)
			return true
		}) > 0 {
		}
	}()
	go pump(func(b []byte) (int, error) { n, _, err := conn.ReadFromUDPAddrPort(b); return n, err }, func(b []byte) {
		e.out.send(0, 1, func(int) ([][]byte, int, int) { return [][]byte{b}, len(b), 1 })
	})
	go pump(taps.Read, func(b []byte) {
		e.received.inspect([][]byte{b})
		e.received.add(1)
	})
}

// pump passes what is read to use, until reading fails.
func pump(read func([]byte) (int, error), use func([]byte)) {
	b := make([]byte, 1<<16)
	for {
		n, err := read(b)
		if err != nil {
			return
		}
		use(append([]byte(nil), b[:n]...))
	}
}

// addWireGuard adds an interface and sets loopback up. It skips the test if the kernel has no WireGuard.
func addWireGuard(tb testing.TB) netlink.Link {
	tb.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "wg0"
	err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
	if errors.Is(err, unix.EOPNOTSUPP) {
		tb.Skip("this kernel has no WireGuard (make test-kernels runs kernels that have it)")
	}
	expect.NoError(tb, err)
	lo, err := netlink.LinkByName("lo")
	expect.NoError(tb, err)
	expect.NoError(tb, netlink.LinkSetUp(lo))
	link, err := netlink.LinkByName("wg0")
	expect.NoError(tb, err)
	expect.NoError(tb, netlink.LinkSetUp(link))
	return link
}

// openTap returns a packet socket that receives the packets of an interface.
func openTap(tb testing.TB, ifindex int) *os.File {
	tb.Helper()
	const allProtocols = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	expect.NoError(tb, err)
	// The interface sends keepalives only, which are no packets.
	expect.NoError(tb, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1))
	expect.NoError(tb, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: allProtocols, Ifindex: ifindex}))
	return os.NewFile(uintptr(fd), "packet socket")
}

func configureKernel(tb testing.TB, name string, s endConfig, local, remote netip.AddrPort) {
	tb.Helper()
	key, port := wgtypes.Key(s.key), int(local.Port())
	first := wgtypes.PeerConfig{PublicKey: wgtypes.Key(s.peerKey), Endpoint: net.UDPAddrFromAddrPort(remote)}
	for _, p := range s.allowed {
		first.AllowedIPs = append(first.AllowedIPs, net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())})
	}
	c := wgtypes.Config{PrivateKey: &key, ListenPort: &port, Peers: []wgtypes.PeerConfig{first}}
	for _, k := range s.others {
		c.Peers = append(c.Peers, wgtypes.PeerConfig{PublicKey: wgtypes.Key(k)})
	}
	client, err := wgctrl.New()
	expect.NoError(tb, err)
	defer client.Close()
	expect.NoError(tb, client.ConfigureDevice(name, c))
}
