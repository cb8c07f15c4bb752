// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

// Limit is the limiting factor of a tunnel's throughput.
type Limit string

// The limits. All but LimitIdle and LimitUnknown name the part that takes the largest share of processors that are all busy.
const (
	LimitCrypto    Limit = "crypto"
	LimitTUN       Limit = "TUN"
	LimitUnderlay  Limit = "underlay"
	LimitGenerator Limit = "cores shared with the traffic generator"
	// LimitRest is the work between the measured parts: per train and per packet, wakeups, cold caches.
	LimitRest Limit = "everything else"
	// LimitUnknown means that not all parts were measured.
	LimitUnknown Limit = "unknown"
	// LimitIdle means that processors were idle: more lanes or streams may carry more.
	LimitIdle Limit = "lanes"
)

// busyEnough is the share of the cores from which on a machine counts as busy: the last bit goes to gaps between
// threads.
const busyEnough = 0.8

// Parts are the figures from which a Verdict is derived. Rates are the rates of one core in
// Gbit/s; 0 is not measured.
type Parts struct {
	Cores                       int
	Seal, Open                  float64
	TUNRead, TUNWrite           float64
	UnderlaySend, UnderlayRecv  float64
	RawGbps, GeneratorCoresGbps float64 // TCP over the bare cable at its best, and the cores that a Gbit/s of it takes
	NullTunnelCoresGbps         float64 // cores that a Gbit/s of TCP takes from one TUN into another
	PairCoresGbps               float64 // cores that a Gbit/s takes to send and receive on two threads
	Tunnel                      []Throughput
}

// Throughput is TCP through the tunnel, and how many cores it took, both ends and the generator included.
type Throughput struct {
	Lanes   int     `json:"lanes"`
	Streams int     `json:"streams"`
	Gbps    float64 `json:"gbps"`
	Cores   float64 `json:"cores"`
}

// Share is a part of the processors' time.
type Share struct {
	Part    Limit   `json:"part"`
	Percent float64 `json:"percent"`
}

// Verdict is a machine's tunnel throughput and its limiting factor.
type Verdict struct {
	Best    Throughput   `json:"best"`     // the most that was reached
	One     Throughput   `json:"one"`      // the most with one stream
	ByLanes []Throughput `json:"by_lanes"` // the most with each number of lanes
	Limit   Limit        `json:"limit"`
	// Shares of the processors' time at Best, largest first. They are estimates: each part's cost was measured by itself.
	// None (an empty list) when not all were.
	Shares []Share `json:"shares"`
	// OneEndGbps estimates the throughput in one direction when the machine is one end of the
	// tunnel, and all its cores are used. The other end and the traffic's ends are elsewhere; 0 is
	// unknown.
	OneEndGbps float64 `json:"one_end_gbps"`
}

// PartsOf takes the figures that a Verdict needs out of a report.
func PartsOf(r *Report) Parts {
	p := Parts{
		Cores:   r.Machine.Cores,
		Seal:    8 * r.value(StageCrypto, "seal_train"),
		Open:    8 * r.value(StageCrypto, "open_train"),
		TUNRead: r.value(StageTUN, "read_train"), TUNWrite: r.value(StageTUN, "write_train"),
		UnderlaySend: r.value(StageUnderlay, "send_gso"), UnderlayRecv: r.value(StageUnderlay, "receive_gso"),
	}
	if f := r.Find(StageUnderlay, "pair_gso"); f != nil {
		p.PairCoresGbps = f.More["cores_per_gbps"]
	}
	for i := range r.Figures {
		f := &r.Figures[i]
		if f.Name != "tcp" || f.Error != "" || f.Value <= 0 {
			continue
		}
		switch {
		case f.Stage == StageTunnel:
			// Starting and ending the traffic also takes time, so the measured cores may exceed
			// the machine's a little.
			cores := min(f.More["cores"], float64(p.Cores))
			p.Tunnel = append(p.Tunnel, Throughput{f.Lanes, f.Streams, f.Value, cores})
		case f.Stage == StageTUN:
			p.NullTunnelCoresGbps = f.More["cores_per_gbps"]
		case f.Value > p.RawGbps:
			p.RawGbps, p.GeneratorCoresGbps = f.Value, f.More["cores_per_gbps"]
		}
	}
	return p
}

// NewVerdict derives a Verdict; it returns false if no throughput was measured.
//
// Every bit is read from a TUN, sealed, sent, received, opened and written to a TUN, all on this machine's cores. The
// rates of the parts give the time of each per Gbit. LimitRest is the measured total minus those times and the generator's.
// If the cores were busy, the largest part is the limit; LimitRest only if it takes more than half. Otherwise the limit is
// LimitIdle. If a part was not measured there is no rest, and only LimitIdle can be found.
func NewVerdict(p Parts) (Verdict, bool) {
	if len(p.Tunnel) == 0 {
		return Verdict{}, false
	}
	v := Verdict{ByLanes: bestByLanes(p.Tunnel)}
	for _, t := range p.Tunnel {
		v.Best = better(v.Best, t)
		if t.Streams == 1 {
			v.One = better(v.One, t)
		}
	}
	cost := v.Best.Cores / v.Best.Gbps          // of a Gbit/s, in cores
	v.Limit, v.Shares = LimitUnknown, []Share{} // in JSON a list, not null
	if p.complete() {
		v.Shares = shares(p, cost)
		v.Limit = largest(v.Shares)
	}
	if v.Best.Cores < busyEnough*float64(p.Cores) {
		v.Limit = LimitIdle
	}
	if own := cost - p.GeneratorCoresGbps; own > 0 && p.GeneratorCoresGbps > 0 {
		v.OneEndGbps = float64(p.Cores) / (own / 2)
	}
	return v, true
}

