// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/expect"
)

// Names of the counters.
const (
	admitted    = "initiation"
	sourceLimit = "hs_xdp_source_limit"
	totalLimit  = "hs_xdp_total_limit"
)

// admitRow returns the row of an initiation that is passed to the stack.
func admitRow(name string, in []byte) classifyRow { return classifyRow{name, in, xdpPass, admitted} }

func dropRow(name string, in []byte, reason string) classifyRow {
	return classifyRow{name, in, xdpDrop, reason}
}

func TestSourceLimitDropsItsFurtherInitiations(t *testing.T) {
	c := newClassify(t, ClassifyOptions{SourceLimit: limitOf(2)})
	checkRows(t, c, []classifyRow{
		admitRow("first", initiationFrom("192.0.2.1")), admitRow("second", initiationFrom("192.0.2.1")),
		dropRow("third", initiationFrom("192.0.2.1"), sourceLimit), dropRow("fourth", initiationFrom("192.0.2.1"), sourceLimit),
		admitRow("a neighbour", initiationFrom("192.0.2.2")),
		admitRow("v6", initiationFrom("2001:db8::1")), admitRow("its /64", initiationFrom("2001:db8::ffff:0:0:1")),
		dropRow("its /64 again", initiationFrom("2001:db8::7"), sourceLimit), admitRow("another /64", initiationFrom("2001:db8:0:1::1")),
		{"data meanwhile", data("192.0.2.1:1", us4).bytes(), xdpPass, "no_socket"},
		{"a response meanwhile", data("192.0.2.1:1", us4).with(withPayload(message(2, 92))).bytes(), xdpPass, "other"},
		{"a keepalive meanwhile", data("192.0.2.1:1", us4).with(withPayload(message(4, 32))).bytes(), xdpPass, "keepalive"},
	})
}

// TestSourcePortsShareLimitsOfListenPort: initiations to a port from which the tunnel sends are those of one flood. Nothing else to it is touched.
func TestSourcePortsShareLimitsOfListenPort(t *testing.T) {
	c := newClassify(t, ClassifyOptions{SourceLimit: limitOf(2)})
	expect.NoError(t, c.AddSourcePort(61000))
	to := func(dst string, payload []byte) []byte {
		src := "192.0.2.1:1"
		if endpoint(dst).Addr().Is6() {
			src = "[2001:db8::1]:1"
		}
		return data(src, dst).with(withPayload(payload)).bytes()
	}
	source4, source6, other := from(us4, 61000), from(us6, 61000), from(us4, 61001)
	checkRows(t, c, []classifyRow{
		admitRow("a source port", to(source4, initiation())), admitRow("the listen port", to(us4, initiation())),
		dropRow("the source port again", to(source4, initiation()), sourceLimit), dropRow("the listen port again", to(us4, initiation()), sourceLimit),
		admitRow("v6", to(source6, initiation())), admitRow("v6 again", to(source6, initiation())), dropRow("once more", to(source6, initiation()), sourceLimit),
		{"data to a source port", to(source4, message(4, 148)), xdpPass, ""},
		{"a response to it", to(source4, message(2, 92)), xdpPass, ""},
		{"a longer message", to(source4, message(1, 149)), xdpPass, ""},
		{"no message", to(source4, nil), xdpPass, ""},
		{"another port", to(other, initiation()), xdpPass, ""},
		{"another host", to(from(them4, 61000), initiation()), xdpPass, "not_local"},
	})
}

// TestProgramHasRoomForAllSourcePorts adds as many as a port opens, twice.
func TestProgramHasRoomForAllSourcePorts(t *testing.T) {
	c := newClassify(t, ClassifyOptions{})
	for range 2 {
		for i := range uint16(underlay.MaxSources) {
			expect.NoError(t, c.AddSourcePort(61000+i))
		}
	}
}

// TestFloodFromOneSourceConsumesNoTotalLimit also checks that initiations beyond a source's limit use nothing of the CPU's.
func TestFloodFromOneSourceConsumesNoTotalLimit(t *testing.T) {
	pinToCPU(t)
	c := newClassify(t, ClassifyOptions{SourceLimit: limitOf(2), TotalLimit: limitOf(4)})
	flood := initiationFrom("192.0.2.1")
	rows := []classifyRow{admitRow("flood", flood), admitRow("flood", flood)}
	for range 50 {
		rows = append(rows, dropRow("flood", flood, sourceLimit))
	}
	rows = append(rows, admitRow("a peer", initiationFrom("192.0.2.2")), admitRow("another", initiationFrom("192.0.2.3")),
		dropRow("one too many", initiationFrom("192.0.2.4"), totalLimit))
	checkRows(t, c, rows)
	if n := countSources(t, c); n != 3 {
		t.Errorf("%d sources are in the map, want only sources within the total limit", n)
	}
}

