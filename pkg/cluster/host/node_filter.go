// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// filter returns the rules of the chain that drops unencrypted packets from pods and addresses of other nodes to this node, or none. As for
// packets to pods, the routes decide which addresses these are. ICMP is accepted: neighbors are discovered, and errors reported, outside of
// the tunnel.
func (n *NodeRouting) filter(tunnel string) (rules [][]expr.Any) {
	if n == nil {
		return nil
	}
	accept := func(exprs ...expr.Any) { rules = append(rules, append(exprs, &expr.Verdict{Kind: expr.VerdictAccept})) }
	accept(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: deviceName(tunnel)})
	accept(&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)})
	accept(matchProtocol(unix.IPPROTO_ICMP)...)
	accept(matchProtocol(unix.IPPROTO_ICMPV6)...)
	for _, p := range n.Ports {
		accept((&clearFlow{protocol: unix.IPPROTO_UDP, dport: p}).match()...)
	}
	for _, f := range n.clearFlows() {
		accept(append(f.match(), f.matchReply()...)...)
	}
	if len(n.Sources) == 0 {
		return append(rules, dropRouted(tunnel, netip.Prefix{}))
	}
	for _, p := range n.Sources {
		rules = append(rules, dropRouted(tunnel, p))
	}
	return rules
}

// dropRouted drops packets from addresses that the tunnel has a route to; source is a prefix of them, or zero.
func dropRouted(tunnel string, source netip.Prefix) []expr.Any {
	return append(matchPrefix(source, 12, 8),
		&expr.Fib{Register: 1, FlagSADDR: true, ResultOIFNAME: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: deviceName(tunnel)},
		&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: filterCounter},
		&expr.Verdict{Kind: expr.VerdictDrop},
	)
}

// match returns the expressions that match packets of the flow.
func (f *clearFlow) match() []expr.Any {
	exprs := matchProtocol(byte(f.protocol))
	exprs = append(exprs, matchPrefix(f.src, 12, 8)...)
	exprs = append(exprs, matchPrefix(f.dst, 16, 24)...)
	exprs = append(exprs, matchPorts(f.sport, 0)...)
	return append(exprs, matchPorts(f.dport, 2)...)
}

// Bits of the flags of a TCP segment, and their offset (RFC 9293, section 3.1).
const (
	tcpSYN, tcpACK = 0x02, 0x10
	tcpFlagsOffset = 13
)

// matchReply matches all packets but the first of a TCP connection, if the flow is exempt for its
// source port. Anybody can send from that port, and must not reach other ports in the clear. With
// UDP, nothing distinguishes a reply.
func (f *clearFlow) matchReply() []expr.Any {
	if f.protocol != unix.IPPROTO_TCP || f.sport == (PortRange{}) {
		return nil
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: tcpFlagsOffset, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{tcpSYN | tcpACK}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{tcpSYN}},
	}
}

func matchProtocol(protocol byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}}}
}

// matchPrefix matches the address at an offset of the IPv4 or IPv6 header.
func matchPrefix(p netip.Prefix, offset4, offset6 uint32) []expr.Any {
	if !p.IsValid() {
		return nil
	}
	family, offset, size := byte(unix.NFPROTO_IPV4), offset4, uint32(p.Addr().BitLen()/8)
	if p.Addr().Is6() {
		family, offset = unix.NFPROTO_IPV6, offset6
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()), Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Addr().AsSlice()},
	}
}

// matchPorts matches the port at an offset of the transport header.
func matchPorts(p PortRange, offset uint32) []expr.Any {
	if p == (PortRange{}) {
		return nil
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
		&expr.Range{
			Op: expr.CmpOpEq, Register: 1, FromData: binary.BigEndian.AppendUint16(nil, p.First), ToData: binary.BigEndian.AppendUint16(nil, p.Last),
		},
	}
}

// deviceName returns the name as nftables compares it, in IFNAMSIZ bytes.
func deviceName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}
