// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// interpret runs a program as in Documentation/networking/filter.rst, on a packet that begins with its IP header. It
// makes the checks of the kernel's bpf_check_classic. Loads beyond the packet are errors; the kernel returns 0 for
// them.
func interpret(code []unix.SockFilter, packet []byte) (uint32, error) {
	var a, x uint32
	var memory [unix.BPF_MEMWORDS]uint32
	for pc, steps := 0, 0; pc < len(code); pc++ {
		if steps++; steps > len(code) {
			return 0, errors.New("it goes backwards")
		}
		i := code[pc]
		switch i.Code {
		case unix.BPF_LD | unix.BPF_ABS | unix.BPF_B, unix.BPF_LD | unix.BPF_ABS | unix.BPF_H, unix.BPF_LD | unix.BPF_ABS | unix.BPF_W,
			unix.BPF_LD | unix.BPF_IND | unix.BPF_H:
			at := i.K
			if i.Code&unix.BPF_IND != 0 {
				at += x
			}
			size := map[uint16]int{unix.BPF_B: 1, unix.BPF_H: 2, unix.BPF_W: 4}[i.Code&0x18]
			offset := int(at) - 0xfff00000 // SKF_NET_OFF
			if offset < 0 || offset+size > len(packet) {
				return 0, fmt.Errorf("instruction %d loads %d bytes at %d of %d", pc, size, offset, len(packet))
			}
			var word [4]byte
			copy(word[4-size:], packet[offset:offset+size])
			a = binary.BigEndian.Uint32(word[:])
		case unix.BPF_LD | unix.BPF_MEM:
			a = memory[i.K]
		case unix.BPF_ST:
			memory[i.K] = a
		case unix.BPF_MISC | unix.BPF_TAX:
			x = a
		case unix.BPF_ALU | unix.BPF_AND:
			a &= i.K
		case unix.BPF_ALU | unix.BPF_LSH:
			a <<= i.K
		case unix.BPF_ALU | unix.BPF_RSH:
			a >>= i.K
		case unix.BPF_ALU | unix.BPF_SUB:
			a -= i.K
		case unix.BPF_ALU | unix.BPF_MOD:
			a %= i.K
		case unix.BPF_ALU | unix.BPF_XOR | unix.BPF_X:
			a ^= x
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(i.K)
		case unix.BPF_JMP | unix.BPF_JEQ, unix.BPF_JMP | unix.BPF_JGT, unix.BPF_JMP | unix.BPF_JGE:
			taken := map[uint16]bool{unix.BPF_JEQ: a == i.K, unix.BPF_JGT: a > i.K, unix.BPF_JGE: a >= i.K}[i.Code&0xf0]
			if taken {
				pc += int(i.Jt)
			} else {
				pc += int(i.Jf)
			}
		case unix.BPF_RET | unix.BPF_K:
			return i.K, nil
		case unix.BPF_RET | unix.BPF_A:
			return a, nil
		default:
			return 0, fmt.Errorf("instruction %d is %+v", pc, i)
		}
	}
	return 0, errors.New("it runs off its end")
}

// packetFrom returns the part of a datagram that the program sees: its IP header, with so many words of options, and
// its ports.
func packetFrom(from netip.AddrPort, options int) []byte {
	var b []byte
	if from.Addr().Is4() {
		b = make([]byte, 20+4*options)
		b[0] = 0x45 + byte(options)
		copy(b[12:], from.Addr().AsSlice())
	} else {
		b = make([]byte, 40)
		b[0], b[6] = 0x60, unix.IPPROTO_UDP
		copy(b[8:], from.Addr().AsSlice())
	}
	return binary.BigEndian.AppendUint16(b, from.Port())
}

// checkProgram compares a program with Selection.Lane for all addresses and ports of a selection, and their neighbours.
func checkProgram(t testing.TB, s *underlay.Selection, lanes, room, options int) (size int) {
	t.Helper()
	code, plans := compileSelection(s, lanes, room)
	if len(code) > maxProgram || len(code) > room {
		t.Fatalf("%d instructions, room for %d", len(code), room)
	}
	admitted := *s
	admitted.Plans = s.Plans[:plans]
	ports := []uint16{0, 1, 51820, 65535, s.First, s.First - 1, s.First + 1, s.Last, s.Last + 1}
	addrs := []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.IPv6Loopback(), netip.IPv6Unspecified()}
	for _, p := range s.Plans {
		if p.From.IsValid() {
			addrs = append(addrs, p.From, p.From.Next())
		}
		ports = append(ports, p.Ports...)
	}
	if len(addrs)*len(ports) > 1<<12 { // a sufficient sample
		rand.Shuffle(len(ports), func(i, j int) { ports[i], ports[j] = ports[j], ports[i] })
		ports = ports[:max(1, 1<<12/len(addrs))]
	}
	for _, addr := range addrs {
		for _, port := range ports {
			if !addr.IsValid() {
				continue
			}
			from := netip.AddrPortFrom(addr, port)
			got, err := interpret(code, packetFrom(from, options))
			want, ok := admitted.Lane(from, lanes)
			if !ok {
				want = hashIndex
			}
			if err != nil || got != uint32(want) {
				t.Fatalf("%v of %d lanes: got %d, %v; want %d by %+v", from, lanes, int32(got), err, int32(want), admitted)
			}
		}
	}
	return len(code)
}

