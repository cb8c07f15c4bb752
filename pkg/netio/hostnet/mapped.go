// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The netlink library takes an IPv4-mapped IPv6 address (::ffff:192.0.2.1) for IPv4, and the kernel refuses its requests. This file has requests
// for such addresses, and for routes to them.

// changeMappedAddress adds (RTM_NEWADDR) or removes (RTM_DELADDR) an IPv4-mapped address.
func changeMappedAddress(l netlink.Link, addr netip.Prefix, message, flags int) error {
	req := nl.NewNetlinkRequest(message, flags|unix.NLM_F_ACK)
	msg := nl.NewIfAddrmsg(unix.AF_INET6)
	msg.Index, msg.Prefixlen = uint32(l.Attrs().Index), uint8(addr.Bits())
	req.AddData(msg)
	bytes := addr.Addr().As16()
	req.AddData(nl.NewRtAttr(unix.IFA_LOCAL, bytes[:]))
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, bytes[:]))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// changeMappedRoute adds (RTM_NEWROUTE) or removes (RTM_DELROUTE) a route to an IPv4-mapped prefix.
func changeMappedRoute(l netlink.Link, r *Route, message, flags int) error {
	req := nl.NewNetlinkRequest(message, flags|unix.NLM_F_ACK)
	msg := nl.NewRtMsg()
	if message == unix.RTM_DELROUTE {
		msg = nl.NewRtDelMsg()
		msg.Protocol = unix.RTPROT_BOOT
	}
	msg.Family, msg.Dst_len, msg.Table = unix.AF_INET6, uint8(r.Dst.Bits()), unix.RT_TABLE_UNSPEC // RTA_TABLE has it
	req.AddData(msg)
	table := r.Table
	if table == 0 {
		table = MainTable
	}
	dst := r.Dst.Addr().As16()
	req.AddData(nl.NewRtAttr(unix.RTA_DST, dst[:]))
	req.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(l.Attrs().Index))))
	req.AddData(nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(table)))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
