// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// skipUnprivileged skips the test if the process may not load programs (EPERM). EACCES, which the verifier returns, fails
// the test: an unsupported program must not look like missing privileges.
func skipUnprivileged(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, os.ErrPermission) && !errors.As(err, new(*ebpf.VerifierError)) {
		t.Skipf("needs root: %v", err)
	}
}

// load loads the program, or skips the test without privileges.
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

// TestSteerLoadsWithCapBPFAlone loads the program as an agent in a pod does. Without CAP_PERFMON the verifier also follows the
// branches that a CPU may take by speculation, so a loop may be too long for it.
func TestSteerLoadsWithCapBPFAlone(t *testing.T) {
	load(t)
	if v, err := features.LinuxVersionCode(); err != nil || v < 6<<16|12<<8 {
		t.Skipf("needs Linux 6.12: the verifier of 5.10 refuses the program without CAP_PERFMON (%#x, %v)", v, err)
	}
	loaded := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		loaded <- loadWithCapBPF()
	}()
	expect.NoError(t, <-loaded)
}

func loadWithCapBPF() error {
	if err := keepCapabilities(unix.CAP_BPF); err != nil {
		return err
	}
	s, err := LoadSteer()
	if err != nil {
		return err
	}
	return s.Close()
}

// maxRun is a packet length that BPF_PROG_TEST_RUN always accepts: a page without its overhead.
const maxRun = 3000

// run returns the program's result for a packet. The kernel removes an Ethernet header first, and rejects a packet with
// nothing behind it.
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

// fragmentTable returns a function that empties the program's table of fragmented datagrams, as it is in a zero packet.Fragments.
func fragmentTable(t testing.TB, s *Steer) (forget func(testing.TB)) {
	t.Helper()
	info, err := s.program.Info()
	expect.NoError(t, err)
	ids, _ := info.MapIDs()
	table, err := ebpf.NewMapFromID(ids[0])
	expect.NoError(t, err)
	t.Cleanup(func() { _ = table.Close() })
	keys, sets := make([]uint32, table.MaxEntries()), make([][40]byte, table.MaxEntries())
	for i := range keys {
		keys[i] = uint32(i)
	}
	return func(t testing.TB) {
		t.Helper()
		_, err := table.BatchUpdate(keys, sets, nil)
		expect.NoError(t, err)
	}
}

// checkHash fails unless C and Go return the same hash for a packet. f has seen the same packets as s.
func checkHash(t testing.TB, s *Steer, f *packet.Fragments, name string, ip []byte) {
	t.Helper()
	if got, want := run(t, s, ip), f.FlowHash(ip); got != want {
		t.Errorf("%s: % x: hash %#08x, want %#08x", name, ip, got, want)
	}
}

// The relation of a packet's hash to that of the complete datagram of its flow.
const (
	sameFlow  = iota // the same hash
	noPorts          // the hash without ports
	noFlow           // 0
	otherFlow        // any other hash
)

// One row per branch of bpf/include/ip.h and bpf/include/flow_hash.h.
func TestSteerMatchesGoFlowHash(t *testing.T) {
	s, f := load(t), new(packet.Fragments)
	v4, v6 := ipv4(packet.UDP, 8), ipv6(packet.UDP, 8)
	for _, tt := range []struct {
		name string
		like []byte
		ip   []byte
		kind int
	}{
		{"v4", v4, v4, sameFlow},
		{"v4 reversed", v4, reverse(v4), sameFlow},
		{"v4 TCP", v4, ipv4(packet.TCP, 20), otherFlow},
		{"v4 SCTP", v4, ipv4(packet.SCTP, 12), otherFlow},
		{"v4 ICMP", v4, ipv4(packet.ICMP, 8), otherFlow},
		{"v4 with options", v4, addIPv4Options(v4, 5), sameFlow},
		{"v4 with padding", v4, append(clone(v4), 1, 2, 3), sameFlow},
		{"v4 later fragment without its first", v4, set(v4, 6, 0, 7), noPorts},
		{"v4 first fragment", v4, set(v4, 6, 0x20, 0), sameFlow},
		{"v4 later fragment", v4, set(v4, 6, 0, 7), sameFlow},
		{"v4 later fragment of another datagram", v4, set(v4, 4, 0, 1, 0, 7), noPorts},
		{"v4 later fragment of the other direction", v4, set(reverse(v4), 6, 0, 7), noPorts},
		{"v4 first fragment with options", v4, addIPv4Options(set(v4, 4, 0, 2, 0x20, 0), 5), sameFlow},
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
		{"v6 TCP", v6, ipv6(packet.TCP, 20), otherFlow},
		{"v6 ICMP", v6, ipv6(packet.ICMPv6, 8), otherFlow},
		{"v6 with a flow label", v6, set(v6, 1, 0xf, 0xff, 0xff), sameFlow},
		{"v6 with one extension header", v6, addIPv6Extensions(v6, 0, packet.HopByHop), sameFlow},
		{"v6 with long extension headers", v6, addIPv6Extensions(v6, 3, packet.HopByHop, packet.Routing, packet.DestOptions), sameFlow},
		{"v6 with seven extension headers", v6, addIPv6Extensions(v6, 0, repeat(packet.DestOptions, 7)...), sameFlow},
		{"v6 with eight extension headers", v6, addIPv6Extensions(v6, 0, repeat(packet.DestOptions, 8)...), noPorts},
		{"v6 with nine extension headers", v6, addIPv6Extensions(v6, 0, repeat(packet.DestOptions, 9)...), otherFlow},
		{"v6 later fragment without its first", v6, set(addIPv6Extensions(v6, 0, packet.Fragment), 42, 1), noPorts},
		{"v6 first fragment", v6, addIPv6Extensions(v6, 0, packet.Fragment), sameFlow},
		{"v6 later fragment", v6, set(addIPv6Extensions(v6, 0, packet.Fragment), 42, 1), sameFlow},
		{"v6 later fragment of another datagram", v6, set(addIPv6Extensions(v6, 0, packet.Fragment), 42, 1, 0, 0, 0, 0, 9), noPorts},
		{"v6 later fragment of the other direction", v6, set(addIPv6Extensions(reverse(v6), 0, packet.Fragment), 42, 1), noPorts},
		{"v6 fragment behind an extension header", v6, addIPv6Extensions(v6, 1, packet.Routing, packet.Fragment), sameFlow},
		{"v6 fragment with options behind", v6, addIPv6Extensions(v6, 1, packet.Fragment, packet.DestOptions), sameFlow},
		{"v6 fragment behind eight", v6, addIPv6Extensions(v6, 0, append(repeat(packet.Routing, 8), packet.Fragment)...), otherFlow},
		{"v6 fragment that ends before its header", v6, set(ipv6(packet.Fragment, 0), 6, 44), otherFlow},
		{"v6 with an extension header cut", v6, ipv6(packet.HopByHop, 7), otherFlow},
		{"v6 with an extension header beyond the end", v6, set(addIPv6Extensions(v6, 0, packet.HopByHop), 41, 2), otherFlow},
		{"v6 with an extension header up to the end", v6, set(addIPv6Extensions(v6, 0, packet.HopByHop), 41, 1), noPorts},
		{"v6 with an extension header cut and padding", v6, append(ipv6(packet.HopByHop, 7), 0), otherFlow},
		{"v6 without a next header", v6, ipv6(packet.NoNext, 0), otherFlow},
		{"v6 with the ports cut", v6, ipv6(packet.UDP, 3), noPorts},
		{"v6 with the ports cut and padding", v6, append(ipv6(packet.UDP, 3), 0xcd), noPorts},
		{"v6 longer than there is", v6, set(v6, 5, v6[5]+1), noFlow},
		{"v6 cut in its header", v6, v6[:39], noFlow},
		{"neither version", v4, set(v4, 0, 0x55), noFlow},
		{"one byte", v4, []byte{0x45}, noFlow},
	} {
		checkHash(t, s, f, tt.name, tt.ip)
		if got := kindOf(t, s, tt.like, tt.ip); got != tt.kind {
			t.Errorf("%s: kind %d, want %d", tt.name, got, tt.kind)
		}
	}
}

