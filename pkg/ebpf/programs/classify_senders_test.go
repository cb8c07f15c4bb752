// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestRepeatedInitiationPassesDuringSpoofedSourceFlood: the sender tries again after 5 s, in one of the two next intervals.
func TestRepeatedInitiationPassesDuringSpoofedSourceFlood(t *testing.T) {
	pinToCPU(t)
	for _, tt := range []struct {
		name          string
		first, second string
		intervals     int
		passes        bool
	}{
		{"in the same interval", "192.0.2.1", "192.0.2.1", 0, false},
		{"in the next interval", "192.0.2.1", "192.0.2.1", 1, true},
		{"in the interval after", "192.0.2.1", "192.0.2.1", 2, true},
		{"too late", "192.0.2.1", "192.0.2.1", 3, false},
		{"later", "192.0.2.1", "192.0.2.1", 4, false},
		{"even later", "192.0.2.1", "192.0.2.1", 5, false},
		{"another address", "192.0.2.1", "192.0.2.2", 1, false},
		{"v6", "2001:db8::1", "2001:db8::1", 2, true},
		{"another address of the /64", "2001:db8::1", "2001:db8::ffff:0:0:2", 1, true},
		{"another /64", "2001:db8::1", "2001:db8:0:1::1", 1, false},
		{"IPv4 in place of IPv6", "2001:db8::1", "192.0.2.1", 1, false},
	} {
		c := newSendersClassify(t, 10, 32)
		flood := newSpoofedSources()
		admitted := flood.send(t, c, 50)
		checkRows(t, c, []classifyRow{dropRow(tt.name+": first", initiationFrom(tt.first), totalLimit)})
		ageSenders(t, c, tt.intervals)
		if admitted += flood.send(t, c, 50); admitted != 10 {
			t.Errorf("%s: %d initiations of the flood passed, want 10", tt.name, admitted)
		}
		again := dropRow(tt.name, initiationFrom(tt.second), totalLimit)
		if tt.passes {
			again = admitRow(tt.name, again.in)
		}
		checkRows(t, c, []classifyRow{again})
	}
}

// TestFloodOfRepeatedSourcesUsesOneLimit: neither new senders nor those with a cookie compete with it.
func TestFloodOfRepeatedSourcesUsesOneLimit(t *testing.T) {
	pinToCPU(t)
	c := newSendersClassify(t, 60, 32)
	if n := newSpoofedSources().send(t, c, 50); n != 50 {
		t.Errorf("%d initiations passed at first, want 50", n)
	}
	ageSenders(t, c, 1)
	again, admitted := newSpoofedSources(), 0
	for range 3 {
		admitted += again.send(t, c, 50)
		again = newSpoofedSources()
	}
	if admitted != 60 {
		t.Errorf("%d repeated initiations passed, want 60", admitted)
	}
	other := &spoofedSources{rand.New(rand.NewPCG(5, 6))}
	if n := other.send(t, c, 50); n != 10 {
		t.Errorf("%d initiations of new sources passed, want the 10 that the first ones have left", n)
	}
	checkRows(t, c, []classifyRow{admitRow("with a cookie", data("192.0.2.9:1", us4).with(withPayload(withMAC2())).bytes())})
}

// TestFilterForgetsSendersOfFormerIntervals has all sources in one block, which the second one uses anew.
func TestFilterForgetsSendersOfFormerIntervals(t *testing.T) {
	pinToCPU(t)
	c := newSendersClassify(t, 1, 1)
	old, next := initiationFrom("192.0.2.1"), initiationFrom("192.0.2.2")
	checkRows(t, c, []classifyRow{admitRow("old", old)})
	ageSenders(t, c, int(senderFilters(t)))
	checkRows(t, c, []classifyRow{dropRow("next", next, totalLimit)})
	ageSenders(t, c, 1)
	checkRows(t, c, []classifyRow{dropRow("old", old, totalLimit), admitRow("next", next)})
}

// TestFewNewSendersAreTakenForKnownOnes has 200,000 new sources per second, scaled down with the filters.
func TestFewNewSendersAreTakenForKnownOnes(t *testing.T) {
	pinToCPU(t)
	const scale, perInterval = 1024, 200_000 * 4 / 1024
	c := newSendersClassify(t, 1000, defaultSenders().blocks/scale)
	flood, known := newSpoofedSources(), 0
	for range 3 {
		ageSenders(t, c, 1)
		known = flood.send(t, c, perInterval)
	}
	if known > perInterval/200 {
		t.Errorf("%d of %d new sources pass as known ones, want fewer than one in 200", known, perInterval)
	}
	t.Logf("%d of %d", known, perInterval)
}

// newSendersClassify loads the program with a limit that is not refilled. The present interval does not end, and has number 0.
func newSendersClassify(t *testing.T, limit int, blocks uint32) *Classify {
	t.Helper()
	o := ClassifyOptions{ListenPort: 51820, TotalLimit: limitOf(limit)}
	spec, err := classifySpec(o)
	expect.NoError(t, err)
	spec.Maps[classifyMapSenders].MaxEntries = senderFilters(t)
	for name, value := range (recentSenders{interval: math.MaxInt64, blocks: blocks, seed: 1}).configure(spec) {
		expect.NoError(t, spec.Variables[name].Set(value))
	}
	c, err := loadClassifySpec(spec)
	skipUnprivileged(t, err)
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, c.Close()) })
	expect.NoError(t, c.SetAddresses([]netip.Addr{endpoint(us4).Addr(), endpoint(us6).Addr()}))
	return c
}

// senderFilters returns the number of filters in the C header.
func senderFilters(t *testing.T) uint32 {
	t.Helper()
	spec, err := loadClassify()
	expect.NoError(t, err)
	return spec.Maps[classifyMapSenders].MaxEntries
}

// ageSenders moves the filters back by intervals, which equals the passing of time.
func ageSenders(t *testing.T, c *Classify, intervals int) {
	t.Helper()
	n, filters := c.maps.Senders.MaxEntries(), senderFilters(t)
	aged := make([]classifySenderBlock, n)
	for key := range n {
		var b classifySenderBlock
		expect.NoError(t, c.maps.Senders.Lookup(key, &b))
		for i := range b.Words {
			b.Words[i] -= uint64(intervals) << 48
		}
		back := uint32(intervals) % filters * (n / filters)
		aged[(key+n-back)%n] = b
	}
	for key, b := range aged {
		expect.NoError(t, c.maps.Senders.Put(uint32(key), b))
	}
}

// spoofedSources are random addresses of 10.0.0.0/8.
type spoofedSources struct{ r *rand.Rand }

func newSpoofedSources() *spoofedSources { return &spoofedSources{rand.New(rand.NewPCG(3, 4))} }

// send sends an initiation of each of the next n addresses, and returns the number of those that passed.
func (s *spoofedSources) send(t *testing.T, c *Classify, n int) (admitted int) {
	t.Helper()
	for range n {
		a := netip.AddrFrom4([4]byte{10, byte(s.r.Uint32()), byte(s.r.Uint32()), byte(s.r.Uint32())})
		verdict, counts, _ := classify(t, c, initiationFrom(a.String()))
		switch {
		case verdict == xdpPass && counts["initiation"] == 1:
			admitted++
		case counts[totalLimit] != 1:
			t.Fatalf("from %v: verdict %d, %v", a, verdict, counts)
		}
	}
	return admitted
}
