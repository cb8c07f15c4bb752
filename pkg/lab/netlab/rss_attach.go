// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// rssPriority places the program after all other filters of clsact, which runs after tcx. Programs
// that change a packet's ports thus run before its queue is selected. They must let the next
// program run (TC_ACT_UNSPEC, which is TCX_NEXT).
const rssPriority = 0xc000

const (
	// rssInputLen is the length of the longest input: IPv6 with ports.
	rssInputLen = 36
	rssWord     = 4
	rssRow      = 256 * rssWord // one row of the table: one input byte, by its value
	rssTableAt  = rssInputLen * rssRow
)

// Offsets of header fields in the frame, in bytes.
const (
	ipv4ProtocolAt = etherLen + 9
	ipv4FragmentAt = etherLen + 6
	ipv4AddrsAt    = etherLen + 12
	ipv6NextAt     = etherLen + 6
	ipv6AddrsAt    = etherLen + 8
	ipv6PortsAt    = etherLen + 40
	etherLen       = 14
)

// loadRSS loads a tc classifier that sets the transmit queue of a packet. On a veth this is the receive queue of the other end.
// The kernel uses the queue_mapping that the program wrote (skb_tx_hash, skb_rx_queue_recorded). Writing it needs Linux 5.1.
func loadRSS(r *RSS, queues int) (*ebpf.Program, error) {
	if err := checkRSS(r, max(queues, 1)); err != nil {
		return nil, err
	}
	value, err := rssValue(r)
	if err != nil {
		return nil, fmt.Errorf("making the RSS table: %w", err)
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("raising the locked memory limit: %w", err)
	}
	table, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "rw_lab_rss", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(value)), MaxEntries: 1,
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: value}},
	})
	if err != nil {
		return nil, fmt.Errorf("creating the RSS table: %w", err)
	}
	defer table.Close() // the program keeps a reference
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "rw_lab_rss", Type: ebpf.SchedCLS, License: "GPL", Instructions: selectQueue(table.FD(), len(r.Indirection)),
	})
	if err != nil {
		return nil, fmt.Errorf("loading the RSS program: %w", err)
	}
	return program, nil
}

// rssValue returns the value of the map's only entry. For each input byte and each of its values,
// it has the index into the indirection table if all other bytes are zero. The indirection table
// follows. The Toeplitz hash is linear, so the index of an input is the exclusive or of the
// indices of its bytes.
func rssValue(r *RSS) ([]byte, error) {
	entries := *r
	entries.Indirection = make([]uint32, len(r.Indirection))
	for i := range entries.Indirection {
		entries.Indirection[i] = uint32(i)
	}
	var v []byte
	for offset := range rssInputLen {
		for b := range 256 {
			var input [rssInputLen]byte
			input[offset] = byte(b)
			entry, err := entries.Queue(ipv6Tuple(input))
			if err != nil {
				return nil, err
			}
			v = binary.NativeEndian.AppendUint32(v, uint32(entry))
		}
	}
	for _, q := range r.Indirection {
		v = binary.NativeEndian.AppendUint32(v, q)
	}
	return v, nil
}

// ipv6Tuple splits the hash input into source and destination, each with its port.
func ipv6Tuple(input [rssInputLen]byte) (src, dst netip.AddrPort) {
	port := binary.BigEndian.Uint16
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(input[:16])), port(input[32:])),
		netip.AddrPortFrom(netip.AddrFrom16([16]byte(input[16:32])), port(input[34:]))
}

// An offset in struct __sk_buff (linux/bpf.h), and offsets on the stack: of the hash input, and of one more byte or short.
// The program has the packet in R6, the hash in R7, the map's value in R8 and the transport protocol in R9.
const (
	skbProtocol = 16
	stackInput  = -40
	stackShort  = -48
)

func selectQueue(value, entries int) asm.Instructions {
	return join(
		asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.Mov.Imm(asm.R7, 0),
			asm.LoadMapValue(asm.R8, value, 0),
			asm.LoadMem(asm.R1, asm.R6, skbProtocol, asm.Word),
			asm.JEq.Imm(asm.R1, int32(networkOrder(unix.ETH_P_IP)), "ipv4"),
			asm.JNE.Imm(asm.R1, int32(networkOrder(unix.ETH_P_IPV6)), "select"),
		},
		hashIPv6(), hashIPv4(),
		asm.Instructions{
			asm.And.Imm(asm.R7, int32(entries)-1).WithSymbol("select"),
			asm.LSh.Imm(asm.R7, 2),
			asm.Add.Imm(asm.R7, rssTableAt),
			asm.Add.Reg(asm.R8, asm.R7),
			asm.LoadMem(asm.R1, asm.R8, 0, asm.Word),
			asm.Add.Imm(asm.R1, 1), // 0 means not recorded
			asm.StoreMem(asm.R6, skbQueueMapping, asm.R1, asm.Word),
			asm.Mov.Imm(asm.R0, -1).WithSymbol("next"),
			asm.Return(),
		},
	)
}