// complete reports whether all parts were measured.
func (p Parts) complete() bool {
	return min(p.Seal, p.Open, p.TUNRead, p.TUNWrite, p.UnderlaySend, p.UnderlayRecv, p.GeneratorCoresGbps) > 0
}

// better is the one with more throughput; of equals the first.
func better(a, b Throughput) Throughput {
	if b.Gbps > a.Gbps {
		return b
	}
	return a
}

func bestByLanes(all []Throughput) (best []Throughput) {
	for _, t := range all {
		i := slices.IndexFunc(best, func(b Throughput) bool { return b.Lanes == t.Lanes })
		if i < 0 {
			best = append(best, t)
			continue
		}
		best[i] = better(best[i], t)
	}
	sort.Slice(best, func(i, j int) bool { return best[i].Lanes < best[j].Lanes })
	return best
}

// shares divides the cost of a Gbit/s, in cores, among the parts. If they add up to more than was measured, they
// are scaled down to it.
func shares(p Parts, cost float64) []Share {
	parts := []struct {
		part  Limit
		cores float64
	}{
		{LimitCrypto, perGbit(p.Seal) + perGbit(p.Open)},
		{LimitTUN, tunCost(p)},
		{LimitUnderlay, max(perGbit(p.UnderlaySend)+perGbit(p.UnderlayRecv), p.PairCoresGbps)},
		{LimitGenerator, p.GeneratorCoresGbps},
	}
	sum := 0.0
	for _, x := range parts {
		sum += x.cores
	}
	total := max(cost, sum)
	if total <= 0 {
		return []Share{{LimitRest, 100}}
	}
	list := []Share{{LimitRest, 100 * (total - sum) / total}}
	for _, x := range parts {
		list = append(list, Share{x.part, 100 * x.cores / total})
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].Percent > list[j].Percent })
	return list
}

// tunCost is the number of cores that a Gbit/s takes in both TUNs. It is the excess of TCP through
// them over TCP over the cable, with caches as cold as in a tunnel. It is at least the cores for
// reading and writing alone.
func tunCost(p Parts) float64 {
	least := perGbit(p.TUNRead) + perGbit(p.TUNWrite)
	if p.GeneratorCoresGbps <= 0 {
		return least
	}
	return max(least, p.NullTunnelCoresGbps-p.GeneratorCoresGbps)
}

// largest is the part that takes most: of sorted shares the first, unless that is a rest of up to a half.
func largest(shares []Share) Limit {
	if len(shares) > 1 && shares[0].Part == LimitRest && shares[0].Percent <= 50 && shares[1].Percent > 0 {
		return shares[1].Part
	}
	return shares[0].Part
}

// perGbit is the time in core-seconds that a part takes for a Gbit at its rate.
func perGbit(gbps float64) float64 {
	if gbps <= 0 {
		return 0
	}
	return 1 / gbps
}

// Text is the verdict in a few sentences, a line each.
func (v *Verdict) Text(cores int) []string {
	lines := []string{fmt.Sprintf("This machine carries about %s Gbit/s of TCP through one tunnel (%s, %s; %s of %s busy).",
		gbpsText(v.Best.Gbps), term.Count(v.Best.Streams, "stream"), term.Count(v.Best.Lanes, "lane"),
		coresText(v.Best.Cores), term.Count(cores, "core"))}
	var also []string
	for _, t := range v.ByLanes {
		if t.Lanes != v.Best.Lanes {
			also = append(also, fmt.Sprintf("%s with %s", gbpsText(t.Gbps), term.Count(t.Lanes, "lane")))
		}
	}
	if v.One.Gbps > 0 && v.Best.Streams != 1 {
		also = append(also, fmt.Sprintf("%s with one stream", gbpsText(v.One.Gbps)))
	}
	if len(also) > 0 {
		lines = append(lines, "It carries "+strings.Join(also, ", ")+".")
	}
	return append(lines, v.why()...)
}

func (v *Verdict) why() []string {
	var shares []string
	for _, s := range v.Shares {
		if s.Percent >= 0.5 {
			shares = append(shares, fmt.Sprintf("%s %.0f %%", s.Part.short(), s.Percent))
		}
	}
	lines := []string{"Limiting factor: " + v.Limit.sentence()}
	if len(shares) > 0 {
		lines = append(lines, "Where the processors' time goes, estimated: "+strings.Join(shares, ", ")+".")
	}
	if v.OneEndGbps > 0 {
		lines = append(lines, fmt.Sprintf("As one end only, with the traffic's ends elsewhere: about %s Gbit/s one way, estimated.",
			gbpsText(v.OneEndGbps)))
	}
	return lines
}

// sentence explains the limit.
func (l Limit) sentence() string {
	switch l {
	case LimitIdle:
		return "lanes. Cores were idle: more lanes or more streams may carry more."
	case LimitUnknown:
		return "unknown. It takes the figures of all stages to find it."
	case LimitRest:
		return "work between the measured parts, with which the cores are busy: splitting, merging, checksums, wakeups, cold caches."
	case LimitGenerator:
		return "the cores are shared with the traffic generator, which takes the largest part of them."
	}
	return string(l) + ". The cores are busy, and no other measured part takes more of their time."
}

// short is the limit's name in a list of parts.
func (l Limit) short() string {
	if l == LimitGenerator {
		return "traffic generator"
	}
	return string(l)
}

func gbpsText(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.2g", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func coresText(v float64) string { return fmt.Sprintf("%.1f", v) }
