// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// Input of the program. Its data begins with the UDP payload. SKF_NET_OFF addresses the IP header, which is contiguous
// with the UDP header by then. If a load failed, the program would end with lane 0.
const (
	ipVersion  = netOffset + 0 // also IPv4's header length
	ipv4Source = netOffset + 12
	ipv6Next   = netOffset + 6
	ipv6Source = netOffset + 8
	ipv6Ports  = netOffset + 40

	netOffset = 0xfff00000 // SKF_NET_OFF, -0x100000
	wordBytes = 4

	load     = unix.BPF_LD | unix.BPF_ABS
	loadWord = load | unix.BPF_W
	loadHalf = load | unix.BPF_H
	loadByte = load | unix.BPF_B
	loadLen  = unix.BPF_LD | unix.BPF_LEN | unix.BPF_W
	compute  = unix.BPF_ALU | unix.BPF_K
	toIndex  = unix.BPF_MISC | unix.BPF_TAX

	// portSlot is the scratch memory for the source port.
	portSlot = 0
	// hashIndex is an index beyond every group, so the kernel's hash chooses.
	hashIndex = 0xffffffff
)

// maxProgram is the maximum length of a program in instructions (BPF_MAXINSNS). net.core.optmem_max limits the size of
// the translated program: 20 KiB, the default before Linux 6.8, suffice for a quarter of maxProgram.
const maxProgram = 4096

// Upper bounds of a program's size in instructions: everything but the plans, a plan, and one of its ports.
const (
	baseSize = 64
	planSize = 20
	portSize = 3
)

// compileSelection returns a program of at most room instructions that implements s for the sockets of all lanes. It
// also returns the number of plans, from the first, that fit.
//
// The program depends only on the source's address and port. A choice by CPU (SKF_AD_CPU) or NIC
// queue would tie a lane to its interrupts' CPU. But it would also split a flow over two sockets,
// and reorder it, whenever the flow changes CPUs. On a veth a flow changes CPUs with its sender,
// on a NIC with the interrupt's affinity, RPS or flow steering.
func compileSelection(s *underlay.Selection, lanes, room int) (code []unix.SockFilter, plans int) {
	for room -= baseSize; plans < len(s.Plans) && room >= maxPlanSize(&s.Plans[plans]); plans++ {
		room -= maxPlanSize(&s.Plans[plans])
	}
	c := &compiler{program: newProgram(), lanes: lanes}
	c.sortPlans(s.Plans[:plans])
	hash := c.ret(hashIndex)
	other := c.rangeLane(s, hash)
	four, six := c.ipv4(other), c.ipv6(other, hash)
	six = c.branch(unix.BPF_JEQ, 6, six, hash)
	c.branch(unix.BPF_JEQ, 4, four, six)
	c.emit(compute|unix.BPF_RSH, 4)
	c.emit(loadByte, ipVersion)
	return c.instructions(), plans
}

// maxPlanSize returns the maximum size of a plan in instructions.
func maxPlanSize(p *underlay.Plan) int { return planSize + portSize*len(p.Ports) }

// maxProgramSize returns the maximum size of a program with these plans.
func maxProgramSize(plans []underlay.Plan) int {
	room := baseSize
	for i := range plans {
		room += maxPlanSize(&plans[i])
	}
	return room
}

type compiler struct {
	*program
	lanes       int
	plan4       []entry // by address
	plan6       []entry // by folded address
	plansByFold map[uint32][]underlay.Plan
}

// entry is an element of a sorted search list.
type entry struct {
	key  uint32
	plan underlay.Plan
}

func (e entry) compare(o entry) int { return cmp.Compare(e.key, o.key) }

// sortPlans sorts the plans into the search lists. Of two plans for one address it keeps the first.
func (c *compiler) sortPlans(plans []underlay.Plan) {
	seen := map[netip.Addr]bool{}
	c.plansByFold = map[uint32][]underlay.Plan{}
	for _, p := range plans {
		key, ipv4 := fold(p.From)
		switch {
		case seen[p.From] || !p.From.IsValid():
			continue
		case ipv4:
			c.plan4 = append(c.plan4, entry{key, p})
		case c.plansByFold[key] == nil:
			c.plan6 = append(c.plan6, entry{key, p})
		}
		seen[p.From] = true
		if !ipv4 {
			c.plansByFold[key] = append(c.plansByFold[key], p)
		}
	}
	slices.SortFunc(c.plan4, entry.compare)
	slices.SortFunc(c.plan6, entry.compare)
}

