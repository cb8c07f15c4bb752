// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// DatagramLinks returns the interface indexes of all next hops that are alive for UDP datagrams
// with a mark. Unlike RouteFrom, it follows rules for protocols and ports (since Linux 4.18). The
// source address and scope are as in RouteFrom; the source port 0 leaves it out. The error wraps
// ErrNoRoute if the host has no route, or a route that refuses packets.
func DatagramLinks(src, dst netip.AddrPort, scope, mark uint32) ([]int, error) {
	links, err := []int(nil), error(unix.EINVAL)
	if src.Addr().IsValid() && src.Addr().Is4() == dst.Addr().Is4() {
		links, err = datagramLinks(src, dst, scope, mark)
	}
	if err != nil {
		links, err = datagramLinks(netip.AddrPortFrom(netip.Addr{}, src.Port()), dst, scope, mark)
	}
	if isUnroutable(err) {
		err = ErrNoRoute
	}
	if err != nil {
		return nil, fmt.Errorf("looking up the route of datagrams to %s: %w", dst, err)
	}
	return links, nil
}

// datagramLinks asks the kernel. Package netlink's RouteGetOptions have no ports.
func datagramLinks(src, dst netip.AddrPort, scope, mark uint32) (links []int, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_REQUEST)
	addDatagram(req, src, dst)
	for attribute, n := range map[int]uint32{unix.RTA_OIF: scope, unix.RTA_MARK: mark} {
		if n != 0 {
			req.AddData(nl.NewRtAttr(attribute, nl.Uint32Attr(n)))
		}
	}
	replies, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
	for _, m := range replies {
		more, err := messageLinks(m)
		if err != nil {
			return nil, err
		}
		links = append(links, more...)
	}
	return links, err
}

// addDatagram describes UDP datagrams in a request for a route. FIB_MATCH makes the answer the route with all next hops.
func addDatagram(req *nl.NetlinkRequest, src, dst netip.AddrPort) {
	family, to := uint8(unix.AF_INET6), dst.Addr().WithZone("")
	if to.Is4() {
		family = unix.AF_INET
	}
	m := &nl.RtMsg{RtMsg: unix.RtMsg{Family: family, Dst_len: uint8(to.BitLen()), Flags: unix.RTM_F_LOOKUP_TABLE | unix.RTM_F_FIB_MATCH}}
	req.AddData(m)
	req.AddData(nl.NewRtAttr(unix.RTA_DST, to.AsSlice()))
	if from := src.Addr().WithZone(""); from.IsValid() {
		m.Src_len = uint8(from.BitLen())
		req.AddData(nl.NewRtAttr(unix.RTA_SRC, from.AsSlice()))
	}
	req.AddData(nl.NewRtAttr(unix.RTA_IP_PROTO, []byte{unix.IPPROTO_UDP}))
	for attribute, port := range map[int]uint16{unix.RTA_SPORT: src.Port(), unix.RTA_DPORT: dst.Port()} {
		if port != 0 {
			req.AddData(nl.NewRtAttr(attribute, binary.BigEndian.AppendUint16(nil, port)))
		}
	}
}

// messageLinks returns the interface indexes in an answer.
func messageLinks(m []byte) (links []int, err error) {
	if len(m) < unix.SizeofRtMsg {
		return nil, errShortRoute
	}
	attributes, err := nl.ParseRouteAttr(m[unix.SizeofRtMsg:])
	for _, a := range attributes {
		switch {
		case a.Attr.Type == unix.RTA_OIF && len(a.Value) >= 4:
			links = append(links, int(nl.NativeEndian().Uint32(a.Value)))
		case a.Attr.Type == unix.RTA_MULTIPATH:
			return aliveHops(a.Value)
		}
	}
	return links, err
}

var errShortRoute = errors.New("the kernel's answer ends early")

// aliveHops returns the interface indexes of the next hops of a multipath route that the kernel uses.
func aliveHops(list []byte) (links []int, err error) {
	for len(list) > 0 {
		if len(list) < unix.SizeofRtNexthop {
			return nil, errShortRoute
		}
		hop := nl.DeserializeRtNexthop(list)
		if int(hop.RtNexthop.Len) < unix.SizeofRtNexthop || int(hop.RtNexthop.Len) > len(list) {
			return nil, errShortRoute
		}
		if hop.Flags&unix.RTNH_F_DEAD == 0 {
			links = append(links, int(hop.Ifindex))
		}
		list = list[hop.RtNexthop.Len:]
	}
	return links, nil
}