// TestPeersPassDuringSpoofedSourceFlood: with a cookie, or from a known peer source without one.
func TestPeersPassDuringSpoofedSourceFlood(t *testing.T) {
	pinToCPU(t)
	c := newClassify(t, ClassifyOptions{SourceLimit: limitOf(3), TotalLimit: limitOf(10)})
	expect.NoError(t, c.AddPeerSource(peerAt("192.0.2.1")))
	expect.NoError(t, c.AddPeerSource(peerAt("2001:db8::1")))
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 200 {
		verdict, counts, _ := classify(t, c, initiationFrom(fmt.Sprintf("10.%d.%d.%d", r.IntN(256), r.IntN(256), r.IntN(256))))
		if (verdict == xdpPass) != (i < 10) || counts[totalLimit] != b2u(i >= 10) {
			t.Fatalf("spoofed source %d: verdict %d, %v", i, verdict, counts)
		}
	}
	stranger := data("192.0.2.9:1", us4)
	checkRows(t, c, []classifyRow{
		admitRow("a known peer", initiationFrom("192.0.2.1")), admitRow("a known peer again", initiationFrom("192.0.2.1")),
		admitRow("a known v6 peer", initiationFrom("2001:db8::2")),
		dropRow("a stranger", stranger.with(withPayload(initiation())).bytes(), totalLimit),
		admitRow("the stranger with its cookie", stranger.with(withPayload(withMAC2())).bytes()),
		admitRow("the last of a known peer", initiationFrom("192.0.2.1")),
	})
	expect.NoError(t, c.RemovePeerSource(peerAt("192.0.2.1")))
	checkRows(t, c, []classifyRow{dropRow("no longer known", initiationFrom("192.0.2.1"), totalLimit)})
}

// TestSpoofedPeerSourceFallsBackToSharedLimit spoofs a peer's address. The flood exhausts the source's limit, and then the
// limit that peer sources share. The peer keeps a chance in proportion to that limit.
func TestSpoofedPeerSourceFallsBackToSharedLimit(t *testing.T) {
	pinToCPU(t)
	c := newClassify(t, ClassifyOptions{SourceLimit: limitOf(3), TotalLimit: limitOf(4)})
	expect.NoError(t, errors.Join(c.AddPeerSource(peerAt("192.0.2.1")), c.AddPeerSource(peerAt("192.0.2.2"))))
	flood, other := initiationFrom("192.0.2.1"), initiationFrom("192.0.2.2")
	var rows []classifyRow
	for range 3 + 4 {
		rows = append(rows, admitRow("its limit, then the peer sources' shared one", flood))
	}
	for range 20 {
		rows = append(rows, dropRow("the flood", flood, sourceLimit))
	}
	rows = append(rows, admitRow("another peer", other), admitRow("again", other), admitRow("the last", other), dropRow("one too many", other, sourceLimit))
	checkRows(t, c, append(rows, admitRow("a stranger", initiationFrom("192.0.2.9"))))
}

func TestPeerSourceLimitHoldsWithoutTotalLimit(t *testing.T) {
	c := newClassify(t, ClassifyOptions{SourceLimit: limitOf(1)})
	expect.NoError(t, c.AddPeerSource(peerAt("192.0.2.1")))
	checkRows(t, c, []classifyRow{
		admitRow("first", initiationFrom("192.0.2.1")), dropRow("second", initiationFrom("192.0.2.1"), sourceLimit),
	})
}

// TestPeerSourceWithoutLimitIsNeverDropped has the source's TAT ahead of the clock, as if another CPU had just written it.
func TestPeerSourceWithoutLimitIsNeverDropped(t *testing.T) {
	pinToCPU(t)
	c := newClassify(t, ClassifyOptions{TotalLimit: limitOf(1)})
	expect.NoError(t, c.AddPeerSource(peerAt("192.0.2.1")))
	in := initiationFrom("192.0.2.1")
	expect.NoError(t, c.maps.PeerSources.Put(limitKey(netip.MustParseAddr("192.0.2.1")), uint64(1)<<62))
	checkRows(t, c, []classifyRow{admitRow("first", in), admitRow("second", in), admitRow("third", in)})
}

func TestPeerSourceRemovedWithItsLastPeer(t *testing.T) {
	pinToCPU(t)
	c := newClassify(t, ClassifyOptions{TotalLimit: limitOf(1)})
	one, other := peerAt("2001:db8::1"), peerAt("2001:db8::2")
	expect.NoError(t, errors.Join(c.AddPeerSource(one), c.AddPeerSource(other)))
	checkRows(t, c, []classifyRow{admitRow("the CPU's only token", initiationFrom("192.0.2.1")), admitRow("known", initiationFrom("2001:db8::3"))})
	expect.NoError(t, c.RemovePeerSource(one))
	checkRows(t, c, []classifyRow{admitRow("still known", initiationFrom("2001:db8::3"))})
	expect.NoError(t, errors.Join(c.RemovePeerSource(other), c.RemovePeerSource(other), c.RemovePeerSource(netip.AddrPort{})))
	checkRows(t, c, []classifyRow{dropRow("no longer", initiationFrom("2001:db8::3"), totalLimit)})
}