// fold returns an address as 32 bits. For IPv6 it is the XOR of the address's four 32-bit words.
func fold(a netip.Addr) (key uint32, ipv4 bool) {
	for _, word := range words(a) {
		key ^= word
	}
	return key, a.Is4()
}

func words(a netip.Addr) (list []uint32) {
	for b := a.AsSlice(); len(b) >= wordBytes; b = b[wordBytes:] {
		list = append(list, binary.BigEndian.Uint32(b))
	}
	return list
}

// rangeLane selects by the range, for ports without a plan.
func (c *compiler) rangeLane(s *underlay.Selection, hash label) label {
	if s.First == 0 || s.Last < s.First {
		return hash
	}
	c.emit(unix.BPF_RET|unix.BPF_A, 0)
	c.emit(compute|unix.BPF_MOD, uint32(c.lanes))
	inside := c.emit(compute|unix.BPF_SUB, uint32(s.First))
	below := c.branch(unix.BPF_JGT, uint32(s.Last), hash, inside)
	c.branch(unix.BPF_JGE, uint32(s.First), below, hash)
	return c.emit(unix.BPF_LD|unix.BPF_MEM, portSlot)
}

// ipv4 finds the ports behind the header's options.
func (c *compiler) ipv4(other label) label {
	c.search(c.plan4, other, func(k entry) label { return c.ports(k.plan.Ports, other) })
	c.emit(loadWord, ipv4Source)
	c.emit(unix.BPF_ST, portSlot)
	c.emit(unix.BPF_LD|unix.BPF_IND|unix.BPF_H, netOffset)
	c.emit(toIndex, 0)
	c.emit(compute|unix.BPF_LSH, 2)
	c.emit(compute|unix.BPF_AND, 0xf)
	return c.emit(loadByte, ipVersion)
}

// ipv6 leaves datagrams with extension headers to the hash: no WireGuard implementation sends them.
func (c *compiler) ipv6(other, hash label) label {
	c.search(c.plan6, other, func(k entry) label { return c.matchAddress(c.plansByFold[k.key], other) })
	for i := uint32(3); i > 0; i-- {
		c.emit(unix.BPF_ALU|unix.BPF_XOR|unix.BPF_X, 0)
		c.emit(loadWord, ipv6Source+i*wordBytes)
		c.emit(toIndex, 0)
	}
	c.emit(loadWord, ipv6Source)
	c.emit(unix.BPF_ST, portSlot)
	udp := c.emit(loadHalf, ipv6Ports)
	c.branch(unix.BPF_JEQ, unix.IPPROTO_UDP, udp, hash)
	return c.emit(loadByte, ipv6Next)
}

// matchAddress compares the whole address. Three of its words suffice, because the XOR of all four matches already.
func (c *compiler) matchAddress(plans []underlay.Plan, other label) label {
	next := other
	for _, p := range slices.Backward(plans) {
		same := c.ports(p.Ports, other)
		for i, word := range slices.Backward(words(p.From)[1:]) {
			c.branch(unix.BPF_JEQ, word, same, next)
			same = c.emit(loadWord, ipv6Source+uint32(i+1)*wordBytes)
		}
		next = same
	}
	return next
}

// ports finds the lane of a port in a plan.
func (c *compiler) ports(ports []uint16, other label) label {
	var list []entry
	place := map[uint32]int{}
	for i, port := range ports {
		if _, twice := place[uint32(port)]; !twice {
			place[uint32(port)] = i
			list = append(list, entry{key: uint32(port)})
		}
	}
	slices.SortFunc(list, entry.compare)
	c.search(list, other, func(k entry) label { return c.ret(uint32(place[k.key] % c.lanes)) })
	return c.emit(unix.BPF_LD|unix.BPF_MEM, portSlot)
}

// search finds the accumulator in a sorted list. It continues at found's label, or at miss.
func (c *compiler) search(list []entry, miss label, found func(entry) label) label {
	switch len(list) {
	case 0:
		return c.jump(miss)
	case 1:
		return c.branch(unix.BPF_JEQ, list[0].key, found(list[0]), miss)
	}
	middle := len(list) / 2
	low, high := c.search(list[:middle], miss, found), c.search(list[middle:], miss, found)
	return c.branch(unix.BPF_JGE, list[middle].key, high, low)
}
