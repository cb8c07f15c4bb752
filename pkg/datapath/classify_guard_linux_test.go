// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/spread"
)

// Counts of the guard.
const (
	admitted = "initiation"
	ofSource = "hs_source_budget"
	ofTotal  = "hs_total_budget"
)

// let returns the row of an initiation that is let in.
func let(name string, in []byte) classifyRow { return classifyRow{name, in, xdpPass, admitted} }

func refuse(name string, in []byte, reason string) classifyRow {
	return classifyRow{name, in, xdpDrop, reason}
}

func TestASourceHasItsBudgetOfInitiations(t *testing.T) {
	c := newClassify(t, ClassifyOptions{Source: atMost(2)})
	verdicts(t, c, []classifyRow{
		let("first", initiationFrom("192.0.2.1")), let("second", initiationFrom("192.0.2.1")),
		refuse("third", initiationFrom("192.0.2.1"), ofSource), refuse("fourth", initiationFrom("192.0.2.1"), ofSource),
		let("a neighbour", initiationFrom("192.0.2.2")),
		let("v6", initiationFrom("2001:db8::1")), let("its /64", initiationFrom("2001:db8::ffff:0:0:1")),
		refuse("its /64 again", initiationFrom("2001:db8::7"), ofSource), let("another /64", initiationFrom("2001:db8:0:1::1")),
		{"data meanwhile", data("192.0.2.1:1", us4).bytes(), xdpPass, "no_socket"},
		{"a response meanwhile", data("192.0.2.1:1", us4).with(carrying(message(2, 92))).bytes(), xdpPass, "other"},
		{"a keepalive meanwhile", data("192.0.2.1:1", us4).with(carrying(message(4, 32))).bytes(), xdpPass, "keepalive"},
	})
}

// TestAFloodFromOneSourceLeavesTheOthersTheirBudget also has what exceeds a source's budget cost the CPU's nothing.
func TestAFloodFromOneSourceLeavesTheOthersTheirBudget(t *testing.T) {
	onOneCPU(t)
	c := newClassify(t, ClassifyOptions{Source: atMost(2), Total: atMost(4)})
	flood := initiationFrom("192.0.2.1")
	rows := []classifyRow{let("flood", flood), let("flood", flood)}
	for range 50 {
		rows = append(rows, refuse("flood", flood, ofSource))
	}
	rows = append(rows, let("a peer", initiationFrom("192.0.2.2")), let("another", initiationFrom("192.0.2.3")),
		refuse("one too many", initiationFrom("192.0.2.4"), ofTotal))
	verdicts(t, c, rows)
	if n := entriesOf(t, c); n != 3 {
		t.Errorf("%d sources are remembered: who is refused for the total must not be", n)
	}
}

// TestPeersGetThroughAFloodFromInventedSources: with a cookie, and as a known peer without.
func TestPeersGetThroughAFloodFromInventedSources(t *testing.T) {
	onOneCPU(t)
	c := newClassify(t, ClassifyOptions{Source: atMost(3), Total: atMost(10)})
	must(t, c.AddSource(netip.MustParseAddr("192.0.2.1")))
	must(t, c.AddSource(netip.MustParseAddr("2001:db8::1")))
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 200 {
		verdict, counts, _ := classify(t, c, initiationFrom(fmt.Sprintf("10.%d.%d.%d", r.IntN(256), r.IntN(256), r.IntN(256))))
		if (verdict == xdpPass) != (i < 10) || counts[ofTotal] != b2u(i >= 10) {
			t.Fatalf("invented source %d: verdict %d, %v", i, verdict, counts)
		}
	}
	stranger := data("192.0.2.9:1", us4)
	verdicts(t, c, []classifyRow{
		let("a known peer", initiationFrom("192.0.2.1")), let("a known peer again", initiationFrom("192.0.2.1")),
		let("a known v6 peer", initiationFrom("2001:db8::2")),
		refuse("a stranger", stranger.with(carrying(initiation())).bytes(), ofTotal),
		let("the stranger with its cookie", stranger.with(carrying(withMAC2())).bytes()),
		let("the last of a known peer", initiationFrom("192.0.2.1")),
	})
	must(t, c.RemoveSource(netip.MustParseAddr("192.0.2.1")))
	verdicts(t, c, []classifyRow{refuse("no longer known", initiationFrom("192.0.2.1"), ofTotal)})
}