// kindOf compares the hash of ip with that of a complete UDP packet.
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
	return otherFlow
}

func TestSteerMatchesGoFlowHashOnRandomPackets(t *testing.T) {
	s, f := load(t), new(packet.Fragments)
	forget := fragmentTable(t, s)
	g := newGenerator(1)
	kinds := map[string]int{}
	const rounds = 20000
	for i := range rounds {
		if i%4 == 0 { // the tables differ in size: neither may forget a datagram
			forget(t)
			f = new(packet.Fragments)
		}
		name, ip := g.next()
		kinds[name]++
		checkHash(t, s, f, name, ip)
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
	forget := fragmentTable(f, s)
	g := newGenerator(2)
	for range 50 {
		_, ip := g.next()
		f.Add(ip)
	}
	f.Add(set(ipv4(packet.UDP, 8), 6, 0x20, 0)) // a first fragment, which the next input must not find
	f.Add(set(ipv4(packet.UDP, 8), 6, 0, 7))
	f.Fuzz(func(t *testing.T, ip []byte) {
		if len(ip) > 0 && len(ip) <= maxRun {
			var fragments packet.Fragments
			forget(t)
			checkHash(t, s, &fragments, "fuzz", ip)
		}
	})
}

func TestSteerQueueUsesLow16HashBits(t *testing.T) {
	for _, tt := range []struct {
		hash         uint32
		queues, want int
	}{{0, 1, 0}, {7, 1, 0}, {7, 4, 3}, {0x10000, 3, 0}, {0xffffffff, 4, 3}, {0xffff0005, 3, 2}, {0xffffffff, 256, 255}} {
		if got := steerQueue(tt.hash, tt.queues); got != tt.want {
			t.Errorf("hash %#x, %d queues: got %d, want %d", tt.hash, tt.queues, got, tt.want)
		}
	}
}

func TestLoadErrorsNameMissingRequirement(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{unix.EMFILE, "loading the eBPF program steer: too many open files"},
		{unix.EPERM, "needs CAP_BPF"},
		{unix.ENOSYS, "needs a kernel with CONFIG_BPF_SYSCALL"},
		{&ebpf.VerifierError{Cause: unix.E2BIG}, "(needs Linux 5.10, and CAP_PERFMON)"},
		{&ebpf.VerifierError{Cause: unix.EACCES}, "(needs Linux 5.10, and CAP_PERFMON)"},
	} {
		err := explainLoadError("steer", fmt.Errorf("wrapped: %w", tt.err))
		if !errors.Is(err, tt.err) || !strings.Contains(strings.Replace(err.Error(), "wrapped: ", "", 1), tt.want) {
			t.Errorf("error %v, want %q", err, tt.want)
		}
	}
}

// descriptors returns the number of open file descriptors.
func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestLoadSteerLeaksNoDescriptor(t *testing.T) {
	load(t) // the first load may open descriptors that stay open
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
		t.Errorf("%d descriptors before, %d after", before, after)
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

// steerQueue returns the queue that a TUN with Steer attached selects for a packet with that packet.FlowHash. queues is at
// least one. The driver uses only 16 bits of the hash (tun_ebpf_select_queue in Linux).
func steerQueue(hash uint32, queues int) int { return int(uint16(hash)) % queues }
