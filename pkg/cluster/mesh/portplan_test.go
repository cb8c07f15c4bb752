// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// nic returns an RSS configuration with a random key.
func nic(r *rand.Rand, table []uint32) *spread.RSS {
	key := make([]byte, 40)
	for i := range key {
		key[i] = byte(r.Uint32())
	}
	return &spread.RSS{Device: "eth0", Key: key, Indirection: table}
}

// senders returns random senders of an IP version, and a destination.
func senders(r *rand.Rand, v6 bool) (from []netip.Addr, to netip.AddrPort) {
	for range 40 {
		if v6 {
			a := netip.MustParseAddr("2001:db8::").As16()
			a[14], a[15] = byte(r.Uint32()), byte(r.Uint32())
			from = append(from, netip.AddrFrom16(a))
		} else {
			from = append(from, netip.AddrFrom4([4]byte{10, 0, byte(r.Uint32()), byte(r.Uint32())}))
		}
	}
	to = netip.MustParseAddrPort("10.1.2.3:51820")
	if v6 {
		to = netip.MustParseAddrPort("[2001:db8::1:1]:51820")
	}
	return from, to
}

// busiest returns the load of the busiest queue relative to its fair share, computed by the NIC's hash.
func busiest(t *testing.T, rss *spread.RSS, from netip.Addr, to netip.AddrPort, ports []uint16) float64 {
	t.Helper()
	parts, loads := map[int]float64{}, map[int]float64{}
	for _, q := range rss.Indirection {
		parts[int(q)]++
	}
	for _, p := range ports {
		q, err := rss.Queue(netip.AddrPortFrom(from, p), to)
		if err != nil {
			t.Fatal(err)
		}
		loads[q]++
	}
	most := 0.0
	for q, n := range loads {
		most = max(most, n/parts[q])
	}
	return most * float64(len(rss.Indirection)) / float64(len(ports))
}

// reached returns how many queues any port reaches.
func reached(t *testing.T, rss *spread.RSS, to netip.AddrPort) int {
	t.Helper()
	from, queues := netip.IPv6Unspecified(), map[int]bool{}
	if to.Addr().Is4() {
		from = netip.IPv4Unspecified()
	}
	for _, p := range spread.DefaultPorts.All() {
		q, err := rss.Queue(netip.AddrPortFrom(from, p), to)
		if err != nil {
			t.Fatal(err)
		}
		queues[q] = true
	}
	return len(queues)
}

func TestPlanReachesEachQueueOnceForAnySender(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, queues := range []int{2, 8, 32} {
		for _, transform := range []spread.Transform{spread.Plain, spread.SymmetricXOR, spread.SymmetricORXOR} {
			for _, v6 := range []bool{false, true} {
				from, to := senders(r, v6)
				rss := nic(r, spread.EqualIndirection(queues))
				rss.Transform = transform
				for reached(t, rss, to) < queues { // see TestDegenerateKeyStillGetsPlan
					rss.Key = nic(r, nil).Key
				}
				ports, err := PlanFor(rss, to, spread.DefaultPorts)
				if err != nil {
					t.Fatal(err)
				}
				if len(ports) != queues {
					t.Fatalf("%d ports for %d queues, transform %d, v6 %t", len(ports), queues, transform, v6)
				}
				for _, a := range from {
					if got := busiest(t, rss, a, to, ports); got > 1.001 {
						t.Errorf("%d queues, transform %d: from %s the busiest has %.2f of its part", queues, transform, a, got)
					}
				}
			}
		}
	}
}

// TestDegenerateKeyStillGetsPlan: where no port reaches some of the queues, the plan uses the others.
func TestDegenerateKeyStillGetsPlan(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	from, to := senders(r, false)
	rss := nic(r, spread.EqualIndirection(32))
	for reached(t, rss, to) == 32 {
		rss.Key = nic(r, nil).Key
	}
	ports, err := PlanFor(rss, to, spread.DefaultPorts)
	if err != nil || len(ports) == 0 {
		t.Fatalf("got %d, error %v, want no error", ports, err)
	}
	for _, a := range from {
		planned, unplanned := busiest(t, rss, a, to, ports), busiest(t, rss, a, to, spread.DefaultPorts.All()[:len(ports)])
		if planned > unplanned+0.001 {
			t.Errorf("from %s the busiest has %.2f of its part, and %.2f unplanned", a, planned, unplanned)
		}
	}
}

func TestNearlyEveryKeyReachesAllQueues(t *testing.T) {
	const keys = 4000
	under := map[int]int{2: 1, 4: 3, 8: 6, 16: 12, 32: 20} // per 1,000, by queues
	r, missing := rand.New(rand.NewPCG(13, 14)), map[int]int{}
	for range keys {
		all, err := portEntries(nic(r, spread.EqualIndirection(32)), netip.MustParseAddrPort("10.1.2.3:51820"), spread.DefaultPorts)
		if err != nil {
			t.Fatal(err)
		}
		for queues := range under {
			table, matched := spread.EqualIndirection(queues), map[uint32]bool{}
			for _, e := range all {
				matched[table[e.entry]] = true
			}
			if len(matched) < queues {
				missing[queues]++
			}
		}
	}
	for queues, most := range under {
		if got := float64(missing[queues]) * 1000 / keys; got >= float64(most) {
			t.Errorf("%d queues: %.1f of 1,000 keys do not reach all", queues, got)
		}
	}
}