func hashIPv6() asm.Instructions {
	return join(
		loadAt(ipv6AddrsAt, stackInput, 32), hashInput(0, 32),
		loadAt(ipv6NextAt, stackShort, 1),
		asm.Instructions{asm.LoadMem(asm.R9, asm.RFP, stackShort, asm.Byte)},
		jumpIfPorts("ports6"),
		label("ports6", loadAt(ipv6PortsAt, stackInput+32, 4)), hashInput(32, 4),
		asm.Instructions{asm.Ja.Label("select")},
	)
}

func hashIPv4() asm.Instructions {
	return join(
		label("ipv4", loadAt(ipv4AddrsAt, stackInput, 8)), hashInput(0, 8),
		loadAt(ipv4FragmentAt, stackShort, 2),
		asm.Instructions{
			asm.LoadMem(asm.R1, asm.RFP, stackShort, asm.Half),
			asm.And.Imm(asm.R1, int32(networkOrder(0x3fff))), // more fragments, or an offset
			asm.JNE.Imm(asm.R1, 0, "select"),
		},
		loadAt(ipv4ProtocolAt, stackShort, 1),
		asm.Instructions{asm.LoadMem(asm.R9, asm.RFP, stackShort, asm.Byte)},
		jumpIfPorts("ports4"),
		label("ports4", loadAt(etherLen, stackShort, 1)),
		asm.Instructions{
			asm.LoadMem(asm.R2, asm.RFP, stackShort, asm.Byte),
			asm.And.Imm(asm.R2, 0x0f), // the header's length in words
			asm.LSh.Imm(asm.R2, 2),
			asm.Add.Imm(asm.R2, etherLen),
		},
		load(stackInput+8, 4), hashInput(8, 4),
		asm.Instructions{asm.Ja.Label("select")},
	)
}

// jumpIfPorts jumps to the label for TCP and UDP, otherwise to the selection of the queue.
func jumpIfPorts(ports string) asm.Instructions {
	return asm.Instructions{
		asm.JEq.Imm(asm.R9, unix.IPPROTO_TCP, ports),
		asm.JNE.Imm(asm.R9, unix.IPPROTO_UDP, "select"),
	}
}

func loadAt(offset int32, to int16, n int32) asm.Instructions {
	return append(asm.Instructions{asm.Mov.Imm(asm.R2, offset)}, load(to, n)...)
}

// load copies n bytes of the packet, from the offset in R2, to the stack. If the packet is shorter, its queue is not set.
func load(to int16, n int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, int32(to)),
		asm.Mov.Imm(asm.R4, n),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "next"),
	}
}

// label sets a jump label on the first of the instructions.
func label(name string, ins asm.Instructions) asm.Instructions {
	ins[0] = ins[0].WithSymbol(name)
	return ins
}

// hashInput adds n bytes of the input to the hash, from the offset first.
func hashInput(first, n int16) (out asm.Instructions) {
	for offset := first; offset < first+n; offset++ {
		out = append(out,
			asm.LoadMem(asm.R1, asm.RFP, stackInput+offset, asm.Byte),
			asm.LSh.Imm(asm.R1, 2),
			asm.Add.Imm(asm.R1, int32(offset)*rssRow),
			asm.Mov.Reg(asm.R2, asm.R8),
			asm.Add.Reg(asm.R2, asm.R1),
			asm.LoadMem(asm.R1, asm.R2, 0, asm.Word),
			asm.Xor.Reg(asm.R7, asm.R1),
		)
	}
	return out
}

func join(parts ...asm.Instructions) (out asm.Instructions) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// networkOrder returns v as a program loads it from a field in network byte order.
func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// attachRSS attaches the program as the last tc egress filter of the device.
func (h *Host) attachRSS(device string, program *ebpf.Program) error {
	err := h.netlink(func(nl *netlink.Handle) error {
		link, err := nl.LinkByName(device)
		if err != nil {
			return err
		}
		clsact := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		}}
		if err := nl.QdiscAdd(clsact); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		return nl.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Priority: rssPriority,
				Protocol: unix.ETH_P_ALL,
			},
			Fd: program.FD(), Name: "rw_lab_rss", DirectAction: true,
		})
	})
	if err != nil {
		return fmt.Errorf("attaching RSS to %s in %s: %w", device, h.name, err)
	}
	return nil
}
