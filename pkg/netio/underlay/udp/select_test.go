// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

// arrival is an element and its lane.
type arrival struct {
	lane int
	from netip.AddrPort
	size int
}

// listen receives on each lane of p.
func listen(p *Port) <-chan arrival {
	came := make(chan arrival, 4096)
	for lane := range p.Lanes() {
		go func() {
			rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
			for {
				if _, err := p.Lane(lane).Recv(rx); err != nil {
					return
				}
				came <- arrival{lane, rx[0].From.Dst, rx[0].N}
			}
		}()
	}
	return came
}

func next(t testing.TB, came <-chan arrival) arrival {
	t.Helper()
	select {
	case a := <-came:
		return a
	case <-time.After(20 * time.Second):
		t.Fatal("a datagram did not arrive")
	}
	return arrival{}
}

func selectLanes(t testing.TB, p *Port, s *underlay.Selection) {
	t.Helper()
	if plans, err := p.SetSelection(s); err != nil || plans != len(s.Plans) {
		t.Fatalf("SetSelection has room for %d of %d plans, %v", plans, len(s.Plans), err)
	}
}

// requireReplaceable skips tests that replace a program on kernels where this is unsafe.
func requireReplaceable(t testing.TB) {
	t.Helper()
	if release, version := kernel.Uname(); !selectionReplaceable(release, version) {
		t.Skipf("Linux %s is not known to free reuseport programs in time (CVE-2026-52910)", release)
	}
}

func defaultRange() *underlay.Selection {
	return &underlay.Selection{First: spread.DefaultPorts.First, Last: spread.DefaultPorts.Last}
}

