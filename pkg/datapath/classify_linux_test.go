// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/packet"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// classifyRows has a row per branch before what data messages and initiations meet of configuration. taken is what
// becomes of a data message, and how it is counted.
func classifyRows(verdict uint32, taken string) []classifyRow {
	v4, v6 := toUs(false, unchanged), toUs(true, unchanged)
	handled := func(name string, v6 bool, change func(*datagram)) classifyRow {
		return classifyRow{name, toUs(v6, change), verdict, taken}
	}
	passed := func(name, counts string, in []byte) classifyRow { return classifyRow{name, in, xdpPass, counts} }
	carried := func(name, counts string, payload []byte) classifyRow {
		return passed(name, counts, toUs(false, carrying(payload)))
	}
	from := func(name, src string) classifyRow {
		d := data(src, us4)
		if netip.MustParseAddrPort(src).Addr().Is6() {
			d.dst = us6
		}
		return passed(name, "martian", d.bytes())
	}
	long := passed("IP longer than the frame", "long", set(set(v4, 14+2, 0, 125), 14+20+4, 0, 105))
	if taken == ClassifySpread.String() { // the CPU's stack drops it
		long.verdict, long.counts = verdict, taken
	}
	return []classifyRow{
		long, handled("v4", false, unchanged), handled("v6", true, unchanged),
		handled("v4 with options", false, func(d *datagram) { d.options = 10 }),
		handled("v4 with a VLAN tag", false, func(d *datagram) { d.tags = []uint16{0x8100} }),
		handled("v6 with two VLAN tags", true, func(d *datagram) { d.tags = []uint16{0x88a8, 0x8100} }),
		handled("v4 without a checksum", false, func(d *datagram) { d.checksum = none }),
		handled("the smallest with a packet", false, carrying(message(4, 48))),
		handled("one byte more than a keepalive", false, carrying(message(4, 33))),
		{"v4 in a padded frame", append(clone(v4), 0, 0, 0), verdict, taken},
		{"v4 with a wrong UDP checksum", set(v4, 14+20+6, 1, 2), verdict, taken},
		{"v4 with a wrong header checksum", set(v4, 14+10, 1, 2), verdict, taken},
		{"v4 with Don't Fragment", set(v4, 14+6, 0x40, 0), verdict, taken},

		passed("three VLAN tags", "", toUs(false, func(d *datagram) { d.tags = []uint16{0x88a8, 0x8100, 0x8100} })),
		passed("ARP", "", set(v4, 12, 8, 6)), passed("TCP", "", set(v4, 14+9, 6)), passed("TCP over v6", "", set(v6, 14+6, 6)),
		passed("an extension header", "", slices.Concat(v6[:14], extend(v6[14:], 0, packet.HopByHop))),
		passed("another port", "", data(them4, "198.51.100.1:51819").bytes()),
		passed("a port of a lane", "", data(them4, "198.51.100.1:61000").bytes()),
		passed("the port of v6 as a source", "", data(us6, them6).bytes()),
		passed("another's address", "foreign", data(them4, "198.51.100.2:51820").bytes()),
		passed("another's v6 address", "foreign", data(them6, "[2001:db8:1::2]:51820").bytes()),
		passed("all hosts' address", "foreign", data(them4, "255.255.255.255:51820").bytes()),
		passed("our address, mapped into v6", "foreign", data(them6, "[::ffff:198.51.100.1]:51820").bytes()),

		passed("a first fragment", "fragment", set(v4, 14+6, 0x20, 0)), passed("a later fragment", "", set(v4, 14+6, 0, 1)),
		passed("a v6 fragment", "fragment", slices.Concat(v6[:14], extend(v6[14:], 0, packet.Fragment))),
		passed("UDP longer than IP", "malformed", set(v4, 14+20+4, 0, 105)),
		passed("UDP shorter than IP", "malformed", set(v4, 14+20+4, 0, 103)),
		passed("v6 UDP shorter than IP", "malformed", set(v6, 14+40+4, 0, 103)),
		passed("UDP shorter than itself", "malformed", set(v4, 14+20+4, 0, 7)),
		passed("a jumbogram", "malformed", set(v6, 14+4, 0, 0)),
		passed("IP shorter than its header", "", set(v4, 14, 0x44)),
		passed("IP shorter than UDP", "malformed", set(v4, 14+2, 0, 27)),
		passed("not version 4", "", set(v4, 14, 0x55)), passed("not version 6", "", set(v6, 14, 0x40)),

		carried("a keepalive", "keepalive", message(4, 32)), carried("shorter than a keepalive", "other", message(4, 31)),
		passed("a v6 keepalive", "keepalive", toUs(true, carrying(message(4, 32)))),
		carried("nothing", "other", nil), carried("seven bytes", "other", message(4, 7)), carried("eight bytes", "other", message(4, 8)),
		carried("a response", "other", message(2, 92)), carried("a cookie", "other", message(3, 64)),
		carried("a reserved byte", "other", set(message(4, 96), 1, 1)), carried("another reserved byte", "other", set(message(4, 96), 3, 1)),
		carried("an unknown type", "other", message(5, 96)), carried("type 0", "other", message(0, 96)),
		carried("an initiation", "initiation", initiation()), carried("an initiation with a cookie", "initiation", withMAC2()),
		passed("a v6 initiation", "initiation", toUs(true, carrying(initiation()))),
		carried("too long an initiation", "other", message(1, 149)), carried("too short an initiation", "other", message(1, 147)),
		carried("an initiation with a reserved byte", "other", set(initiation(), 2, 1)),

		from("from this network", "0.1.2.3:1"), from("from this host", "127.0.0.1:1"), from("from a group", "224.0.0.1:1"),
		from("from all hosts", "255.255.255.255:1"), from("from a v6 group", "[ff02::1]:1"), from("from the v6 loopback", "[::1]:1"),
		from("from a mapped address", "[::ffff:192.0.2.1]:1"),
	}
}