// TestAFloodInAKnownPeersNameLeavesItAChance: whoever sends as if from a peer's address exhausts that source's budget, and
// then a budget that known sources share, so that the peer is not left with a chance of one in the flood's length.
func TestAFloodInAKnownPeersNameLeavesItAChance(t *testing.T) {
	onOneCPU(t)
	c := newClassify(t, ClassifyOptions{Source: atMost(3), Total: atMost(4)})
	must(t, errors.Join(c.AddSource(netip.MustParseAddr("192.0.2.1")), c.AddSource(netip.MustParseAddr("192.0.2.2"))))
	flood, other := initiationFrom("192.0.2.1"), initiationFrom("192.0.2.2")
	var rows []classifyRow
	for range 3 + 4 {
		rows = append(rows, let("its budget, then the known sources'", flood))
	}
	for range 20 {
		rows = append(rows, refuse("the flood", flood, ofSource))
	}
	rows = append(rows, let("another peer", other), let("again", other), let("the last", other), refuse("one too many", other, ofSource))
	verdicts(t, c, append(rows, let("a stranger", initiationFrom("192.0.2.9"))))
}

func TestAFloodInAKnownPeersNameHasNoMoreThanItsBudgetWhereNoTotalIsSet(t *testing.T) {
	c := newClassify(t, ClassifyOptions{Source: atMost(1)})
	must(t, c.AddSource(netip.MustParseAddr("192.0.2.1")))
	verdicts(t, c, []classifyRow{
		let("first", initiationFrom("192.0.2.1")), refuse("second", initiationFrom("192.0.2.1"), ofSource),
	})
}

// TestAKnownSourceWithoutALimitIsNeverRefused has its word ahead of the clock, as when another CPU has just written it.
func TestAKnownSourceWithoutALimitIsNeverRefused(t *testing.T) {
	onOneCPU(t)
	c := newClassify(t, ClassifyOptions{Total: atMost(1)})
	must(t, c.AddSource(netip.MustParseAddr("192.0.2.1")))
	in := initiationFrom("192.0.2.1")
	must(t, c.maps.Known.Put(limitedAs(netip.MustParseAddr("192.0.2.1")), uint64(1)<<62))
	verdicts(t, c, []classifyRow{let("first", in), let("second", in), let("third", in)})
}

func TestASourceIsKnownUntilItsLastPeerIsGone(t *testing.T) {
	onOneCPU(t)
	c := newClassify(t, ClassifyOptions{Total: atMost(1)})
	one, other := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	must(t, errors.Join(c.AddSource(one), c.AddSource(other)))
	verdicts(t, c, []classifyRow{let("the CPU's only token", initiationFrom("192.0.2.1")), let("known", initiationFrom("2001:db8::3"))})
	must(t, c.RemoveSource(one))
	verdicts(t, c, []classifyRow{let("still known", initiationFrom("2001:db8::3"))})
	must(t, errors.Join(c.RemoveSource(other), c.RemoveSource(other), c.RemoveSource(netip.Addr{})))
	verdicts(t, c, []classifyRow{refuse("no longer", initiationFrom("2001:db8::3"), ofTotal)})
}

func TestAFullMapOfKnownSourcesRefusesOneMore(t *testing.T) {
	c := newClassify(t, ClassifyOptions{})
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	for i := range ClassifySources {
		must(t, c.AddSource(address(i)))
	}
	for range 2 {
		if err := c.AddSource(address(ClassifySources)); !errors.Is(err, ErrFull) {
			t.Errorf("one more: %v", err)
		}
	}
	must(t, c.AddSource(address(0)))
	must(t, c.RemoveSource(address(1)))
	must(t, c.AddSource(address(ClassifySources)))
}

