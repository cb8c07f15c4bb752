// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

// sameFold returns addresses with the same fold: those of a prefix, with their words in another order, and with bits
// that cancel out.
func sameFold() (list []netip.Addr) {
	for _, s := range []string{
		"fd00:0:1:2:3:4:5:6", "fd00::3:4:1:2:5:6", "fd00::5:6:1:2:3:4", "fd00::1:2:5:6:3:4", "fd00:0:1:2:3:5:5:7", "fd00:0:8001:2:3:4:8005:6",
		"fd00:8:1:a:3:4:5:6", "fd00:8:1:2:3:c:5:6", "fd00:8:1:2:3:4:5:e", // any two words differ
	} {
		list = append(list, netip.MustParseAddr(s))
	}
	return list
}

func TestProgramDistinguishesAddressesWithEqualFold(t *testing.T) {
	s := underlay.Selection{First: 61000, Last: 61999}
	for i, from := range sameFold() {
		if key, _ := fold(from); i > 0 {
			if first, _ := fold(s.Plans[0].From); key != first {
				t.Fatalf("%v has another fold", from)
			}
		}
		s.Plans = append(s.Plans, underlay.Plan{From: from, Ports: append(slices.Repeat([]uint16{9}, i), 1, 61000, 65535)})
	}
	s.Plans[3].Ports = nil
	for n := range s.Plans { // the last of them may have no plan
		part := s
		part.Plans = s.Plans[n:]
		checkProgram(t, &part, MaxLanes, maxProgram, 0)
		part.Plans = s.Plans[:n]
		checkProgram(t, &part, MaxLanes, maxProgram, 0)
	}
}

func TestProgramSelectsAtTheEdges(t *testing.T) {
	check := func(first, last uint16, ports []uint16) {
		home := netip.MustParseAddr("127.0.0.1")
		for _, lanes := range []int{2, MaxLanes} {
			checkProgram(t, &underlay.Selection{First: first, Last: last, Plans: []underlay.Plan{
				{},
				{From: home, Ports: ports},
				{From: netip.IPv6Loopback(), Ports: ports},
				{From: home, Ports: []uint16{7}},
				{From: netip.MustParseAddr("::ffff:127.0.0.1"), Ports: []uint16{8}}, // no datagram comes from there
			}}, lanes, maxProgram, 10)
		}
	}
	for _, ends := range [][2]uint16{{0, 0}, {0, 65535}, {1, 1}, {1, 65535}, {65535, 65535}, {2, 1}, {65535, 1}, {1, 0}} {
		for _, ports := range [][]uint16{nil, {0}, {1}, {65535, 1}, {1, 1, 65535, 1, 65535}} {
			check(ends[0], ends[1], ports)
		}
	}
	long := make([]uint16, 1000)
	for i := range long {
		long[i] = uint16(65535 - i)
	}
	check(1, 65535, long)
	check(1, 65535, slices.Repeat([]uint16{9}, 1000))
}

// TestProgramSizeStaysWithinBound has the maximum of ports, and of addresses with equal folds.
func TestProgramSizeStaysWithinBound(t *testing.T) {
	const reckoned = 1 << 20
	addrs := map[string]func(i int) netip.Addr{
		"IPv4": func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) },
		"IPv6": func(i int) netip.Addr { return netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)}) },
		"IPv6 folded into one word": func(i int) netip.Addr {
			return netip.AddrFrom16([16]byte{0: 0xfd, 10: byte(i >> 8), 11: byte(i), 14: byte(i >> 8), 15: byte(i)})
		},
	}
	for name, addr := range addrs {
		for _, shape := range [][2]int{{1, 0}, {1, 1}, {1, 2}, {1, 60}, {1, 90}, {1, 1000}, {1, 1330}, {200, 0}, {170, 1}, {128, 4}, {50, 20}, {19, 64}, {4, 330}} {
			s := underlay.Selection{First: 1, Last: 65535}
			for i := range shape[0] {
				p := underlay.Plan{From: addr(i)}
				for place := range shape[1] {
					p.Ports = append(p.Ports, uint16(65535-7*place))
				}
				s.Plans = append(s.Plans, p)
			}
			code, _ := compileSelection(&s, MaxLanes, reckoned)
			if most := maxProgramSize(s.Plans); len(code) > most {
				t.Errorf("%s: %d plans of %d ports take %d instructions, the bound is %d", name, shape[0], shape[1], len(code), most)
			}
		}
	}
}

