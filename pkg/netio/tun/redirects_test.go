// SPDX-License-Identifier: Apache-2.0

package tun_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/test/expect"
)

// in runs f on a thread in a network namespace.
func in(t *testing.T, ns netns.NsHandle, f func()) {
	t.Helper()
	back, err := netns.Get()
	expect.NoError(t, err)
	expect.NoError(t, netns.Set(ns))
	f()
	expect.NoError(t, netns.Set(back))
	expect.NoError(t, back.Close())
}

func readIPv4Conf(t *testing.T, device, name string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + device + "/" + name)
	expect.NoError(t, err)
	return strings.TrimSpace(string(b))
}

func writeIPv4Conf(t *testing.T, device, name, value string) {
	t.Helper()
	expect.NoError(t, os.WriteFile("/proc/sys/net/ipv4/conf/"+device+"/"+name, []byte(value), 0))
}

// udpPacket returns an IPv4 packet with an empty UDP datagram.
func udpPacket(src, dst [4]byte) []byte {
	p := make([]byte, 28)
	p[0], p[3], p[8], p[9] = 0x45, 28, 64, unix.IPPROTO_UDP
	copy(p[12:], src[:])
	copy(p[16:], dst[:])
	p[21], p[23], p[25] = 7, 7, 8
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum))
	return p
}

// adopt closes a device, and opens its interface as one of another program.
func adopt(t *testing.T, d tun.HandoverDevice) tun.Device {
	t.Helper()
	fds, err := d.DuplicateFDs()
	expect.NoError(t, err)
	expect.NoError(t, d.(tun.Device).Close())
	adopted, err := tun.Adopt(fds[0], tun.Config{})
	expect.NoError(t, err)
	t.Cleanup(func() { _ = adopted.Close() })
	return adopted
}

// readIPv4 returns the first IPv4 packet of a queue.
func readIPv4(t *testing.T, q tun.Queue) []byte {
	t.Helper()
	bufs, sizes := [][]byte{make([]byte, tun.MaxTrain)}, []int{0}
	for {
		_, err := q.Read(bufs, sizes)
		expect.NoError(t, err)
		if got := bufs[0][offload.VnetHdrLen:sizes[0]]; got[0]>>4 == 4 {
			return got
		}
	}
}

// TestForwardingCausesNoRedirects sends from one peer of the interface to another one. The kernel would send the redirect first.
func TestForwardingCausesNoRedirects(t *testing.T) {
	for _, moved := range []bool{false, true} {
		for _, adopted := range []bool{false, true} {
			t.Run(fmt.Sprintf("moved %v, adopted %v", moved, adopted), func(t *testing.T) {
				r := newNamespaces(t)
				d, h, ns := open(t, tun.Config{Name: "rw0"}), r.origin, r.originNS
				if adopted {
					d = adopt(t, d.(tun.HandoverDevice))
				}
				if moved {
					r.move(r.origin, r.otherNS)
					h, ns = r.other, r.otherNS
				}
				in(t, ns, func() {
					writeIPv4Conf(t, "rw0", "forwarding", "1")
					writeIPv4Conf(t, "rw0", "send_redirects", "1")
				})
				expect.NoError(t, h.AddrAdd(r.link(h), &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 9, 0, 1), Mask: net.CIDRMask(24, 32)}}))
				expect.NoError(t, h.LinkSetUp(r.link(h)))
				in(t, ns, func() {
					expect.Eventually(t, "redirects are off", func() bool {
						return readIPv4Conf(t, "all", "send_redirects") == "0" && readIPv4Conf(t, "rw0", "send_redirects") == "0"
					})
				})
				p := udpPacket([4]byte{10, 9, 0, 2}, [4]byte{10, 9, 0, 3})
				train := append(make([]byte, offload.VnetHdrLen), p...)
				q := d.Queues()[0]
				expect.NoError(t, q.Write([][]byte{train}))
				if got := readIPv4(t, q); len(got) != len(p) || !bytes.Equal(got[12:], p[12:]) {
					t.Errorf("got packet %x, want the one to %x", got, p[16:20])
				}
			})
		}
	}
}

// TestOtherDevicesKeepTheirRedirects: theirs are on by their own setting.
func TestOtherDevicesKeepTheirRedirects(t *testing.T) {
	r := newNamespaces(t)
	open(t, tun.Config{Name: "rw0"})
	expect.NoError(t, r.origin.LinkSetUp(r.link(r.origin)))
	expect.Eventually(t, "redirects are off", func() bool { return readIPv4Conf(t, "all", "send_redirects") == "0" })
	for _, device := range []string{"lo", "default"} {
		if v := readIPv4Conf(t, device, "send_redirects"); v != "1" {
			t.Errorf("%s: send_redirects is %s, want 1", device, v)
		}
	}
}

// TestNewInterfaceIsNoMulticastDevice as that of the in-kernel WireGuard: mDNS responders and routing daemons leave it alone.
func TestNewInterfaceIsNoMulticastDevice(t *testing.T) {
	r := newNamespaces(t)
	open(t, tun.Config{Name: "rw0"})
	if r.link(r.origin).Attrs().Flags&net.FlagMulticast != 0 {
		t.Error("the interface has IFF_MULTICAST")
	}
	expect.NoError(t, r.origin.LinkSetMulticastOn(r.link(r.origin)))
	expect.NoError(t, r.origin.LinkSetUp(r.link(r.origin)))
	expect.Eventually(t, "the interface is configured as one that is up", func() bool { return readIPv4Conf(t, "all", "send_redirects") == "0" })
	if r.link(r.origin).Attrs().Flags&net.FlagMulticast == 0 {
		t.Error("the interface has lost IFF_MULTICAST, which the administrator has set")
	}
}
