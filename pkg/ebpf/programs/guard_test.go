// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// guardRig is a guard whose maps are not pinned. Its pods are those of 198.51.100.0/24 and
// fd00::/16, of which a part is another node's.
type guardRig struct {
	*testing.T
	*Guard
}

func newGuardRig(t *testing.T) *guardRig {
	t.Helper()
	g, err := LoadGuard("")
	skipUnprivileged(t, err)
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, g.Close()) })
	return &guardRig{t, g}
}

func (r *guardRig) set(classes map[string]GuardClass) {
	r.Helper()
	expect.NoError(r, r.SetPrefixes(prefixes(classes)))
}

func prefixes(classes map[string]GuardClass) map[netip.Prefix]GuardClass {
	all := map[netip.Prefix]GuardClass{}
	for p, c := range classes {
		all[netip.MustParsePrefix(p)] = c
	}
	return all
}

// run returns the program's verdict.
func (r *guardRig) run(p *ebpf.Program, frame []byte) uint32 {
	r.Helper()
	verdict, err := p.Run(&ebpf.RunOptions{Data: frame})
	if errors.Is(err, ebpf.ErrNotSupported) {
		r.Skipf("needs BPF_PROG_TEST_RUN: %v", err)
	}
	expect.NoError(r, err)
	return verdict
}

func (r *guardRig) counts() (beside, tunneled GuardCounts) {
	r.Helper()
	beside, tunneled, err := r.Counts()
	expect.NoError(r, err)
	return beside, tunneled
}

// frame returns an Ethernet frame with VLAN tags.
func frame(ip []byte, tags ...uint16) []byte {
	b := make([]byte, 12, 22+len(ip))
	for _, t := range tags {
		b = append(b, byte(t>>8), byte(t), 0, 7)
	}
	if packet.VersionOf(ip) == packet.Version4 {
		return append(append(b, 0x08, 0x00), ip...)
	}
	return append(append(b, 0x86, 0xdd), ip...)
}

func TestGuardClassifiesDestinations(t *testing.T) {
	const ctag, stag = 0x8100, 0x88a8
	v4, v6 := ipv4(packet.UDP, 8), ipv6(packet.TCP, 20)
	for _, tt := range []struct {
		name     string
		classes  map[string]GuardClass
		frame    []byte
		want     GuardClass
		dropped  bool // in strict state
		ethernet bool // without an Ethernet header the frame is not IP
	}{
		{"nothing known", nil, frame(v4), GuardClassNone, false, false},
		{"another prefix", map[string]GuardClass{"198.51.101.0/24": GuardClassRemote, "fd00::/16": GuardClassRemote}, frame(v4), GuardClassNone, false, false},
		{"remote", map[string]GuardClass{"198.51.100.0/24": GuardClassRemote}, frame(v4), GuardClassRemote, true, false},
		{"remote v6", map[string]GuardClass{"fd00::/64": GuardClassRemote}, frame(v6), GuardClassRemote, true, false},
		{"remote host", map[string]GuardClass{"198.51.100.2/32": GuardClassRemote}, frame(v4), GuardClassRemote, true, false},
		{"remote host v6", map[string]GuardClass{"fd00::2/128": GuardClassRemote}, frame(v6), GuardClassRemote, true, false},
		{"another host", map[string]GuardClass{"198.51.100.3/32": GuardClassRemote, "fd00::3/128": GuardClassRemote}, frame(v6), GuardClassNone, false, false},
		{"unknown", map[string]GuardClass{"198.51.0.0/16": GuardClassUnknown}, frame(v4), GuardClassUnknown, true, false},
		{"remote in unknown", map[string]GuardClass{"198.51.0.0/16": GuardClassUnknown, "198.51.100.0/24": GuardClassRemote}, frame(v4), GuardClassRemote, true, false},
		{"exempt in unknown", map[string]GuardClass{"198.51.0.0/16": GuardClassUnknown, "198.51.100.0/24": GuardClassExempt}, frame(v4), GuardClassExempt, false, false},
		{"local in unknown", map[string]GuardClass{"fd00::/16": GuardClassUnknown, "fd00::/64": GuardClassLocal}, frame(v6), GuardClassLocal, false, false},
		{"all of v4", map[string]GuardClass{"0.0.0.0/0": GuardClassUnknown}, frame(v4), GuardClassUnknown, true, false},
		{"all of v4 for v6", map[string]GuardClass{"0.0.0.0/0": GuardClassUnknown}, frame(v6), GuardClassNone, false, false},
		{"all of v6 for v4", map[string]GuardClass{"::/0": GuardClassUnknown}, frame(v4), GuardClassNone, false, false},
		{"tag", map[string]GuardClass{"198.51.100.0/24": GuardClassRemote}, frame(v4, ctag), GuardClassRemote, true, true},
		{"two tags", map[string]GuardClass{"fd00::/16": GuardClassRemote}, frame(v6, stag, ctag), GuardClassRemote, true, true},
		{"three tags", map[string]GuardClass{"fd00::/16": GuardClassRemote}, frame(v6, ctag, ctag, ctag), GuardClassNone, false, true},
		{"another ethertype", map[string]GuardClass{"198.51.100.0/24": GuardClassRemote}, set(frame(v4), 12, 0x88, 0xb5), GuardClassNone, false, true},
		{"neither version", map[string]GuardClass{"198.51.100.0/24": GuardClassRemote}, set(frame(v4), 14, 0x55), GuardClassNone, false, false},
		{"cut v6 header", map[string]GuardClass{"::/0": GuardClassRemote}, set(frame(v4), 14, 0x60), GuardClassNone, false, false},
		{"payload beyond a page", map[string]GuardClass{"fd00::/16": GuardClassRemote}, frame(ipv6(packet.UDP, 2000)), GuardClassRemote, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, strict := range []bool{false, true} {
				r := newGuardRig(t)
				r.set(tt.classes)
				expect.NoError(r, r.SetStrict(strict))
				programs := []*ebpf.Program{r.Ethernet(), r.IP()}
				if tt.ethernet {
					programs = programs[:1]
				}
				verdict, want := uint32(tcxNext), GuardCounts{}
				if count := &want[tt.want]; strict && tt.dropped {
					verdict, count.Dropped = tcDrop, uint64(len(programs))
				} else if tt.want != GuardClassNone {
					count.Passed = uint64(len(programs))
				}
				for _, p := range programs {
					if got := r.run(p, tt.frame); got != verdict {
						t.Errorf("strict %v: verdict %d of %v, want %d", strict, got, p, verdict)
					}
				}
				beside, _ := r.counts()
				if got := withoutLast(beside); got != want {
					t.Errorf("strict %v: counts %+v, want %+v", strict, got, want)
				}
			}
		})
	}
}

