// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/packet"
)

// skipUnprivileged skips where loading was not allowed. What the verifier refuses is "permission denied" too (EACCES), and
// is a fault where it happens: a kernel that cannot run a program must not look like a lack of rights.
func skipUnprivileged(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, os.ErrPermission) && !errors.As(err, new(*ebpf.VerifierError)) {
		t.Skipf("needs root: %v", err)
	}
}

// load loads the program, or skips where that is not allowed.
func load(t testing.TB) *Steer {
	t.Helper()
	s, err := LoadSteer()
	skipUnprivileged(t, err)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// maxRun is what BPF_PROG_TEST_RUN surely takes: a page less its own needs.
const maxRun = 3000

// run returns what the program returns for a packet. The kernel takes an Ethernet header off first, and refuses a
// packet with nothing behind it.
func run(t testing.TB, s *Steer, ip []byte) uint32 {
	t.Helper()
	const ethernet = 14
	value, err := s.program.Run(&ebpf.RunOptions{Data: append(make([]byte, ethernet), ip...)})
	if errors.Is(err, ebpf.ErrNotSupported) {
		t.Skipf("needs BPF_PROG_TEST_RUN: %v", err)
	}
	if err != nil {
		t.Fatalf("running on % x: %v", ip, err)
	}
	return value
}

// agrees fails unless C and Go return the same for a packet.
func agrees(t testing.TB, s *Steer, name string, ip []byte) {
	t.Helper()
	if got, want := run(t, s, ip), packet.FlowHash(ip); got != want {
		t.Errorf("%s: % x: hash %#08x, want %#08x", name, ip, got, want)
	}
}

// What a packet has to do with the whole datagram of its flow.
const (
	sameFlow = iota // the same hash
	noPorts         // the hash of one that shows no ports
	noFlow          // 0
	another         // neither
)

// One row per branch of bpf/include/ip.h and bpf/include/flow_hash.h.
func TestSteerHashesEachKindOfPacketAsGoDoes(t *testing.T) {
	s := load(t)
	v4, v6 := ipv4(packet.UDP, 8), ipv6(packet.UDP, 8)
	for _, tt := range []struct {
		name string
		like []byte
		ip   []byte
		kind int
	}{
		{"v4", v4, v4, sameFlow},
		{"v4 reversed", v4, reverse(v4), sameFlow},
		{"v4 TCP", v4, ipv4(packet.TCP, 20), another},
		{"v4 SCTP", v4, ipv4(packet.SCTP, 12), another},
		{"v4 ICMP", v4, ipv4(packet.ICMP, 8), another},
		{"v4 with options", v4, options(v4, 5), sameFlow},
		{"v4 with padding", v4, append(clone(v4), 1, 2, 3), sameFlow},
		{"v4 first fragment", v4, set(v4, 6, 0x20, 0), noPorts},
		{"v4 later fragment", v4, set(v4, 6, 0, 7), noPorts},
		{"v4 that must not be fragmented", v4, set(v4, 6, 0x40, 0), sameFlow},
		{"v4 with the ports just inside", v4, ipv4(packet.UDP, 4), sameFlow},
		{"v4 with the ports cut", v4, ipv4(packet.UDP, 3), noPorts},
		{"v4 with the ports cut and padding", v4, append(ipv4(packet.UDP, 3), 0xcd), noPorts},
		{"v4 that ends before its ports", v4, set(v4, 2, 0, 20), noPorts},
		{"v4 that ends in its header", v4, set(v4, 2, 0, 19), noFlow},
		{"v4 of length 0", v4, set(v4, 2, 0, 0), noFlow},
		{"v4 longer than there is", v4, set(v4, 3, v4[3]+1), noFlow},
		{"v4 cut in its header", v4, v4[:19], noFlow},
		{"v4 with a header too short", v4, set(v4, 0, 0x44), noFlow},
		{"v4 with options beyond the end", v4, set(v4, 0, 0x4f), noFlow},
		{"v6", v6, v6, sameFlow},
		{"v6 reversed", v6, reverse(v6), sameFlow},
		{"v6 TCP", v6, ipv6(packet.TCP, 20), another},
		{"v6 ICMP", v6, ipv6(packet.ICMPv6, 8), another},
		{"v6 with a flow label", v6, set(v6, 1, 0xf, 0xff, 0xff), sameFlow},
		{"v6 with one extension header", v6, extend(v6, 0, packet.HopByHop), sameFlow},
		{"v6 with long extension headers", v6, extend(v6, 3, packet.HopByHop, packet.Routing, packet.DestOptions), sameFlow},
		{"v6 with seven extension headers", v6, extend(v6, 0, repeat(packet.DestOptions, 7)...), sameFlow},
		{"v6 with eight extension headers", v6, extend(v6, 0, repeat(packet.DestOptions, 8)...), noPorts},
		{"v6 with nine extension headers", v6, extend(v6, 0, repeat(packet.DestOptions, 9)...), another},
		{"v6 fragment", v6, extend(v6, 0, packet.Fragment), noPorts},
		{"v6 fragment behind an extension header", v6, extend(v6, 1, packet.Routing, packet.Fragment), noPorts},
		{"v6 fragment behind eight", v6, extend(v6, 0, append(repeat(packet.Routing, 8), packet.Fragment)...), noPorts},
		{"v6 fragment that ends before its header", v6, set(ipv6(packet.Fragment, 0), 6, 44), another},
		{"v6 with an extension header cut", v6, ipv6(packet.HopByHop, 7), another},
		{"v6 with an extension header beyond the end", v6, set(extend(v6, 0, packet.HopByHop), 41, 2), another},
		{"v6 with an extension header up to the end", v6, set(extend(v6, 0, packet.HopByHop), 41, 1), noPorts},
		{"v6 with an extension header cut and padding", v6, append(ipv6(packet.HopByHop, 7), 0), another},
		{"v6 without a next header", v6, ipv6(packet.NoNext, 0), another},
		{"v6 with the ports cut", v6, ipv6(packet.UDP, 3), noPorts},
		{"v6 with the ports cut and padding", v6, append(ipv6(packet.UDP, 3), 0xcd), noPorts},
		{"v6 longer than there is", v6, set(v6, 5, v6[5]+1), noFlow},
		{"v6 cut in its header", v6, v6[:39], noFlow},
		{"neither version", v4, set(v4, 0, 0x55), noFlow},
		{"one byte", v4, []byte{0x45}, noFlow},
	} {
		agrees(t, s, tt.name, tt.ip)
		if got := kindOf(t, s, tt.like, tt.ip); got != tt.kind {
			t.Errorf("%s: kind %d, want %d", tt.name, got, tt.kind)
		}
	}
}

// kindOf compares ip with a whole UDP packet.
func kindOf(t *testing.T, s *Steer, like, ip []byte) int {
	t.Helper()
	bare := ipv4(packet.UDP, 0)
	if packet.VersionOf(like) == packet.Version6 {
		bare = ipv6(packet.UDP, 0)
	}
	switch run(t, s, ip) {
	case 0:
		return noFlow
	case run(t, s, like):
		return sameFlow
	case run(t, s, bare):
		return noPorts
	}
	return another
}

func TestSteerHashesRandomPacketsAsGoDoes(t *testing.T) {
	s := load(t)
	g := newGenerator(1)
	kinds := map[string]int{}
	const rounds = 20000
	for range rounds {
		name, ip := g.next()
		kinds[name]++
		agrees(t, s, name, ip)
		if packet.FlowHash(ip) != 0 {
			kinds["with a flow"]++
		}
		if t.Failed() {
			return
		}
	}
	if n := kinds["with a flow"]; n < rounds/4 || n > rounds*3/4 {
		t.Errorf("%d of %d packets have a flow: %v", n, rounds, kinds)
	}
}

func FuzzSteer(f *testing.F) {
	s := load(f)
	g := newGenerator(2)
	for range 50 {
		_, ip := g.next()
		f.Add(ip)
	}
	f.Fuzz(func(t *testing.T, ip []byte) {
		if len(ip) > 0 && len(ip) <= maxRun {
			agrees(t, s, "fuzz", ip)
		}
	})
}

func TestSteerQueueUsesAsMuchOfTheHashAsTheDriver(t *testing.T) {
	for _, tt := range []struct {
		hash         uint32
		queues, want int
	}{{0, 1, 0}, {7, 1, 0}, {7, 4, 3}, {0x10000, 3, 0}, {0xffffffff, 4, 3}, {0xffff0005, 3, 2}, {0xffffffff, 256, 255}} {
		if got := SteerQueue(tt.hash, tt.queues); got != tt.want {
			t.Errorf("hash %#x, %d queues: %d, want %d", tt.hash, tt.queues, got, tt.want)
		}
	}
}

func TestLoadErrorsSayWhatIsMissing(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{unix.EMFILE, "loading the eBPF program steer: too many open files"},
		{unix.EPERM, "needs CAP_BPF"},
		{unix.ENOSYS, "needs a kernel with CONFIG_BPF_SYSCALL"},
		{&ebpf.VerifierError{Cause: unix.EINVAL}, "(needs Linux 5.10)"},
		{&ebpf.VerifierError{Cause: unix.EACCES}, "(needs Linux 5.10, and CAP_PERFMON)"},
	} {
		err := explainLoad("steer", fmt.Errorf("wrapped: %w", tt.err))
		if !errors.Is(err, tt.err) || !strings.Contains(strings.Replace(err.Error(), "wrapped: ", "", 1), tt.want) {
			t.Errorf("%v: want it to say %q", err, tt.want)
		}
	}
}

// descriptors counts what this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestLoadLeavesNoDescriptorBehind(t *testing.T) {
	load(t) // first use may open what stays
	before := descriptors(t)
	s, err := LoadSteer()
	if err != nil {
		t.Fatal(err)
	}
	if s.FD() < 0 || descriptors(t) == before {
		t.Errorf("descriptor %d is not open", s.FD())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors, then %d", before, after)
	}
}

func BenchmarkSteerRun(b *testing.B) {
	s := load(b)
	for name, ip := range map[string][]byte{"v4": ipv4(packet.TCP, 20), "v6": ipv6(packet.TCP, 20)} {
		b.Run(name, func(b *testing.B) {
			_, each, err := s.program.Benchmark(append(make([]byte, 14), ip...), 100000, b.ResetTimer)
			if err != nil {
				b.Skipf("needs BPF_PROG_TEST_RUN: %v", err)
			}
			b.ReportMetric(float64(each.Nanoseconds()), "ns/packet")
		})
	}
}
