// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"net"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestForgedErrorsChangeNoPathMTU: a peer sends an ICMP error through the kernel's tunnel, and a container by its device, about a packet to the peer's
// endpoint. Without spread the kernel believes both. Without tcx a container's device has no filter.
func TestForgedErrorsChangeNoPathMTU(t *testing.T) {
	needKernel(t)
	for _, v6 := range []bool{false, true} {
		t.Run("over "+familyName(v6), func(t *testing.T) {
			l := newLab(t)
			l.connectHosts(v6, false)
			l.startKernel()
			l.admitAll()
			pod := l.newHost("pod")
			veth, err := l.net.Cable(pod, l.left.host, netlab.CableConfig{})
			expect.NoError(t, err)
			forge := map[string]func(){
				"peer":      l.forger(l.right.host, l.right.ifname, l.left.host, l.left.ifname, v6),
				"container": l.forger(pod, veth.DeviceA, l.left.host, veth.DeviceB, v6),
			}
			for name, send := range forge {
				expect.Eventually(t, "the kernel believes the "+name, func() bool {
					send()
					return l.learnedMTU() == forgedMTU
				})
				expect.Eventually(t, "it has forgotten the path MTU", func() bool { // a late error may follow
					l.renewRoute()
					return l.learnedMTU() != forgedMTU
				})
			}
			l.attach(l.left)
			l.renewRoute() // errors that came late were believed
			tcx, filtered := hook.HasTCX(), l.status(l.left).Filter.Devices
			if !slices.Contains(filtered, l.left.ifname) || slices.Contains(filtered, veth.DeviceB) != tcx {
				t.Errorf("the filter is on %q, want it on the tunnel, and on the container's device: %v", filtered, tcx)
			}
			if !tcx {
				delete(forge, "container")
			}
			for name, send := range forge {
				before := l.status(l.left).Filter.Dropped
				expect.Eventually(t, "an error of the "+name+" is dropped", func() bool {
					send()
					return l.status(l.left).Filter.Dropped > before
				})
			}
			if l.learnedMTU() == forgedMTU {
				t.Error("the kernel believes a forged error")
			}
			expect.NoError(t, l.detach(l.left))
		})
	}
}

// admitAll lets both tunnels carry packets of all addresses.
func (l *lab) admitAll() {
	l.Helper()
	all := []net.IPNet{{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, {IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}}
	for _, s := range l.both() {
		expect.NoError(l, s.wg(func(c *wgctrl.Client) error {
			return c.ConfigureDevice(s.ifname, wgtypes.Config{Peers: []wgtypes.PeerConfig{{
				PublicKey: l.other(s).key.PublicKey(), UpdateOnly: true, AllowedIPs: all,
			}}})
		}))
	}
}

// forgedMTU is the path MTU that forged errors report, in bytes.
const forgedMTU = 1300

// forger returns a function that sends an ICMP error about an Echo Reply from left to right, by a device of a host to a device of another.
func (l *lab) forger(from *netlab.Host, device string, host *netlab.Host, toDevice string, v6 bool) (send func()) {
	l.Helper()
	src, dst := l.left.outer.Addr().AsSlice(), l.right.outer.Addr().AsSlice()
	about, protocol := append([]byte{0x45, 0, 5, 0x78, 0, 0, 0, 0, 64, byte(packet.ICMP), 0, 0}, slices.Concat(src, dst)...), uint16(packet.EtherTypeIPv4)
	if v6 {
		about, protocol = append([]byte{0x60, 0, 0, 0, 5, 0x50, byte(packet.ICMPv6), 64}, slices.Concat(src, dst)...), uint16(packet.EtherTypeIPv6)
	}
	buf := make([]byte, packet.MaxICMPError)
	forged := buf[:packet.WritePacketTooBig(buf, append(about, make([]byte, 8)...), forgedMTU)]

	to := &unix.SockaddrLinklayer{Protocol: protocol<<8 | protocol>>8}
	expect.NoError(l, host.Do(func() error {
		i, err := net.InterfaceByName(toDevice)
		if err == nil {
			to.Halen = uint8(copy(to.Addr[:], i.HardwareAddr))
		}
		return err
	}))
	var fd int
	expect.NoError(l, from.Do(func() error {
		i, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		to.Ifindex = i.Index
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	l.Cleanup(func() { unix.Close(fd) })
	return func() { expect.NoError(l, unix.Sendto(fd, forged, 0, to)) }
}

// learnedMTU returns the path MTU from left to right that the kernel has learned, in bytes. If it has learned none, it is 0 or the device's.
func (l *lab) learnedMTU() (mtu int) {
	l.Helper()
	expect.NoError(l, l.left.host.Do(func() error {
		routes, err := netlink.RouteGet(l.right.outer.Addr().AsSlice())
		if err == nil {
			mtu = routes[0].MTU
		}
		return err
	}))
	return mtu
}

// renewRoute removes and adds the route from left to right, with which the kernel forgets path MTUs.
func (l *lab) renewRoute() {
	l.Helper()
	right := l.right.outer.Masked()
	expect.NoError(l, l.left.host.Do(func() error {
		return netlink.RouteDel(&netlink.Route{Dst: &net.IPNet{IP: right.Addr().AsSlice(), Mask: net.CIDRMask(right.Bits(), right.Addr().BitLen())}})
	}))
	expect.NoError(l, l.left.host.RouteVia(right, l.left.outer.Addr().Prev()))
}