func TestDataGoesToTheSocketOfItsQueueAndAllElseUpTheStack(t *testing.T) {
	c := newClassify(t, ClassifyOptions{})
	defer unix.Close(addSocket(t, c, 0))
	verdicts(t, c, classifyRows(xdpRedirect, "socket"))
}

func TestDataGoesUpTheStackWithoutASocket(t *testing.T) {
	c := newClassify(t, ClassifyOptions{})
	verdicts(t, c, classifyRows(xdpPass, "no_socket"))
}

func TestGuardsDropNothingThatIsWithinBounds(t *testing.T) {
	c := newClassify(t, ClassifyOptions{
		Lanes: spread.Ports{First: 61000, Last: 61999}, MaxFrame: 1514, CheckIndices: true, Source: atMost(1000), Total: atMost(1000),
	})
	must(t, c.AddIndex(binary.LittleEndian.Uint32(message(4, 96)[4:])))
	defer unix.Close(addSocket(t, c, 0))
	verdicts(t, c, classifyRows(xdpRedirect, "socket"))
}

func TestClosingASocketGivesItsQueueBackToTheStack(t *testing.T) {
	c := newClassify(t, ClassifyOptions{})
	fd := addSocket(t, c, 0)
	in := toUs(false, unchanged)
	verdicts(t, c, []classifyRow{{"open", in, xdpRedirect, "socket"}})
	must(t, unix.Close(fd))
	eventually(t, func() bool { // the kernel gives sockets back in its own time
		verdict, counts, _ := classify(t, c, in)
		return verdict == xdpPass && counts["no_socket"] == 1
	})
	defer unix.Close(addSocket(t, c, 0))
	verdicts(t, c, []classifyRow{{"another", in, xdpRedirect, "socket"}})
	must(t, errors.Join(c.RemoveSocket(0), c.RemoveSocket(0)))
	verdicts(t, c, []classifyRow{{"removed", in, xdpPass, "no_socket"}})
	if err := c.SetSocket(ClassifyQueues, fd); err == nil || !strings.Contains(err.Error(), "queue 256") {
		t.Errorf("a queue too many: %v", err)
	}
	if err := c.SetSocket(0, 0); err == nil {
		t.Error("what is no socket is taken for one")
	}
}