// TestKernelSelectionMatchesGoModel compares the kernel with Selection.Lane, for the many addresses of a loopback
// device. Each selection has a port of its own, so that no kernel has to replace one.
func TestKernelSelectionMatchesGoModel(t *testing.T) {
	requireNamespace(t)
	rng := rand.New(rand.NewPCG(13, 14))
	addrs := sameFold()
	lo, err := netlink.LinkByName("lo")
	expect.NoError(t, err)
	for _, a := range addrs {
		expect.NoError(t, netlink.AddrAdd(lo, &netlink.Addr{
			IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(128, 128)}, Flags: unix.IFA_F_NODAD,
		}))
	}
	for i := range 6 {
		addrs = append(addrs, netip.AddrFrom4([4]byte{127, byte(i / 2), 0, byte(i%2 + 1)}))
	}
	for range 6 {
		lanes := rng.IntN(20) + 2
		p := open(t, Config{Lanes: lanes})
		came := listen(p)
		s := defaultRange()
		for _, from := range addrs[:rng.IntN(len(addrs)+1)] {
			ports := []uint16{1, 65535}
			for range rng.IntN(40) {
				ports = append(ports, spread.DefaultPorts.First+uint16(rng.IntN(60)))
			}
			rng.Shuffle(len(ports), func(i, j int) { ports[i], ports[j] = ports[j], ports[i] })
			s.Plans = append(s.Plans, underlay.Plan{From: from, Ports: ports})
		}
		rng.Shuffle(len(s.Plans), func(i, j int) { s.Plans[i], s.Plans[j] = s.Plans[j], s.Plans[i] })
		selectLanes(t, p, s)
		for range 40 {
			from := netip.AddrPortFrom(addrs[rng.IntN(len(addrs))], spread.DefaultPorts.First+uint16(rng.IntN(60)))
			if rng.IntN(4) == 0 {
				from = netip.AddrPortFrom(from.Addr(), []uint16{1, 2, 60999, 61999, 62000, 65535}[rng.IntN(6)])
			}
			sendFrom(t, from, p.LocalPort())
			got := next(t, came)
			if want, ok := s.Lane(from, lanes); got.from != from || ok && got.lane != want {
				t.Fatalf("%v of %d lanes: got %+v, want lane %d by %+v", from, lanes, got, want, s)
			}
		}
	}
}

// sendFrom sends a byte to the loopback address of the sender's family.
func sendFrom(t *testing.T, from netip.AddrPort, to uint16) {
	t.Helper()
	home := netip.IPv6Loopback()
	if from.Addr().Is4() {
		home = netip.MustParseAddr("127.0.0.1")
	}
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(netip.AddrPortFrom(home, to)))
	expect.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte("x"))
	expect.NoError(t, err)
}

// TestPlanWithoutRoomDisplacesNoOther: when the kernel has no memory for a larger program, the last plan is left out.
func TestPlanWithoutRoomDisplacesNoOther(t *testing.T) {
	requireReplaceable(t)
	requireNamespace(t)
	const limit = "/proc/sys/net/core/optmem_max"
	if _, err := os.Stat(limit); err != nil {
		t.Skipf("needs a limit per network namespace (Linux 6.8): %v", err)
	}
	if err := os.WriteFile(limit, []byte("10000"), 0); err != nil {
		t.Skipf("needs root: %v", err)
	}
	p := open(t, Config{Lanes: 8})
	s, before := defaultRange(), 0
	for i := range 40 {
		ports := make([]uint16, 16)
		for place := range ports {
			ports[place] = spread.DefaultPorts.First + uint16(i+5*place)
		}
		s.Plans = append(s.Plans, underlay.Plan{From: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Ports: ports})
		plans, err := p.SetSelection(s)
		expect.NoError(t, err)
		if plans < before {
			t.Fatalf("%d of %d plans have room, %d had before the last one came", plans, len(s.Plans), before)
		}
		before = plans
	}
	if before == 0 || before == len(s.Plans) {
		t.Errorf("%d of %d plans fit: the limit was not reached", before, len(s.Plans))
	}
}
