// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Input of the filter. Its data begins with the UDP header, over IPv4 and IPv6.
const (
	udpHeader       = 8
	initiationStart = 0x01000000 // type 1 and three reserved bytes, in network byte order
	initiationLen   = 148        // WireGuard paper §5.4.2
	// maxInitiationTrain is the number of initiations of one peer that may arrive together. A peer sends one every five
	// seconds, so two arrive together if a link delayed one or duplicates packets.
	maxInitiationTrain = 2
	// trainSamples is the number of parts of a train whose first message is checked, in addition to the last message.
	trainSamples = 4
	// countSlot is the scratch memory for the number of bytes, and then for the number of messages.
	countSlot     = 0
	wholeDatagram = 0xffffffff // a filter returns the number of bytes to keep
)

// attachInitiationFilter attaches a socket filter that drops floods of handshake initiations. It drops trains of more
// than maxInitiationTrain initiations: packets from one address and port that arrive so closely that UDP_GRO coalesces
// them. When many peers reconnect at once, even behind one NAT, each has a port of its own, so their initiations are
// never coalesced. In the receive buffer such trains would displace data: under a flood most data was lost there. The
// kernel counts each train among the socket's drops (readDrops).
//
// The filter needs no privilege. seccomp may refuse it, which the caller must tolerate. With any filter the kernel
// verifies checksums before the buffer instead of during the copy (udp_queue_rcv_one_skb). This costs time only for
// single datagrams of devices that do not verify checksums: coalesced packets are verified already.
func (s *socket) attachInitiationFilter() error {
	code := compileInitiationFilter()
	err := unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]})
	if err != nil {
		return fmt.Errorf("attaching the filter against handshake floods (SO_ATTACH_FILTER): %w", err)
	}
	return nil
}

// firstFilterError returns the error of the first socket that could not attach its filter.
func firstFilterError(socks []*socket) error {
	if i := slices.IndexFunc(socks, func(s *socket) bool { return s.filterErr != nil }); i >= 0 {
		return socks[i].filterErr
	}
	return nil
}

// compileInitiationFilter returns the program, which accepts a data message after four instructions. The filter cannot
// see the size of a train's messages. If it checked only the first ones, an attacker could send a single long datagram,
// crafted for it, from a peer's address and port. The filter would then drop the peer's data that is coalesced with it.
// Therefore it samples the whole train. It accepts a train that ends with a shorter message: that message may come from
// the peer itself, behind initiations with a forged source.
func compileInitiationFilter() []unix.SockFilter {
	p := newProgram()
	in := p.ret(wholeDatagram)
	next := p.ret(0)
	p.isInitiation(next, in)
	p.emit(compute|unix.BPF_SUB, 1)
	next = p.emit(unix.BPF_LD|unix.BPF_MEM, countSlot)
	for i := uint32(trainSamples - 1); i > 0; i-- {
		p.isInitiation(next, in)
		p.emit(compute|unix.BPF_DIV, trainSamples)
		p.emit(compute|unix.BPF_MUL, i)
		next = p.emit(unix.BPF_LD|unix.BPF_MEM, countSlot)
	}
	p.emit(unix.BPF_ST, countSlot)
	p.emit(compute|unix.BPF_DIV, initiationLen)
	next = p.emit(unix.BPF_LD|unix.BPF_MEM, countSlot)
	p.branch(unix.BPF_JEQ, 0, next, in)
	p.emit(compute|unix.BPF_MOD, initiationLen)
	p.emit(unix.BPF_ST, countSlot)
	p.emit(compute|unix.BPF_SUB, udpHeader)
	next = p.emit(loadLen, 0)
	p.branch(unix.BPF_JEQ, initiationStart, next, in)
	next = p.emit(loadWord, udpHeader)
	// The length comes first: a load beyond the end would drop the datagram.
	p.branch(unix.BPF_JGE, udpHeader+(maxInitiationTrain+1)*initiationLen, next, in)
	p.emit(loadLen, 0)
	return p.instructions()
}

// isInitiation continues at yes if message number A (the accumulator, from 0) begins with an initiation.
func (p *program) isInitiation(yes, no label) {
	p.branch(unix.BPF_JEQ, initiationStart, yes, no)
	p.emit(unix.BPF_LD|unix.BPF_IND|unix.BPF_W, udpHeader)
	p.emit(toIndex, 0)
	p.emit(compute|unix.BPF_MUL, initiationLen)
}