// TestLanesAreNumberedInBindOrder also opens the port again, and opens other sockets in between.
func TestLanesAreNumberedInBindOrder(t *testing.T) {
	requireNamespace(t)
	a := open(t, Config{})
	for openSource(t, a) < 16 {
	}
	port := uint16(0)
	for _, lanes := range []int{2, 16, 5, 16} {
		p := open(t, Config{Port: port, Lanes: lanes})
		port = p.LocalPort()
		came := listen(p)
		selectLanes(t, p, defaultRange())
		openSource(t, p)
		for _, ipv6 := range []bool{false, true} {
			to := loopback(p, ipv6)
			for source := 1; source <= 16; source++ {
				r := underlay.Run{To: &to, Parts: [][]byte{{1}}, Segments: 1, Source: source}
				if err := a.SendRun(&r); err != nil {
					t.Fatal(err)
				}
				want := int(a.Source(source)-spread.DefaultPorts.First) % lanes
				if got := next(t, came); got.lane != want {
					t.Errorf("%d lanes, ipv6 %v: port %d arrives at lane %d, want %d", lanes, ipv6, a.Source(source), got.lane, want)
				}
			}
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// runOn binds the test's thread, which ends with it, to a CPU.
func runOn(t *testing.T, cpu int) {
	t.Helper()
	var one unix.CPUSet
	one.Set(cpu)
	expect.NoError(t, unix.SchedSetaffinity(0, &one))
}

// TestFlowStaysOnItsLaneOnAnyCPU shows why lanes are not chosen by CPU. On the loopback, as on a veth, a datagram
// arrives on the sender's CPU, and the scheduler moves senders.
func TestFlowStaysOnItsLaneOnAnyCPU(t *testing.T) {
	requireNamespace(t)
	cpus := allowedCPUs(t)
	if len(cpus) < 2 {
		t.Skip("needs two CPUs")
	}
	a := open(t, Config{})
	source := openSource(t, a)
	lanes := func(choose func(p *Port)) (seen [2]int) {
		p := open(t, Config{Lanes: 2})
		choose(p)
		came, to := listen(p), loopback(p, false)
		for _, cpu := range []int{cpus[0], cpus[1], cpus[0]} {
			runOn(t, cpu)
			for range 10 {
				r := underlay.Run{To: &to, Parts: [][]byte{{1}}, Segments: 1, Source: source}
				if err := a.SendRun(&r); err != nil {
					t.Fatal(err)
				}
				seen[next(t, came).lane]++
			}
		}
		return seen
	}
	if got := lanes(func(p *Port) { selectLanes(t, p, defaultRange()) }); slices.Max(got[:]) != 30 {
		t.Errorf("by port, the lanes got %v datagrams of one flow", got)
	}
	byCPU := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0xfffff000 + 36}, // SKF_AD_OFF + SKF_AD_CPU
		{Code: unix.BPF_JMP | unix.BPF_JEQ, K: uint32(cpus[0]), Jt: 0, Jf: 1},
		{Code: unix.BPF_RET, K: 0},
		{Code: unix.BPF_RET, K: 1},
	}
	if got := lanes(func(p *Port) { expect.NoError(t, p.attachProgram(byCPU)) }); got != [2]int{20, 10} {
		t.Errorf("by CPU, the lanes got %v datagrams, want 20 and 10: then it could be used", got)
	}
}

func allowedCPUs(t *testing.T) (list []int) {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	for cpu := range 1024 {
		if set.IsSet(cpu) {
			list = append(list, cpu)
		}
	}
	return list
}

// TestSelectsByPortBehindIPv4Options: the header's length field gives the offset of the source port.
func TestSelectsByPortBehindIPv4Options(t *testing.T) {
	requireNamespace(t)
	p := open(t, Config{Lanes: 4})
	came := listen(p)
	selectLanes(t, p, defaultRange())
	for words := range 11 {
		c := dial(t, "udp4", 61003, p.LocalPort())
		nops := string(slices.Repeat([]byte{1}, 4*words))
		control(t, c, func(fd int) error { return unix.SetsockoptString(fd, unix.SOL_IP, unix.IP_OPTIONS, nops) })
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if got := next(t, came); got.lane != 3 || got.from.Port() != 61003 {
			t.Errorf("%d words of options: got %+v, want lane 3", words, got)
		}
		c.Close()
	}
}

// TestIPv6WithExtensionHeadersArrives: the hash chooses the lane.
func TestIPv6WithExtensionHeadersArrives(t *testing.T) {
	requireNamespace(t)
	p := open(t, Config{Lanes: 4})
	came := listen(p)
	selectLanes(t, p, defaultRange())
	c := dial(t, "udp6", 61003, p.LocalPort())
	defer c.Close()
	write := func() arrival {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		return next(t, came)
	}
	if got := write(); got.lane != 3 {
		t.Errorf("without: got %+v, want lane 3", got)
	}
	padding := string([]byte{0, 0, 1, 4, 0, 0, 0, 0}) // eight bytes with a PadN (RFC 8200, section 4.2)
	control(t, c, func(fd int) error { return unix.SetsockoptString(fd, unix.SOL_IPV6, unix.IPV6_DSTOPTS, padding) })
	first := write()
	for range 5 {
		if got := write(); got != first {
			t.Errorf("%+v, then %+v", first, got)
		}
	}
}

func dial(t *testing.T, network string, from, to uint16) *net.UDPConn {
	t.Helper()
	ip := net.IPv4(127, 0, 0, 1)
	if network == "udp6" {
		ip = net.IPv6loopback
	}
	c, err := net.DialUDP(network, &net.UDPAddr{IP: ip, Port: int(from)}, &net.UDPAddr{IP: ip, Port: int(to)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func control(t *testing.T, c *net.UDPConn, set func(fd int) error) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var setErr error
	if err := errors.Join(raw.Control(func(fd uintptr) { setErr = set(int(fd)) }), setErr); err != nil {
		t.Fatal(err)
	}
}

// TestFragmentsArriveAtTheirLane: the kernel selects after reassembly.
func TestFragmentsArriveAtTheirLane(t *testing.T) {
	requireNamespace(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetMTU(lo, 1400); err != nil {
		t.Fatal(err)
	}
	a := open(t, Config{})
	source := openSource(t, a)
	want := int(a.Source(source)-spread.DefaultPorts.First+1) % 4 // not the lane without a plan
	for _, ipv6 := range []bool{false, true} {
		p := open(t, Config{Lanes: 4})
		came, to := listen(p), loopback(p, ipv6)
		s := defaultRange()
		s.Plans = []underlay.Plan{{From: to.Dst.Addr(), Ports: append(make([]uint16, want), a.Source(source))}}
		selectLanes(t, p, s)
		r := underlay.Run{To: &to, Parts: [][]byte{make([]byte, 9000)}, Segments: 1, Source: source}
		if err := a.SendRun(&r); err != nil {
			t.Fatal(err)
		}
		if got := next(t, came); got.lane != want || got.size != len(r.Parts[0]) {
			t.Errorf("ipv6 %v: got %+v, want lane %d", ipv6, got, want)
		}
	}
}

// TestPlansBeyondKernelMemoryAreDropped: net.core.optmem_max bounds the translated program.
func TestPlansBeyondKernelMemoryAreDropped(t *testing.T) {
	requireReplaceable(t)
	requireNamespace(t)
	const limit = "/proc/sys/net/core/optmem_max"
	if _, err := os.Stat(limit); err != nil {
		t.Skipf("needs a limit per network namespace (Linux 6.8): %v", err)
	}
	p := open(t, Config{Lanes: 8})
	many := randomSelection(rand.New(rand.NewPCG(7, 8)), 300, 16)
	many.First, many.Last = spread.DefaultPorts.First, spread.DefaultPorts.Last
	before := maxProgram
	for _, bytes := range []string{"131072", "20480", "10000", "3000"} {
		if err := os.WriteFile(limit, []byte(bytes), 0); err != nil {
			t.Skipf("needs root: %v", err)
		}
		plans, err := p.SetSelection(&many)
		if err != nil || plans == 0 || plans >= before || !p.Features().Select {
			t.Errorf("%s bytes: got room for %d plans after %d, error %v", bytes, plans, before, err)
		}
		t.Logf("%s bytes have room for %d plans of 16 ports", bytes, plans)
		before = plans
	}
	if err := os.WriteFile(limit, []byte("100"), 0); err != nil {
		t.Fatal(err)
	}
	if plans, err := p.SetSelection(&many); !errors.Is(err, unix.ENOMEM) || plans != 0 || p.Features().Select {
		t.Errorf("without room: %d plans, %v, Select %v", plans, err, p.Features().Select)
	}
	// The former selection is gone too: its range maps all of these to lane 0.
	came := listen(p)
	seen := map[int]bool{}
	for port := range uint16(64) {
		c := dial(t, "udp4", 61000+8*port, p.LocalPort())
		_, err := c.Write([]byte("x"))
		if err := errors.Join(err, c.Close()); err != nil {
			t.Fatal(err)
		}
		seen[next(t, came).lane] = true
	}
	if len(seen) < 2 {
		t.Errorf("64 flows by hash arrive at lanes %v", seen)
	}
}

// TestFirstSelectionStaysOnUnsafeKernels: the selection is neither replaced nor removed.
func TestFirstSelectionStaysOnUnsafeKernels(t *testing.T) {
	requireNamespace(t)
	a, p := open(t, Config{}), open(t, Config{Lanes: 4})
	for openSource(t, a) < 9 {
	}
	p.selectionReplaceable = false
	came, to := listen(p), loopback(p, false)
	expect := func(when string) {
		t.Helper()
		for source := 1; source <= 9; source++ {
			r := underlay.Run{To: &to, Parts: [][]byte{{1}}, Segments: 1, Source: source}
			expect.NoError(t, a.SendRun(&r))
			want := int(a.Source(source)-spread.DefaultPorts.First) % 4
			if got := next(t, came); got.lane != want {
				t.Errorf("%s: port %d arrives at lane %d, want %d", when, a.Source(source), got.lane, want)
			}
		}
		if !p.Features().Select {
			t.Errorf("%s: Features says that nothing is selected", when)
		}
	}
	if plans, err := p.SetSelection(&underlay.Selection{}); plans != 0 || err != nil || p.Features().Select {
		t.Fatalf("nothing after nothing: got %d, error %v, want 0, no error", plans, err)
	}
	selectLanes(t, p, defaultRange())
	expect("the first")
	selectLanes(t, p, defaultRange())
	expect("the same")
	planned := defaultRange()
	planned.Plans = []underlay.Plan{{From: to.Dst.Addr(), Ports: []uint16{1, a.Source(1), a.Source(2)}}}
	for name, s := range map[string]*underlay.Selection{
		"nothing": {}, "a plan": planned, "another range": {First: 61001, Last: 61999},
	} {
		if plans, err := p.SetSelection(s); plans != 0 || !errors.Is(err, underlay.ErrSelectionFixed) {
			t.Errorf("%s: got %d, error %v, want 0, %v", name, plans, err, underlay.ErrSelectionFixed)
		}
		expect(name)
	}
}

// TestReorderedPlansAreSameSelection: a process that takes over the sockets may add its peers in another order.
func TestReorderedPlansAreSameSelection(t *testing.T) {
	requireNamespace(t)
	p := open(t, Config{Lanes: 4})
	p.selectionReplaceable = false
	at := func(last byte, port uint16) underlay.Plan {
		return underlay.Plan{From: netip.AddrFrom4([4]byte{192, 0, 2, last}), Ports: []uint16{port}}
	}
	of := func(plans ...underlay.Plan) *underlay.Selection {
		s := defaultRange()
		s.Plans = plans
		return s
	}
	selectLanes(t, p, of(at(1, 61001), at(2, 61002), at(2, 61003)))
	selectLanes(t, p, of(at(2, 61002), at(2, 61003), at(1, 61001)))
	for name, s := range map[string]*underlay.Selection{
		"for one address": of(at(1, 61001), at(2, 61003), at(2, 61002)), // the first counts
		"fewer":           of(at(2, 61002), at(1, 61001)),
		"other ports":     of(at(1, 61001), at(2, 61002), at(2, 61004)),
	} {
		if plans, err := p.SetSelection(s); plans != 0 || !errors.Is(err, underlay.ErrSelectionFixed) {
			t.Errorf("%s: got %d, error %v, want 0, %v", name, plans, err, underlay.ErrSelectionFixed)
		}
	}
}