// TestDriverDefaultKeysReachAllQueues covers Microsoft's key, and the symmetric key, which repeats 16 bits.
func TestDriverDefaultKeysReachAllQueues(t *testing.T) {
	for _, to := range []string{"10.1.2.3:51820", "[2001:db8::1:1]:51820"} {
		for _, key := range [][]byte{spread.MicrosoftKey(), bytes.Repeat([]byte{0x6d, 0x5a}, 26)} {
			rss := &spread.RSS{Key: key, Indirection: spread.EqualIndirection(32)}
			at := netip.MustParseAddrPort(to)
			ports, err := PlanFor(rss, at, spread.DefaultPorts)
			if n := reached(t, rss, at); err != nil || n != 32 || len(ports) != 32 {
				t.Errorf("%x, to %s: %d queues, %d ports, %v", key[:4], to, n, len(ports), err)
			}
		}
	}
}

// TestCommonPlanNearlyMatchesPerSenderPlan compares with spread.Plan, which knows the sender, and with the ports used without a
// plan.
func TestCommonPlanNearlyMatchesPerSenderPlan(t *testing.T) {
	weighted := slices.Concat(slices.Repeat([]uint32{0}, 64), slices.Repeat([]uint32{1}, 32), slices.Repeat([]uint32{2, 3}, 16))
	for name, table := range map[string][]uint32{
		"3 queues": spread.EqualIndirection(3), "6 queues": spread.EqualIndirection(6), "12 queues": spread.EqualIndirection(12),
		"48 queues": spread.EqualIndirection(48), "20 queues": spread.EqualIndirection(20), "weighted": weighted,
		"in blocks":   slices.Concat(slices.Repeat([]uint32{0}, 32), slices.Repeat([]uint32{1}, 32), slices.Repeat([]uint32{2}, 32), slices.Repeat([]uint32{3}, 32)),
		"2,048 large": slices.Repeat(spread.EqualIndirection(8), 16),
	} {
		r := rand.New(rand.NewPCG(3, 4)) // for each case: the order of the cases is random
		rss := nic(r, table)
		from, to := senders(r, false)
		ports, err := PlanFor(rss, to, spread.DefaultPorts)
		if err != nil {
			t.Fatal(name, err)
		}
		var common, own, unplanned float64
		for _, a := range from {
			best, err := spread.Plan(rss, a, to, spread.DefaultPorts, len(ports))
			if err != nil {
				t.Fatal(name, err)
			}
			common += busiest(t, rss, a, to, ports) / float64(len(from))
			own += busiest(t, rss, a, to, best) / float64(len(from))
			unplanned += busiest(t, rss, a, to, spread.DefaultPorts.All()[:len(ports)]) / float64(len(from))
		}
		t.Logf("%s: %d ports, busiest queue %.2f of its part; planned for each sender %.2f, unplanned %.2f", name, len(ports), common, own, unplanned)
		if common > 1.35*own || common > unplanned+0.001 {
			t.Errorf("%s: got %.2f, want at most %.2f", name, common, 1.35*own)
		}
	}
}

func TestPlanIsDeterministicAndDistinct(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 15 {
		rss := nic(r, spread.EqualIndirection(1+r.IntN(200)))
		to := netip.MustParseAddrPort("192.0.2.1:51820")
		own := spread.Ports{First: uint16(1024 + r.IntN(60000)), Last: 65535}
		ports, err := PlanFor(rss, to, own)
		if err != nil {
			t.Fatal(err)
		}
		if why := planProblem(ports, own); why != "" {
			t.Error(why)
		}
		if again, _ := PlanFor(rss, to, own); !slices.Equal(again, ports) {
			t.Errorf("%v, then %v", ports, again)
		}
	}
}

func TestPlanForReportsUnplannableNICs(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	to := netip.MustParseAddrPort("192.0.2.1:51820")
	for _, c := range []struct {
		name  string
		edit  func(*spread.RSS)
		ports spread.Ports
		want  error
	}{
		{"one queue", func(r *spread.RSS) { r.Indirection = make([]uint32, 128) }, spread.DefaultPorts, nil},
		{"ports are not hashed", func(r *spread.RSS) { r.UDP4 = spread.AddressesOnly }, spread.DefaultPorts, spread.ErrNotByPort},
		{"an unknown hash", func(r *spread.RSS) { r.Function = spread.OtherFunction }, spread.DefaultPorts, spread.ErrUnknownHash},
		{"a short key", func(r *spread.RSS) { r.Key = r.Key[:8] }, spread.DefaultPorts, spread.ErrUnknownHash},
		{"no table", func(r *spread.RSS) { r.Indirection = nil }, spread.DefaultPorts, ErrNoCommonPlan},
		{"a table whose length is no power of two", func(r *spread.RSS) { r.Indirection = r.Indirection[:96] }, spread.DefaultPorts, ErrNoCommonPlan},
		{"no ports", func(*spread.RSS) {}, spread.Ports{}, spread.ErrNoCandidates},
	} {
		rss := nic(r, spread.EqualIndirection(4))
		c.edit(rss)
		if ports, err := PlanFor(rss, to, c.ports); !errors.Is(err, c.want) || len(ports) > 0 {
			t.Errorf("%s: got %v, error %v, want %v", c.name, ports, err, c.want)
		}
	}
}

