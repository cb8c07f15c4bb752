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

// What the program reads. Its data begin with the UDP payload; SKF_NET_OFF leads to the IP header, which the kernel has
// made contiguous up to the end of the UDP header by then. Were a load to fail, the program would end with lane 0.
const (
	ipVersion  = netOffset + 0 // and, of IPv4, the header's length
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

	// portSlot is the scratch memory that holds the source port.
	portSlot = 0
	// byHash is an index that no group has: the kernel then chooses by its hash.
	byHash = 0xffffffff
)

// maxProgram is the longest program the kernel takes, in instructions (BPF_MAXINSNS). How much it may be once translated is
// net.core.optmem_max, of which 20 KiB, the default before Linux 6.8, hold a quarter of that.
const maxProgram = 4096

// The room of a program: what all but the plans takes, a plan and one of its ports, at the most.
const (
	roomFrame = 64
	roomPlan  = 20
	roomPort  = 3
)

// compileSelection returns the program that does what s says for a group of so many sockets, in at most room instructions,
// and for how many of the plans, from the first, they are enough.
//
// It depends on nothing but the source's address and port. A choice by CPU (SKF_AD_CPU) or NIC queue would tie a lane to
// where its interrupts are, but also split a flow over two sockets, and reorder it, whenever it changes CPUs: on a veth
// with its sender, on a NIC with the interrupt's affinity, RPS or flow steering.
func compileSelection(s *underlay.Selection, lanes, room int) (code []unix.SockFilter, plans int) {
	for room -= roomFrame; plans < len(s.Plans) && room >= roomOf(&s.Plans[plans]); plans++ {
		room -= roomOf(&s.Plans[plans])
	}
	c := &compiler{program: newProgram(), lanes: lanes}
	c.sort(s.Plans[:plans])
	hash := c.ret(byHash)
	other := c.byRange(s, hash)
	four, six := c.ipv4(other), c.ipv6(other, hash)
	six = c.branch(unix.BPF_JEQ, 6, six, hash)
	c.branch(unix.BPF_JEQ, 4, four, six)
	c.put(compute|unix.BPF_RSH, 4)
	c.put(loadByte, ipVersion)
	return c.assembled(), plans
}

// roomOf is what a plan takes, at the most.
func roomOf(p *underlay.Plan) int { return roomPlan + roomPort*len(p.Ports) }

// roomOfAll is what a program with these plans takes, at the most.
func roomOfAll(plans []underlay.Plan) int {
	room := roomFrame
	for i := range plans {
		room += roomOf(&plans[i])
	}
	return room
}

type compiler struct {
	*program
	lanes      int
	plan4      []keyed // by address
	plan6      []keyed // by folded address
	sameFolded map[uint32][]underlay.Plan
}

// keyed is what a search finds.
type keyed struct {
	key  uint32
	plan underlay.Plan
}

func (k keyed) compare(o keyed) int { return cmp.Compare(k.key, o.key) }

// sort files the plans; of two for one address it keeps the first.
func (c *compiler) sort(plans []underlay.Plan) {
	seen := map[netip.Addr]bool{}
	c.sameFolded = map[uint32][]underlay.Plan{}
	for _, p := range plans {
		key, ipv4 := fold(p.From)
		switch {
		case seen[p.From] || !p.From.IsValid():
			continue
		case ipv4:
			c.plan4 = append(c.plan4, keyed{key, p})
		case c.sameFolded[key] == nil:
			c.plan6 = append(c.plan6, keyed{key, p})
		}
		seen[p.From] = true
		if !ipv4 {
			c.sameFolded[key] = append(c.sameFolded[key], p)
		}
	}
	slices.SortFunc(c.plan4, keyed.compare)
	slices.SortFunc(c.plan6, keyed.compare)
}

// fold returns an address as one word: of IPv6, the sum of its words without carry.
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

// byRange is for what no plan knows.
func (c *compiler) byRange(s *underlay.Selection, hash label) label {
	if s.First == 0 || s.Last < s.First {
		return hash
	}
	c.put(unix.BPF_RET|unix.BPF_A, 0)
	c.put(compute|unix.BPF_MOD, uint32(c.lanes))
	inside := c.put(compute|unix.BPF_SUB, uint32(s.First))
	below := c.branch(unix.BPF_JGT, uint32(s.Last), hash, inside)
	c.branch(unix.BPF_JGE, uint32(s.First), below, hash)
	return c.put(unix.BPF_LD|unix.BPF_MEM, portSlot)
}

// ipv4 finds the ports behind the header's options.
func (c *compiler) ipv4(other label) label {
	c.search(c.plan4, other, func(k keyed) label { return c.ports(k.plan.Ports, other) })
	c.put(loadWord, ipv4Source)
	c.put(unix.BPF_ST, portSlot)
	c.put(unix.BPF_LD|unix.BPF_IND|unix.BPF_H, netOffset)
	c.put(toIndex, 0)
	c.put(compute|unix.BPF_LSH, 2)
	c.put(compute|unix.BPF_AND, 0xf)
	return c.put(loadByte, ipVersion)
}

// ipv6 leaves datagrams with extension headers to the hash: no WireGuard sends them.
func (c *compiler) ipv6(other, hash label) label {
	c.search(c.plan6, other, func(k keyed) label { return c.sameFold(c.sameFolded[k.key], other) })
	for i := uint32(3); i > 0; i-- {
		c.put(unix.BPF_ALU|unix.BPF_XOR|unix.BPF_X, 0)
		c.put(loadWord, ipv6Source+i*wordBytes)
		c.put(toIndex, 0)
	}
	c.put(loadWord, ipv6Source)
	c.put(unix.BPF_ST, portSlot)
	udp := c.put(loadHalf, ipv6Ports)
	c.branch(unix.BPF_JEQ, unix.IPPROTO_UDP, udp, hash)
	return c.put(loadByte, ipv6Next)
}

// sameFold looks at the whole address: at three of its words, as the sum of all is right already.
func (c *compiler) sameFold(plans []underlay.Plan, other label) label {
	next := other
	for _, p := range slices.Backward(plans) {
		same := c.ports(p.Ports, other)
		for i, word := range slices.Backward(words(p.From)[1:]) {
			c.branch(unix.BPF_JEQ, word, same, next)
			same = c.put(loadWord, ipv6Source+uint32(i+1)*wordBytes)
		}
		next = same
	}
	return next
}

// ports finds the lane of a port in a plan.
func (c *compiler) ports(ports []uint16, other label) label {
	var list []keyed
	place := map[uint32]int{}
	for i, port := range ports {
		if _, twice := place[uint32(port)]; !twice {
			place[uint32(port)] = i
			list = append(list, keyed{key: uint32(port)})
		}
	}
	slices.SortFunc(list, keyed.compare)
	c.search(list, other, func(k keyed) label { return c.ret(uint32(place[k.key] % c.lanes)) })
	return c.put(unix.BPF_LD|unix.BPF_MEM, portSlot)
}

// search finds the accumulator in a sorted list, and goes on as found says, or to miss.
func (c *compiler) search(list []keyed, miss label, found func(keyed) label) label {
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
