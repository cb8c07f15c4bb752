// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestNoTrackKeepsPortsFromContainers: a container that this host masquerades sends from the tunnel's ports to the peer before the tunnel does.
func TestNoTrackKeepsPortsFromContainers(t *testing.T) {
	for _, exempt := range []bool{false, true} {
		lab, err := netlab.New("notrack")
		if errors.Is(err, netlab.ErrPrivileges) {
			t.Skip(err)
		}
		expect.NoError(t, err)
		t.Cleanup(func() { expect.NoError(t, lab.Close()) })
		hosts := map[string]*netlab.Host{}
		for _, name := range []string{"pod", "here", "peer"} {
			hosts[name], err = lab.Host(name)
			expect.NoError(t, err)
		}
		pod, here, peer := hosts["pod"], hosts["here"], hosts["peer"]
		prefix := netip.MustParsePrefix
		_, err = lab.Cable(pod, here, netlab.CableConfig{AddrsA: []netip.Prefix{prefix("10.0.0.2/24")}, AddrsB: []netip.Prefix{prefix("10.0.0.1/24")}})
		expect.NoError(t, err)
		out, err := lab.Cable(here, peer, netlab.CableConfig{AddrsA: []netip.Prefix{prefix("192.0.2.1/24")}, AddrsB: []netip.Prefix{prefix("192.0.2.2/24")}})
		expect.NoError(t, err)
		expect.NoError(t, pod.RouteVia(prefix("0.0.0.0/0"), netip.MustParseAddr("10.0.0.1")))
		if err := here.Masquerade(out.DeviceA, netlab.NATPorts{}); errors.Is(err, netlab.ErrNoNftables) {
			t.Skip(err)
		} else {
			expect.NoError(t, err)
		}
		if exempt {
			expect.NoError(t, here.Command(t.Context(), "sh", "-c", noTrack(51820, 61000, 61999)).Run())
		}
		receiver := udpSocket(t, peer, "192.0.2.2:51820")
		for _, port := range []string{"51820", "61000"} {
			source(t, udpSocket(t, pod, "10.0.0.2:"+port), receiver)
			if from := source(t, udpSocket(t, here, "192.0.2.1:"+port), receiver); (from.String() == "192.0.2.1:"+port) != exempt {
				t.Errorf("exempt %v: a datagram from port %s arrives from %s", exempt, port, from)
			}
		}
	}
}

func udpSocket(t *testing.T, h *netlab.Host, at string) (c *net.UDPConn) {
	t.Helper()
	expect.NoError(t, h.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
		return err
	}))
	t.Cleanup(func() { c.Close() })
	return c
}

// source sends until a datagram arrives, and returns from where.
func source(t *testing.T, from, to *net.UDPConn) (at netip.AddrPort) {
	t.Helper()
	mark, b := from.LocalAddr().String(), make([]byte, 64)
	expect.Eventually(t, "a datagram to arrive", func() bool {
		_, err := from.WriteToUDPAddrPort([]byte(mark), to.LocalAddr().(*net.UDPAddr).AddrPort())
		expect.NoError(t, err)
		expect.NoError(t, to.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		var n int
		n, at, err = to.ReadFromUDPAddrPort(b)
		return err == nil && string(b[:n]) == mark // not a late one of another sender
	})
	return at
}