func TestSourceMapGrowsWithCPUs(t *testing.T) {
	for cpus, want := range map[int]uint32{1: 16384, 16: 16384, 128: 131072} {
		if got := lruEntries(cpus); got != want {
			t.Errorf("%d CPUs: got %d entries, want %d", cpus, got, want)
		}
	}
	spec, err := classifySpec(ClassifyOptions{ListenPort: 1})
	expect.NoError(t, err)
	cpus, err := ebpf.PossibleCPU()
	if n := spec.Maps[classifyMapSources].MaxEntries; err != nil || n != lruEntries(cpus) {
		t.Errorf("got %d entries, error %v, want %d", n, err, lruEntries(cpus))
	}
}

func TestFullPeerSourceMapReturnsErrFull(t *testing.T) {
	c := newClassify(t, ClassifyOptions{})
	address := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 1)
	}
	for i := range ClassifySources {
		expect.NoError(t, c.AddPeerSource(address(i)))
	}
	for range 2 {
		if err := c.AddPeerSource(address(ClassifySources)); !errors.Is(err, ErrFull) {
			t.Errorf("adding one more: got error %v, want %v", err, ErrFull)
		}
	}
	expect.NoError(t, c.AddPeerSource(address(0)))
	expect.NoError(t, c.RemovePeerSource(address(1)))
	expect.NoError(t, c.AddPeerSource(address(ClassifySources)))
}

// TestRateLimitRefillsOverTime moves the TATs back, which equals the passing of time.
func TestRateLimitRefillsOverTime(t *testing.T) {
	pinToCPU(t)
	c := newClassify(t, ClassifyOptions{SourceLimit: limitOf(3)})
	in, key := initiationFrom("192.0.2.1"), limitKey(netip.MustParseAddr("192.0.2.1"))
	drain := func() (n int) {
		for ; n < 100; n++ {
			if verdict, _, _ := classify(t, c, in); verdict == xdpDrop {
				break
			}
		}
		return n
	}
	if n := drain(); n != 3 {
		t.Errorf("got %d initiations passed at first, want the burst of 3", n)
	}
	for _, tt := range []struct {
		hours, want int
	}{{0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 3}, {1, 1}, {1000, 3}} {
		var word uint64
		expect.NoError(t, c.maps.Sources.Lookup(key, &word))
		expect.NoError(t, c.maps.Sources.Put(key, word-uint64(min(time.Duration(tt.hours)*time.Hour, time.Duration(word)))))
		if n := drain(); n != tt.want {
			t.Errorf("got %d initiations passed after %d hours, want %d", n, tt.hours, tt.want)
		}
	}
}

// TestRateLimitIsTokenBucket compares the program with a simple model at random times.
func TestRateLimitIsTokenBucket(t *testing.T) {
	pinToCPU(t)
	r := rand.New(rand.NewPCG(7, 8))
	in, key := initiationFrom("192.0.2.1"), limitKey(netip.MustParseAddr("192.0.2.1"))
	for range 20 {
		burst := 1 + r.IntN(6)
		c := newClassify(t, ClassifyOptions{SourceLimit: limitOf(burst)})
		tokens := float64(burst)
		for range 60 {
			// Multiples of a quarter of an hour, so that the run time of the test does not change the remainder.
			if quarters := r.IntN(4) * r.IntN(4); quarters > 0 && tokens < float64(burst) {
				var word uint64
				expect.NoError(t, c.maps.Sources.Lookup(key, &word))
				expect.NoError(t, c.maps.Sources.Put(key, word-uint64(quarters)*uint64(15*time.Minute)))
				tokens = min(float64(burst), tokens+float64(quarters)/4)
			}
			verdict, _, _ := classify(t, c, in)
			if (verdict == xdpPass) != (tokens >= 1) {
				t.Fatalf("burst %d, %v tokens: verdict %d", burst, tokens, verdict)
			}
			if tokens >= 1 {
				tokens--
			}
		}
	}
}

// pinToCPU keeps the test's thread, which runs the programs, on one CPU with one limit.
func pinToCPU(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	var before, one unix.CPUSet
	expect.NoError(t, unix.SchedGetaffinity(0, &before))
	cpu := 0
	for !before.IsSet(cpu) {
		cpu++
	}
	one.Set(cpu)
	expect.NoError(t, unix.SchedSetaffinity(0, &one))
	t.Cleanup(func() {
		expect.NoError(t, unix.SchedSetaffinity(0, &before))
		runtime.UnlockOSThread()
	})
}

func countSources(t *testing.T, c *Classify) (n int) {
	t.Helper()
	var key classifyAddress
	var word uint64
	i := c.maps.Sources.Iterate()
	for i.Next(&key, &word) {
		n++
	}
	expect.NoError(t, i.Err())
	return n
}