func eventually(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it never came to pass")
		}
	}
}

func TestFramesThatSocketsDoNotTakeGoUpTheStack(t *testing.T) {
	in := toUs(false, unchanged)
	c := newClassify(t, ClassifyOptions{MaxFrame: len(in)})
	defer unix.Close(addSocket(t, c, 0))
	verdicts(t, c, []classifyRow{
		{"the longest", in, xdpRedirect, "socket"},
		{"one byte more", toUs(false, carrying(message(4, 97))), xdpPass, "long"},
		{"padded by one byte", append(clone(in), 0), xdpPass, "long"},
	})
}

// The kernel makes several buffers of what is longer than a page.
func TestFramesOfSeveralBuffersGoToSocketsThatTakeThem(t *testing.T) {
	in := toUs(false, carrying(message(4, 9000)))
	for _, taken := range []bool{false, true} {
		c, err := LoadClassify(ClassifyOptions{Port: 51820, MultiBuffer: taken})
		if taken && errors.Is(err, ebpf.ErrNotSupported) && strings.Contains(err.Error(), "Linux 5.18") {
			t.Skip(err)
		}
		if err == nil {
			must(t, c.Close())
		}
		c = newClassify(t, ClassifyOptions{MultiBuffer: taken})
		defer unix.Close(addSocket(t, c, 0))
		verdict, counts, refused := classify(t, c, in)
		if refused {
			t.Skip("needs Linux 5.18 for frames of several buffers")
		}
		want, count := uint32(xdpPass), "long"
		if taken {
			want, count = xdpRedirect, "socket"
		}
		if verdict != want || counts[count] != 1 {
			t.Errorf("taken: %v, verdict %d, counted %v", taken, verdict, counts)
		}
	}
}

func TestOnlyLiveReceiverIndicesAreLetIn(t *testing.T) {
	c := newClassify(t, ClassifyOptions{CheckIndices: true})
	defer unix.Close(addSocket(t, c, 0))
	to := func(index uint32, size int) []byte {
		return toUs(false, carrying(set(message(4, size), 4, binary.LittleEndian.AppendUint32(nil, index)...)))
	}
	const unknown = "rx_unknown_index"
	must(t, c.AddIndex(0x01020304))
	must(t, c.AddIndex(0))
	verdicts(t, c, []classifyRow{
		{"known", to(0x01020304, 96), xdpRedirect, "socket"},
		{"zero", to(0, 96), xdpRedirect, "socket"},
		{"in the wrong order", to(0x04030201, 96), xdpDrop, unknown},
		{"unknown", to(7, 96), xdpDrop, unknown},
		{"a keepalive", to(0x01020304, 32), xdpPass, "keepalive"},
		{"an unknown keepalive", to(7, 32), xdpDrop, unknown},
		{"too short a message", to(7, 31), xdpPass, "other"},
		{"an initiation", toUs(false, carrying(initiation())), xdpPass, "initiation"},
		{"another's", data(them4, "198.51.100.2:51820").bytes(), xdpPass, "foreign"},
	})
	must(t, errors.Join(c.RemoveIndex(0), c.RemoveIndex(0)))
	verdicts(t, c, []classifyRow{{"gone", to(0, 96), xdpDrop, unknown}})
}

func TestAFullMapOfIndicesRefusesOneMore(t *testing.T) {
	c := newClassify(t, ClassifyOptions{CheckIndices: true})
	for i := range uint32(ClassifyIndices) {
		must(t, c.AddIndex(i))
	}
	if err := c.AddIndex(ClassifyIndices); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	must(t, c.AddIndex(3))
	must(t, c.RemoveIndex(3))
	must(t, c.AddIndex(ClassifyIndices))
}

