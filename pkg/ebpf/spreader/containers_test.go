// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"encoding/binary"
	"net"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestProbesOfMacvlanMessagesHaveHops has a container on a macvlan device with CAP_NET_RAW. It sends messages with the host's address that the
// next router drops. Such a message may begin a round. Then the probe is made of it.
func TestProbesOfMacvlanMessagesHaveHops(t *testing.T) {
	e := newEchoRig(t, GatherAuto)
	send := e.macvlan()
	expect.Eventually(t, "the peer answers the probes", func() bool {
		send(1)
		return e.peer().EchoAnswered
	})
	for _, c := range e.senders {
		expect.NoError(t, c.Close())
	}
	e.senders = nil
	if len(e.arrivals()) > 0 {
		t.Error("a message of the container arrived, want all dropped by the router")
	}
}

// macvlan adds a container on a macvlan device of here's. It returns a function that sends a message of the host's to there.
func (e *echoRig) macvlan() (send func(ttl byte)) {
	e.Helper()
	pod, err := e.lab.Host("pod")
	expect.NoError(e, err)
	const name = "macvlan0"
	e.here.do(func() error {
		parent, err := netlink.LinkByName(e.here.device)
		if err != nil {
			return err
		}
		return netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: parent.Attrs().Index}, Mode: netlink.MACVLAN_MODE_BRIDGE})
	})
	expect.NoError(e, e.here.lab.Move(name, pod))
	var router net.HardwareAddr
	expect.NoError(e, e.router.Do(func() error {
		i, err := net.InterfaceByName(e.inward)
		if err == nil {
			router = i.HardwareAddr
		}
		return err
	}))
	var fd int
	to := &unix.SockaddrLinklayer{}
	expect.NoError(e, pod.Do(func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
		to.Ifindex = l.Attrs().Index
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	e.Cleanup(func() { unix.Close(fd) })
	return func(ttl byte) {
		udp := binary.BigEndian.AppendUint16(nil, port)
		udp = binary.BigEndian.AppendUint16(udp, port)
		udp = binary.BigEndian.AppendUint16(udp, 8+96)
		udp = append(append(udp, 0, 0), message(0, 0)...)
		ip := []byte{0x45, 0, 0, byte(20 + len(udp)), 0, 0, 0, 0, ttl, unix.IPPROTO_UDP, 0, 0}
		ip = slices.Concat(ip, hereAddr.AsSlice(), e.there.addr.AsSlice())
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
		frame := slices.Concat(router, make([]byte, 6), []byte{8, 0}, ip, udp)
		expect.NoError(e, unix.Sendto(fd, frame, 0, to))
	}
}

// checksum returns the Internet checksum of an even number of bytes.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum&0xffff + sum>>16
	return ^uint16(sum&0xffff + sum>>16)
}