// randomSelection returns plans with similar addresses, some of which have the same fold.
func randomSelection(rng *rand.Rand, plans, ports int) underlay.Selection {
	s := underlay.Selection{First: uint16(rng.Uint32()), Last: uint16(rng.Uint32())}
	for range plans {
		b := make([]byte, 4)
		if rng.IntN(2) == 0 {
			b = make([]byte, 16)
		}
		for range 4 {
			b[rng.IntN(len(b))] ^= byte(rng.IntN(3))
		}
		from, _ := netip.AddrFromSlice(b)
		if from.Is4In6() {
			continue
		}
		p := underlay.Plan{From: from}
		for range ports {
			p.Ports = append(p.Ports, s.First+uint16(rng.IntN(2000)))
		}
		s.Plans = append(s.Plans, p)
	}
	return s
}

func TestProgramMatchesGoModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		s := randomSelection(rng, rng.IntN(12), rng.IntN(70))
		for _, lanes := range []int{2, 3, 8, MaxLanes} {
			checkProgram(t, &s, lanes, maxProgram, rng.IntN(11))
		}
	}
}

func TestProgramIsNeverTooLong(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, shape := range []struct{ plans, ports, fit int }{
		{300, 2, 150}, {300, 8, 90}, {300, 16, 59}, {100, 64, 19}, {3, 255, 3}, {3, 5000, 0}, {0, 0, 0},
	} {
		s := randomSelection(rng, shape.plans, shape.ports)
		for _, lanes := range []int{2, 8, 64, MaxLanes} {
			for _, room := range []int{maxProgram, 1000, baseSize} {
				_, plans := compileSelection(&s, lanes, room)
				size := checkProgram(t, &s, lanes, room, 0)
				t.Logf("%d of %d plans of %d ports, %d lanes: %d of %d instructions", plans, len(s.Plans), shape.ports, lanes, size, room)
				if room == maxProgram && plans < min(shape.fit, len(s.Plans)) {
					t.Errorf("got %d plans of %d ports fit, want %d", plans, shape.ports, shape.fit)
				}
			}
		}
	}
}

// TestLaterPlansDoNotDisplaceEarlierOnes adds plans one by one.
func TestLaterPlansDoNotDisplaceEarlierOnes(t *testing.T) {
	s := randomSelection(rand.New(rand.NewPCG(5, 6)), 300, 16)
	before := 0
	for n := range s.Plans {
		part := s
		part.Plans = s.Plans[:n+1]
		_, plans := compileSelection(&part, 8, maxProgram)
		if plans < before {
			t.Fatalf("%d of %d plans have room, before the last %d had", plans, n+1, before)
		}
		before = plans
	}
}

func TestUnreadablePacketsAreLeftToHash(t *testing.T) {
	s := underlay.Selection{First: 1, Last: 65535, Plans: []underlay.Plan{{From: netip.IPv6Loopback(), Ports: []uint16{7}}}}
	code, _ := compileSelection(&s, 4, maxProgram)
	for name, change := range map[string]func(b []byte){
		"an extension header": func(b []byte) { b[6] = unix.IPPROTO_DSTOPTS },
		"a fragment":          func(b []byte) { b[6] = unix.IPPROTO_FRAGMENT },
		"another version":     func(b []byte) { b[0] = 0x50 },
	} {
		b := packetFrom(netip.AddrPortFrom(netip.IPv6Loopback(), 7), 0)
		if got, err := interpret(code, b); got != 0 || err != nil {
			t.Fatalf("got lane %d, error %v, want no error", int32(got), err)
		}
		change(b)
		if got, err := interpret(code, b); got != hashIndex || err != nil {
			t.Errorf("%s: got lane %d, error %v, want no error", name, int32(got), err)
		}
	}
}

// FuzzSelectionProgram decodes a selection from bytes: a range, then plans.
func FuzzSelectionProgram(f *testing.F) {
	f.Add(uint8(4), uint16(0), []byte{0xee, 0x48, 0xf2, 0x2f, 4, 3, 10, 0, 0, 1, 0xee, 0x49, 0xee, 0x48, 0xee, 0x48})
	f.Add(uint8(2), uint16(4096), slices.Repeat([]byte{16, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1}, 30))
	f.Add(uint8(255), uint16(200), make([]byte, 400))
	f.Fuzz(func(t *testing.T, lanes uint8, room uint16, b []byte) {
		take := func(n int) []byte {
			part := make([]byte, n)
			b = b[copy(part, b):]
			return part
		}
		s := underlay.Selection{First: binary.BigEndian.Uint16(take(2)), Last: binary.BigEndian.Uint16(take(2))}
		for len(b) > 2 && len(s.Plans) < 200 {
			size, ports := int(take(1)[0])%2*12+4, int(take(1)[0])%100
			from, _ := netip.AddrFromSlice(take(size))
			if from.Is4In6() {
				continue
			}
			p := underlay.Plan{From: from}
			for range ports {
				p.Ports = append(p.Ports, binary.BigEndian.Uint16(take(2)))
			}
			s.Plans = append(s.Plans, p)
		}
		checkProgram(t, &s, max(int(lanes), 2), min(max(int(room), baseSize), maxProgram), int(room)%11)
	})
}
