// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// What the filter reads: its data begin with the UDP header, over IPv4 and IPv6 alike.
const (
	udpHeader       = 8
	initiationStart = 0x01000000 // type 1 and three reserved bytes, in the order of the wire
	initiationLen   = 148        // WireGuard paper §5.4.2
	// honestInitiations is how many of one peer may come together: one every five seconds is sent, so two where a link has held one
	// back, or doubles what it carries.
	honestInitiations = 2
	// quarters is in how many parts a train is looked at: at their beginnings, and at its last message.
	quarters = 4
	// messagesSlot is the scratch memory that holds how many messages there are, and before that how many bytes.
	messagesSlot  = 0
	wholeDatagram = 0xffffffff // what a filter returns is how much it leaves
)

// refuseTrainsOfInitiations keeps out of the socket's buffer what only a flood sends: more than honestInitiations that follow each
// other so closely, from one address and port, that they arrive as one (UDP_GRO). Peers that come back all at once, behind
// one NAT too, have a port each, and are never coalesced. In the buffer such trains would take the place of data: under a flood of them
// most of it was lost there. The kernel counts each among the socket's drops (readDrops).
//
// The program takes no privilege; that it may be refused (seccomp) is for the caller to live with. Any filter has the kernel verify
// checksums in front of the buffer and not while it copies (udp_queue_rcv_one_skb), which is work only for single datagrams
// of devices that do not: what is coalesced has been verified.
func (s *socket) refuseTrainsOfInitiations() error {
	code := compileRefusal()
	err := unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]})
	if err != nil {
		return fmt.Errorf("keeping floods out of the socket (SO_ATTACH_FILTER): %w", err)
	}
	return nil
}

// firstRefusal is why not all of the sockets have the filter that they should have.
func firstRefusal(socks []*socket) error {
	if i := slices.IndexFunc(socks, func(s *socket) bool { return s.refused != nil }); i >= 0 {
		return socks[i].refused
	}
	return nil
}

// compileRefusal returns the program, which lets a data message go after four instructions. It cannot see the size of a train's
// messages. Were it to look at the first ones alone, a single long datagram, made for it and sent from a peer's address and port, would
// have the peer's data refused that are coalesced with it: so it looks all along the train. A train that ends with something shorter goes
// in: that may be what the peer itself has sent, behind initiations that somebody else sends in its name.
func compileRefusal() []unix.SockFilter {
	p := newProgram()
	in := p.ret(wholeDatagram)
	next := p.ret(0)
	p.isInitiation(next, in)
	p.put(compute|unix.BPF_SUB, 1)
	next = p.put(unix.BPF_LD|unix.BPF_MEM, messagesSlot)
	for i := uint32(quarters - 1); i > 0; i-- {
		p.isInitiation(next, in)
		p.put(compute|unix.BPF_DIV, quarters)
		p.put(compute|unix.BPF_MUL, i)
		next = p.put(unix.BPF_LD|unix.BPF_MEM, messagesSlot)
	}
	p.put(unix.BPF_ST, messagesSlot)
	p.put(compute|unix.BPF_DIV, initiationLen)
	next = p.put(unix.BPF_LD|unix.BPF_MEM, messagesSlot)
	p.branch(unix.BPF_JEQ, 0, next, in)
	p.put(compute|unix.BPF_MOD, initiationLen)
	p.put(unix.BPF_ST, messagesSlot)
	p.put(compute|unix.BPF_SUB, udpHeader)
	next = p.put(loadLen, 0)
	p.branch(unix.BPF_JEQ, initiationStart, next, in)
	next = p.put(loadWord, udpHeader)
	// The length comes first: a load behind the end would refuse the datagram.
	p.branch(unix.BPF_JGE, udpHeader+(honestInitiations+1)*initiationLen, next, in)
	p.put(loadLen, 0)
	return p.assembled()
}

// isInitiation goes on to yes if an initiation begins where the message begins whose number, from 0, is in the accumulator.
func (p *program) isInitiation(yes, no label) {
	p.branch(unix.BPF_JEQ, initiationStart, yes, no)
	p.put(unix.BPF_LD|unix.BPF_IND|unix.BPF_W, udpHeader)
	p.put(toIndex, 0)
	p.put(compute|unix.BPF_MUL, initiationLen)
}
