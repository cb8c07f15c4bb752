// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/test/expect"
)

// peer returns the only peer of a side's tunnel.
func (s *side) peer() (p wgtypes.Peer, err error) {
	err = s.wg(func(c *wgctrl.Client) error {
		d, err := c.Device(s.ifname)
		if err == nil && len(d.Peers) != 1 {
			err = fmt.Errorf("%s has %d peers", s.name, len(d.Peers))
		}
		if err == nil {
			p = d.Peers[0]
		}
		return err
	})
	return p, err
}

// runNft runs nftables commands on the router.
func (l *lab) runNft(args ...string) {
	l.Helper()
	out, err := l.router.Command(l.Context(), append([]string{"nft"}, args...)...).CombinedOutput()
	if err != nil {
		l.Fatalf("nft %q: %v: %s", args, err, out)
	}
}

// TestStalledKernelPeerIsRestarted has a path that drops data messages to the left side, and no handshakes. To its WireGuard this looks as if its receive
// queue had stopped (CVE-2026-52945).
func TestStalledKernelPeerIsRestarted(t *testing.T) {
	needKernel(t)
	l := newLab(t)
	l.connectHosts(false, false)
	l.startKernel()
	psk, keepalive := wgtypes.Key{7}, 25*time.Second
	for _, s := range l.both() {
		expect.NoError(l, s.wg(func(c *wgctrl.Client) error {
			return c.ConfigureDevice(s.ifname, wgtypes.Config{Peers: []wgtypes.PeerConfig{{
				PublicKey: l.other(s).key.PublicKey(), UpdateOnly: true, PresharedKey: &psk, PersistentKeepaliveInterval: &keepalive,
				AllowedIPs: []net.IPNet{{IP: net.IPv4(10, 99, 0, 0).To4(), Mask: net.CIDRMask(16, 32)}},
			}}})
		}))
	}
	before, err := l.left.peer()
	expect.NoError(t, err)
	l.runNft("add table inet stall; add chain inet stall forward { type filter hook forward priority 0; }; " +
		"add rule inet stall forward iifname " + toRight + " udp dport " + strconv.Itoa(port) + " @th,64,8 4 drop")
	ctx, stop := context.WithCancel(t.Context())
	watch := l.left.host.Command(ctx, l.bin, "spread", "attach", cable, "--port", strconv.Itoa(port), "--watch", "--restart-stalled-peers")
	out, err := watch.StdoutPipe()
	expect.NoError(t, err)
	watch.Stderr = watch.Stdout
	expect.NoError(t, watch.Start())
	lines := bufio.NewScanner(out)
	if !lines.Scan() { // in a virtual machine, loading the programs takes minutes
		t.Error("the programs were not attached")
	}
	defer func() {
		stop()
		for lines.Scan() {
			t.Log(lines.Text())
		}
		_ = watch.Wait()
	}()
	sender := l.listenUDP(l.left.host, l.left.inner.Addr())
	highest, last := before.TransmitBytes, before
	expect.EventuallyNoError(t, "the peer is restarted", func() error {
		_, _ = sender.WriteToUDPAddrPort(make([]byte, 100), netip.AddrPortFrom(l.right.inner.Addr(), 9))
		p, err := l.left.peer()
		if err != nil {
			return err // it was removed, and is added again
		}
		if p.LastHandshakeTime != last.LastHandshakeTime {
			t.Logf("handshake %v later, %d bytes received", p.LastHandshakeTime.Sub(last.LastHandshakeTime), p.ReceiveBytes-last.ReceiveBytes)
			last = p
		}
		if highest = max(highest, p.TransmitBytes); p.TransmitBytes == highest {
			return errors.New("its counters have not begun anew")
		}
		return nil
	})
	after, err := l.left.peer()
	expect.NoError(t, err)
	if after.PublicKey != before.PublicKey || after.PresharedKey != psk || after.PersistentKeepaliveInterval != keepalive ||
		after.Endpoint.String() != before.Endpoint.String() || fmt.Sprint(after.AllowedIPs) != fmt.Sprint(before.AllowedIPs) || len(after.AllowedIPs) != 2 {
		t.Errorf("got %+v after the restart, want the configuration of %+v", after, before)
	}
	l.runNft("delete table inet stall")
	l.connect()
}