func TestInvalidPlanIsIgnoredEntirely(t *testing.T) {
	many := make([]uint16, spread.MaxPorts+1)
	for i := range many {
		many[i] = 61000 + uint16(i)
	}
	for _, c := range []struct {
		name     string
		plan     []uint16
		own      spread.Ports
		problems string
	}{
		{"all ports are this node's", []uint16{61999, 61000}, spread.DefaultPorts, ""},
		{"the maximum number of ports", many[:spread.MaxPorts], spread.DefaultPorts, ""},
		{"too many ports", many, spread.DefaultPorts, "n2: its plan has 65 ports, more than 64"},
		{"one port is not this node's", []uint16{61000, 62000}, spread.DefaultPorts, "n2: its plan has port 62000, outside of this node's spread ports 61000-61999"},
		{"a well-known port", []uint16{53}, spread.DefaultPorts, "n2: its plan has port 53, outside of this node's spread ports 61000-61999"},
		{"port 0", []uint16{0}, spread.DefaultPorts, "n2: its plan has port 0, outside of this node's spread ports 61000-61999"},
		{"this node spreads over other ports", []uint16{61000}, spread.Ports{First: 40000, Last: 40099}, "n2: its plan has port 61000, outside of this node's spread ports 40000-40099"},
		{"a port twice", []uint16{61001, 61000, 61001}, spread.DefaultPorts, "n2: its plan has port 61001 twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			nodes := []Node{
				node(1, spreads, func(n *Node) { n.Agent.Ports = c.own }),
				node(2, spreads, func(n *Node) { n.Agent.Plans.V4, n.Agent.Plans.V6 = c.plan, []uint16{61500} }), node(3, spreads),
			}
			if c.own != spread.DefaultPorts {
				nodes[1].Agent.Plans.V6 = nil
			}
			plan := Spread("n1", nodes, true)
			if text := lines(plan.Problems); text != c.problems {
				t.Errorf("problems: got %q, want %q", text, c.problems)
			}
			want := c.plan
			if c.problems != "" {
				want = nil
			}
			if diff := cmp.Diff(want, plan.Peers[0].Plans.For(plan.Peers[0].Endpoints[0].Addr()), equal); diff != "" {
				t.Error("-want +got\n" + diff)
			}
			if got := plan.Peers[0].Plans.For(netip.IPv6LinkLocalAllNodes()); !slices.Equal(got, nodes[1].Agent.Plans.V6) {
				t.Errorf("a plan for IPv4 alone was wrong, and that for IPv6 is %v", got)
			}
			if len(plan.Peers) != 2 || plan.SpreadsTo() != 2 || plan.Peers[1].Plans.V4 != nil {
				t.Errorf("others are not as they were: %+v", plan)
			}
		})
	}
}

func TestUnmatchedPeersAreNotSpreadTo(t *testing.T) {
	for _, c := range []struct {
		has      string
		matched  int
		problems int
	}{
		{"192.0.2.2 192.0.2.3", 2, 0},
		{"192.0.2.3 198.51.100.2", 1, 1},
		{"198.51.100.2 198.51.100.3", 0, 1},
	} {
		plan := Spread("n1", []Node{node(1, spreads), node(2, spreads), node(3, spreads)}, true)
		matched := plan.MatchTunnel(func(a netip.Addr) bool { return slices.Contains(strings.Fields(c.has), a.String()) })
		plan.ReportUnmatched(func(node string) bool { return node == "n2" }) // n3 has been unmatched only for a moment
		if matched != c.matched || plan.SpreadsTo() != c.matched || len(plan.Problems) != c.problems || len(plan.Peers) != 2 {
			t.Errorf("%s: %d met, %+v", c.has, matched, plan)
		}
		if c.problems > 0 && plan.Problems[0].Node != "n2" {
			t.Errorf("got %+v", plan.Problems)
		}
	}
}

func BenchmarkPlanFor(b *testing.B) {
	r := rand.New(rand.NewPCG(9, 10))
	to := netip.MustParseAddrPort("192.0.2.1:51820")
	for _, size := range []int{128, 512, maxTableLength} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			rss := nic(r, slices.Repeat(spread.EqualIndirection(16), size/128))
			for b.Loop() {
				if _, err := PlanFor(rss, to, spread.DefaultPorts); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