func withoutLast(counts GuardCounts) GuardCounts {
	for i := range counts {
		counts[i].Last = GuardPacket{}
	}
	return counts
}

func TestGuardNamesLastPacket(t *testing.T) {
	r := newGuardRig(t)
	r.set(map[string]GuardClass{"198.51.100.0/24": GuardClassRemote, "192.0.2.0/24": GuardClassLocal, "2001:db8::/32": GuardClassLocal})
	r.run(r.Ethernet(), frame(ipv4(packet.UDP, 8)))
	r.run(r.Tunnel(), frame(ipv4(packet.UDP, 8)))
	r.run(r.Tunnel(), frame(ipv6(packet.UDP, 8)))
	beside, tunneled := r.counts()
	last := beside[GuardClassRemote].Last
	if last.Address != netip.MustParseAddr("198.51.100.2") || last.Device == 0 || last.Time.IsZero() {
		t.Errorf("beside the tunnel: got %+v, want a packet to 198.51.100.2", last)
	}
	later := tunneled[GuardClassLocal].Last
	if later.Address != netip.MustParseAddr("2001:db8::1") || later.Time.Before(last.Time) {
		t.Errorf("in the tunnel: got %+v, want a packet from 2001:db8::1 after %v", later, last.Time)
	}
}

func TestTunnelCountsPacketsBySource(t *testing.T) {
	r := newGuardRig(t)
	r.set(map[string]GuardClass{"192.0.2.0/24": GuardClassLocal, "198.51.100.0/24": GuardClassRemote})
	expect.NoError(r, r.SetStrict(true))
	for range 3 {
		if verdict := r.run(r.Tunnel(), frame(ipv4(packet.UDP, 8))); verdict != tcxNext {
			t.Errorf("got verdict %d, want %d", verdict, tcxNext)
		}
	}
	r.run(r.Tunnel(), frame(ipv6(packet.UDP, 8)))
	beside, tunneled := r.counts()
	want := GuardCounts{GuardClassLocal: {Passed: 3}, GuardClassNone: {Passed: 1}}
	if got := withoutLast(tunneled); got != want || beside != (GuardCounts{}) {
		t.Errorf("in the tunnel %+v, beside it %+v, want %+v and none", got, beside, want)
	}
}

func TestGuardPrefixesAreReplaced(t *testing.T) {
	r := newGuardRig(t)
	r.set(map[string]GuardClass{"10.0.0.0/8": GuardClassUnknown, "10.1.2.0/24": GuardClassRemote, "fd00::/16": GuardClassUnknown, "fd00:1::1/128": GuardClassExempt})
	want := map[string]GuardClass{"10.0.0.0/8": GuardClassUnknown, "10.1.2.0/24": GuardClassLocal, "fd00:1::1/128": GuardClassExempt, "::/0": GuardClassExempt}
	r.set(want)
	got, err := r.Prefixes()
	expect.NoError(r, err)
	if !maps.Equal(got, prefixes(want)) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestGuardChangesShowOldOrNewClass changes one random set of nested prefixes to another one, and
// looks up each address at each step.
func TestGuardChangesShowOldOrNewClass(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 2000 {
		old, wanted := randomPrefixes(random), randomPrefixes(random)
		now := maps.Clone(old)
		check := func(step netip.Prefix) {
			for a := range 16 {
				addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(a << 4)})
				if got, from, to := classIn(now, addr), classIn(old, addr), classIn(wanted, addr); got != from && got != to {
					t.Fatalf("round %d, %v to %v: %s is %v at the change of %s, want %v or %v", round, old, wanted, addr, got, step, from, to)
				}
			}
		}
		puts, removals := guardChanges(old, wanted)
		for _, p := range puts {
			now[p] = wanted[p]
			check(p)
		}
		for _, p := range removals {
			delete(now, p)
			check(p)
		}
		if !maps.Equal(now, wanted) {
			t.Fatalf("round %d: got %v, want %v", round, now, wanted)
		}
	}
}

