// SPDX-License-Identifier: Apache-2.0

package toobig

import (
	"errors"
	"net"

	"golang.org/x/net/bpf"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// The filters run in the kernel. So a flood of other ICMP errors, such as the port unreachables of
// a busy name server, does not fill the receive buffer. A load beyond the end of a message drops
// the message. Both filters pass only messages that quote the start of a data message. A message
// that quotes only 8 bytes behind the IP header (RFC 792) cannot be checked against this host's
// packets.
const (
	pass = 1 << 18
	deny = 0

	dataType = uint32(wire.TypeData) << 24 // as the big-endian word that a filter loads
)

// filter4 passes Fragmentation Needed about data messages. The filter of a raw IPv4 socket sees the IP header.
func filter4(c *net.IPConn) (readFunc, error) {
	const quoted = icmpHeaderLen // offset of the quoted packet, from X
	code, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadMemShift{Off: 0}, // X = length of the IP header
		bpf.LoadIndirect{Off: 0, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: typeUnreachable4<<8 | codeFragmentationNeed4, SkipTrue: 12},
		bpf.LoadIndirect{Off: quoted + 9, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(packet.UDP), SkipTrue: 10},
		bpf.LoadIndirect{Off: quoted + 6, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x1fff, SkipTrue: 8}, // not the first fragment
		bpf.LoadIndirect{Off: quoted, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: 2},
		bpf.ALUOpX{Op: bpf.ALUOpAdd},
		bpf.TAX{}, // X = length of both IP headers
		bpf.LoadIndirect{Off: quoted + packet.UDPHeaderLen, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: dataType, SkipTrue: 1},
		bpf.RetConstant{Val: pass},
		bpf.RetConstant{Val: deny},
	})
	p := ipv4.NewPacketConn(c)
	read := reader(p.ReadFrom, func(m *ipv4.ControlMessage) int { return m.IfIndex })
	return read, errors.Join(err, p.SetControlMessage(ipv4.FlagInterface, true), p.SetBPF(code))
}

// filter6 passes Packet Too Big about data messages. The filter of a raw IPv6 socket sees what is behind the IP header.
func filter6(c *net.IPConn) (readFunc, error) {
	code, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 0, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: typeTooBig6, SkipTrue: 5},
		bpf.LoadAbsolute{Off: icmpHeaderLen + 6, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(packet.UDP), SkipTrue: 3},
		bpf.LoadAbsolute{Off: icmpHeaderLen + packet.IPv6HeaderLen + packet.UDPHeaderLen, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: dataType, SkipTrue: 1},
		bpf.RetConstant{Val: pass},
		bpf.RetConstant{Val: deny},
	})
	p := ipv6.NewPacketConn(c)
	read := reader(p.ReadFrom, func(m *ipv6.ControlMessage) int { return m.IfIndex })
	return read, errors.Join(err, p.SetControlMessage(ipv6.FlagInterface, true), p.SetBPF(code))
}