// TestABudgetComesBackWithTime moves the words back, which is all that time does.
func TestABudgetComesBackWithTime(t *testing.T) {
	onOneCPU(t)
	c := newClassify(t, ClassifyOptions{Source: atMost(3)})
	in, key := initiationFrom("192.0.2.1"), limitedAs(netip.MustParseAddr("192.0.2.1"))
	drain := func() (n int) {
		for ; n < 100; n++ {
			if verdict, _, _ := classify(t, c, in); verdict == xdpDrop {
				break
			}
		}
		return n
	}
	if n := drain(); n != 3 {
		t.Errorf("%d at first, want the burst of 3", n)
	}
	for _, tt := range []struct {
		hours, want int
	}{{0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 3}, {1, 1}, {1000, 3}} {
		var word uint64
		must(t, c.maps.Sources.Lookup(key, &word))
		must(t, c.maps.Sources.Put(key, word-uint64(min(time.Duration(tt.hours)*time.Hour, time.Duration(word)))))
		if n := drain(); n != tt.want {
			t.Errorf("%d after %d hours, want %d", n, tt.hours, tt.want)
		}
	}
}

// TestABudgetIsATokenBucket holds the program against an obvious one, at random instants.
func TestABudgetIsATokenBucket(t *testing.T) {
	onOneCPU(t)
	r := rand.New(rand.NewPCG(7, 8))
	in, key := initiationFrom("192.0.2.1"), limitedAs(netip.MustParseAddr("192.0.2.1"))
	for range 20 {
		burst := 1 + r.IntN(6)
		c := newClassify(t, ClassifyOptions{Source: atMost(burst)})
		tokens := float64(burst)
		for range 60 {
			// A quarter of an hour's multiples, so that the test's own time makes no difference to what is left over.
			if quarters := r.IntN(4) * r.IntN(4); quarters > 0 && tokens < float64(burst) {
				var word uint64
				must(t, c.maps.Sources.Lookup(key, &word))
				must(t, c.maps.Sources.Put(key, word-uint64(quarters)*uint64(15*time.Minute)))
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

// TestInitiationsToLanePortsAreGuardedToo: the engine takes handshakes at every port that it has. What else is there may
// be others'.
func TestInitiationsToLanePortsAreGuardedToo(t *testing.T) {
	c := newClassify(t, ClassifyOptions{Source: atMost(1), Lanes: spread.Ports{First: 61000, Last: 61999}, CheckIndices: true})
	defer unix.Close(addSocket(t, c, 0))
	to := func(port uint16, payload []byte) []byte {
		return data(them4, from(us4, port)).with(carrying(payload)).bytes()
	}
	verdicts(t, c, []classifyRow{
		let("first", to(61000, initiation())), refuse("second", to(61999, initiation()), ofSource),
		refuse("to the canonical port", to(51820, initiation()), ofSource),
		{"before the lanes", to(60999, initiation()), xdpPass, ""},
		{"behind the lanes", to(62000, initiation()), xdpPass, ""},
		{"data", to(61000, message(4, 96)), xdpPass, ""},
		{"a response", to(61000, message(2, 92)), xdpPass, ""},
		{"nothing", to(61000, nil), xdpPass, ""},
		{"longer", to(61000, message(1, 149)), xdpPass, ""},
		{"a fragment", set(to(61000, initiation()), 14+6, 0x20, 0), xdpPass, ""},
		{"a lie", set(to(61000, initiation()), 14+3, 28), xdpPass, ""},
		{"another's", data(them4, "198.51.100.2:61000").with(carrying(initiation())).bytes(), xdpPass, ""},
	})
}

// onOneCPU keeps the test's thread, which runs the programs, from changing the CPU and with it the budget.
func onOneCPU(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	var before, one unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &before))
	one.Set(possibleCPUs(t)[0])
	must(t, unix.SchedSetaffinity(0, &one))
	t.Cleanup(func() {
		must(t, unix.SchedSetaffinity(0, &before))
		runtime.UnlockOSThread()
	})
}

func entriesOf(t *testing.T, c *Classify) (n int) {
	t.Helper()
	var key classifyAddress
	var word uint64
	i := c.maps.Sources.Iterate()
	for i.Next(&key, &word) {
		n++
	}
	must(t, i.Err())
	return n
}