// randomPrefixes returns prefixes of 10.0.0.0/24 to 10.0.0.240/28.
func randomPrefixes(random *rand.Rand) map[netip.Prefix]GuardClass {
	all := map[netip.Prefix]GuardClass{}
	for range random.IntN(8) {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(16) << 4)}), 24+random.IntN(5))
		all[p.Masked()] = GuardClass(random.IntN(GuardClassCount))
	}
	return all
}

// classIn returns the class of the longest prefix with an address.
func classIn(all map[netip.Prefix]GuardClass, a netip.Addr) (class GuardClass) {
	longest := -1
	for p, c := range all {
		if p.Contains(a) && p.Bits() > longest {
			longest, class = p.Bits(), c
		}
	}
	return class
}

// TestPrefixesAreReplacedWithoutGap looks an address up all the time while the prefixes around it
// change.
func TestPrefixesAreReplacedWithoutGap(t *testing.T) {
	r := newGuardRig(t)
	sets := []map[string]GuardClass{
		{"198.51.0.0/16": GuardClassUnknown, "198.51.100.0/24": GuardClassRemote},
		{"198.51.0.0/16": GuardClassUnknown, "198.51.100.0/25": GuardClassRemote, "198.51.96.0/19": GuardClassLocal, "198.51.100.2/32": GuardClassRemote},
		{"198.0.0.0/8": GuardClassUnknown, "198.51.100.0/30": GuardClassRemote},
	}
	r.set(sets[0])
	expect.NoError(r, r.SetStrict(true))
	done := make(chan error)
	go func() {
		for i := range 300 {
			if err := r.SetPrefixes(prefixes(sets[i%len(sets)])); err != nil {
				done <- err
				return
			}
		}
		close(done)
	}()
	for {
		select {
		case err := <-done:
			expect.NoError(t, err)
			return
		default:
			if verdict := r.run(r.Ethernet(), frame(ipv4(packet.UDP, 8))); verdict != tcDrop {
				t.Fatalf("got verdict %#x, want %#x", verdict, tcDrop)
			}
		}
	}
}

func TestFullGuardReturnsErrFull(t *testing.T) {
	r := newGuardRig(t)
	all := map[netip.Prefix]GuardClass{}
	for i := range r.objects.GuardPrefixes.MaxEntries() + 1 {
		all[netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)] = GuardClassRemote
	}
	if err := r.SetPrefixes(all); !errors.Is(err, ErrFull) {
		t.Errorf("got %v, want %v", err, ErrFull)
	}
}

// TestGuardLoadsWithoutPerfmon loads the programs as an agent in a pod does.
func TestGuardLoadsWithoutPerfmon(t *testing.T) {
	newGuardRig(t)
	loaded := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		loaded <- errors.Join(keepCapabilities(unix.CAP_BPF, unix.CAP_NET_ADMIN), loadAndCloseGuard())
	}()
	expect.NoError(t, <-loaded)
}

func loadAndCloseGuard() error {
	g, err := LoadGuard("")
	if err != nil {
		return err
	}
	return g.Close()
}

// keepCapabilities removes all other capabilities of the thread.
func keepCapabilities(kept ...int) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var few [2]unix.CapUserData
	for _, c := range kept {
		few[c/32].Effective |= 1 << (c % 32)
		few[c/32].Permitted |= 1 << (c % 32)
	}
	return unix.Capset(&header, &few[0])
}

func BenchmarkGuardRun(b *testing.B) {
	g, err := LoadGuard("")
	skipUnprivileged(b, err)
	expect.NoError(b, err)
	b.Cleanup(func() { expect.NoError(b, g.Close()) })
	all := map[netip.Prefix]GuardClass{}
	for i := range 5000 {
		all[netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i)}), 24)] = GuardClassRemote
	}
	expect.NoError(b, g.SetPrefixes(all))
	for name, to := range map[string]byte{"remote": 10, "none": 192} {
		b.Run(name, func(b *testing.B) {
			_, each, err := g.Ethernet().Benchmark(frame(set(ipv4(packet.TCP, 20), 16, to, 1, 7, 1)), 100000, b.ResetTimer)
			if err != nil {
				b.Skipf("needs BPF_PROG_TEST_RUN: %v", err)
			}
			b.ReportMetric(float64(each.Nanoseconds()), "ns/packet")
		})
	}
}