func TestOnlyOurOwnAddressesAreOurs(t *testing.T) {
	c := newClassify(t, ClassifyOptions{})
	v4, v6 := toUs(false, unchanged), toUs(true, unchanged)
	for _, tt := range []struct {
		addresses string
		v4, v6    string
	}{
		{"198.51.100.1 2001:db8:1::1", "no_socket", "no_socket"},
		{"2001:db8:1::1 192.0.2.9", "foreign", "no_socket"},
		{"::ffff:198.51.100.1", "no_socket", "foreign"},
		{"fe80::1%eth0 2001:db8:1::1%eth0", "foreign", "no_socket"},
		{"", "foreign", "foreign"},
	} {
		addresses := []netip.Addr{{}}
		for _, a := range strings.Fields(tt.addresses) {
			addresses = append(addresses, netip.MustParseAddr(a))
		}
		must(t, c.SetAddresses(addresses))
		verdicts(t, c, []classifyRow{{tt.addresses, v4, xdpPass, tt.v4}, {tt.addresses, v6, xdpPass, tt.v6}})
	}
}

func TestTooManyAddressesAreRefused(t *testing.T) {
	c := newClassify(t, ClassifyOptions{})
	var many []netip.Addr
	for i := range int(c.maps.Addresses.MaxEntries()) {
		many = append(many, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	must(t, c.SetAddresses(many))
	if err := c.SetAddresses(append(many, endpoint(us4).Addr())); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	must(t, c.SetAddresses([]netip.Addr{endpoint(us4).Addr()}))
	verdicts(t, c, []classifyRow{{"fewer", toUs(false, unchanged), xdpPass, "no_socket"}})
}

// TestOnePacketIsOneCount holds the program against packets of all kinds, most of them damaged or cut: whatever they are,
// they stay as they are, and count at most once.
func TestOnePacketIsOneCount(t *testing.T) {
	c := newClassify(t, ClassifyOptions{CheckIndices: true, Source: atMost(3), Total: atMost(50), Lanes: spread.Ports{First: 61000, Last: 61999}})
	g := newGenerator(5)
	runs := everyCut(func(in []byte) bool { return oneCount(t, c, in) })
	for range 3000 {
		in := []([]byte){toUs(false, carrying(message(byte(g.IntN(6)), g.IntN(200)))), initiationFrom("2001:db8::1")}[g.IntN(2)]
		for range 1 + g.IntN(3) {
			in[12+g.IntN(min(len(in)-12, 60))] = byte(g.Uint32())
		}
		oneCount(t, c, in)
	}
	if runs < 400 {
		t.Errorf("%d runs", runs)
	}
}

func oneCount(t *testing.T, c *Classify, in []byte) (refused bool) {
	t.Helper()
	verdict, counts, refused := classify(t, c, in)
	sum, dropped := uint64(0), counts[drop.RXUnknownIndex.String()]+counts[drop.HSSourceBudget.String()]+counts[drop.HSTotalBudget.String()]
	for _, n := range counts {
		sum += n
	}
	if !refused && (sum > 1 || verdict != xdpPass && verdict != xdpDrop || dropped != b2u(verdict == xdpDrop)) {
		t.Errorf("% x: verdict %d, counted %v", in, verdict, counts)
	}
	return refused
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func TestDataGoesToTheCPUOfItsFlow(t *testing.T) {
	c := newClassify(t, ClassifyOptions{CPUs: possibleCPUs(t)})
	verdicts(t, c, classifyRows(xdpRedirect, "spread"))
	defer unix.Close(addSocket(t, c, 0))
	verdicts(t, c, []classifyRow{{"a socket comes first", toUs(false, unchanged), xdpRedirect, "socket"}})
}

// TestOnlyFinishedChecksumsGoToAnotherCPU has the sums that a host leaves to its device: those of the pseudo-header (RFC 768, RFC
// 8200 section 8.1), not inverted.
func TestOnlyFinishedChecksumsGoToAnotherCPU(t *testing.T) {
	var rows []classifyRow
	for _, v6 := range []bool{false, true} {
		for _, size := range []int{48, 96, 777, 1400} {
			in := toUs(v6, carrying(message(4, size)))
			name := fmt.Sprintf("v6 %v, %d bytes", v6, size)
			at, sum := pseudoSum(in, v6)
			rows = append(rows,
				classifyRow{name + ", unfinished", set(in, at, byte(sum>>8), byte(sum)), xdpPass, "unsummed"},
				classifyRow{name + ", one more", set(in, at, byte((sum+1)>>8), byte(sum+1)), xdpRedirect, "spread"},
				classifyRow{name + ", finished", in, xdpRedirect, "spread"},
				classifyRow{name + ", none", set(in, at, 0, 0), xdpRedirect, "spread"})
		}
	}
	verdicts(t, newClassify(t, ClassifyOptions{CPUs: possibleCPUs(t), Unsummed: true}), rows)
	for i := range rows { // devices that finish them are not suspected
		rows[i].verdict, rows[i].counts = xdpRedirect, "spread"
	}
	verdicts(t, newClassify(t, ClassifyOptions{CPUs: possibleCPUs(t)}), rows)
	for i := range rows { // and sockets do not look
		rows[i].counts = "socket"
	}
	c := newClassify(t, ClassifyOptions{CPUs: possibleCPUs(t), Unsummed: true})
	defer unix.Close(addSocket(t, c, 0))
	verdicts(t, c, rows)
}

// pseudoSum returns the offset of the UDP checksum in a frame without VLAN tags or options, and the sum of its pseudo-header.
func pseudoSum(frame []byte, v6 bool) (at int, sum uint16) {
	first, udp := 14+12, 14+20 // of the addresses, of UDP
	if v6 {
		first, udp = 14+8, 14+40
	}
	words := slices.Concat(frame[first:udp], frame[udp+4:udp+6], []byte{0, 17})
	total := uint32(0)
	for i := 0; i < len(words); i += 2 {
		total += uint32(binary.BigEndian.Uint16(words[i:]))
		total = total&0xffff + total>>16
	}
	return udp + 6, uint16(total)
}

// TestLanesTakeCPUsInTurn takes one of two CPUs away, so that its flows are seen to stay.
func TestLanesTakeCPUsInTurn(t *testing.T) {
	cpus := possibleCPUs(t)
	if len(cpus) < 2 {
		t.Skip("needs two CPUs")
	}
	c := newClassify(t, ClassifyOptions{CPUs: cpus[:2]})
	must(t, c.maps.Cpus.Delete(uint32(cpus[1])))
	on := func(src string) bool {
		verdict, _, _ := classify(t, c, data(src, us4).bytes())
		return verdict == xdpRedirect
	}
	begins := 0
	for peer := range 64 {
		address := fmt.Sprintf("192.0.2.%d", peer)
		at := on(address + ":61000")
		if at {
			begins++
		}
		for lane := range 16 {
			src := fmt.Sprintf("%s:%d", address, 61000+lane)
			for range 2 {
				if on(src) != (at == (lane%2 == 0)) {
					t.Errorf("%s is not on the CPU of its turn", src)
				}
			}
		}
	}
	if begins < 16 || begins > 48 {
		t.Errorf("%d of 64 peers begin at one of two CPUs", begins)
	}
}

func TestEachClassifyConfigurationLoads(t *testing.T) {
	cpus := possibleCPUs(t)
	budgets := []Budget{{}, {Every: time.Nanosecond, Burst: 1}, {Every: SourceEvery, Burst: SourceBurst}, {Every: TotalEvery, Burst: TotalBurst}}
	r := rand.New(rand.NewPCG(1, 2))
	most := uint32(0)
	for i := range 60 {
		o := ClassifyOptions{
			Port:     uint16(1 + i/2*r.IntN(2000)), // port 1 often: the verifier takes other paths
			MaxFrame: r.IntN(2) * 3498, CheckIndices: r.IntN(2) == 0, MultiBuffer: i%2 == 0,
			Source: budgets[r.IntN(3)], Total: budgets[r.IntN(4)], CPUs: cpus[:r.IntN(len(cpus)+1)],
			Unsummed: r.IntN(2) == 0,
		}
		if r.IntN(2) == 0 {
			o.Lanes = spread.Ports{First: 61000, Last: uint16(61000 + r.IntN(3))}
		}
		c, err := LoadClassify(o)
		if o.MultiBuffer && errors.Is(err, ebpf.ErrNotSupported) {
			continue
		}
		skipUnprivileged(t, err)
		must(t, err)
		info, err := c.program.Info()
		must(t, err)
		n, _ := info.VerifiedInstructions()
		most = max(most, n)
		must(t, c.Close())
	}
	t.Logf("the verifier looked at %d instructions at most (0: before Linux 5.16)", most)
}

func possibleCPUs(t testing.TB) (cpus []int) {
	t.Helper()
	n, err := ebpf.PossibleCPU()
	must(t, err)
	online, err := onlineCPUs()
	must(t, err)
	for cpu := range min(n, maxPlaces) {
		if slices.Contains(online, cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// onlineCPUs are those that the process may run on.
func onlineCPUs() (cpus []int, err error) {
	var set unix.CPUSet
	err = unix.SchedGetaffinity(0, &set)
	for cpu := range 1024 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, err
}

func TestClassifyRefusesWhatCannotBe(t *testing.T) {
	for _, tt := range []struct {
		want string
		o    ClassifyOptions
	}{
		{"port 0 is none", ClassifyOptions{}},
		{"frames of -1 bytes", ClassifyOptions{Port: 1, MaxFrame: -1}},
		{"no such ports: 3-2", ClassifyOptions{Port: 1, Lanes: spread.Ports{First: 3, Last: 2}}},
		{"contain the listen port", ClassifyOptions{Port: 5, Lanes: spread.Ports{First: 3, Last: 7}}},
		{"257 CPUs, at most 256", ClassifyOptions{Port: 1, CPUs: make([]int, 257)}},
		{"no such CPU: -1", ClassifyOptions{Port: 1, CPUs: []int{0, -1}}},
		{"no such CPU: 70000", ClassifyOptions{Port: 1, CPUs: []int{70000}}},
		{"no such budget: 0 at once", ClassifyOptions{Port: 1, Source: Budget{Every: 1}}},
		{"one every -1ns", ClassifyOptions{Port: 1, Total: Budget{Every: -1, Burst: 1}}},
		{"one every 0s", ClassifyOptions{Port: 1, Total: Budget{Burst: 1}}},
		{"one every 24h", ClassifyOptions{Port: 1, Total: Budget{Every: 24 * time.Hour, Burst: 1 << 40}}},
	} {
		c, err := LoadClassify(tt.o)
		if err == nil {
			must(t, c.Close())
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: want it to say %q", err, tt.want)
		}
	}
}

func TestLoadClassifyLeavesNoDescriptorBehind(t *testing.T) {
	loadClassifyFor(t, ClassifyOptions{Port: 1}) // first use may open what stays
	before := descriptors(t)
	c, err := LoadClassify(ClassifyOptions{Port: 1, CPUs: []int{0}})
	must(t, err)
	must(t, c.Close())
	if _, err := LoadClassify(ClassifyOptions{}); err == nil {
		t.Error("loaded")
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors, then %d", before, after)
	}
}

func TestClassifyEventsHaveNamesAndHelp(t *testing.T) {
	seen := map[string]bool{}
	for e := range ClassifyEvent(ClassifyEventCount) {
		if e.String() == "" || seen[e.String()] || e.Help() == "" {
			t.Errorf("event %d: %q, %q", e, e, e.Help())
		}
		seen[e.String()] = true
	}
	if e := ClassifyEvent(ClassifyEventCount); e.String() != "unknown" || e.Help() != "" {
		t.Errorf("%q, %q", e, e.Help())
	}
	if events, drops := len(classifyCounters{}.Events), len(classifyCounters{}.Drops); events != ClassifyEventCount || drops != drop.Count {
		t.Errorf("C counts %d events and %d drops, Go knows %d and %d", events, drops, ClassifyEventCount, drop.Count)
	}
}
