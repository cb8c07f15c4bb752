// SPDX-License-Identifier: Apache-2.0

// Package spreadplan plays how flows would load a NIC's receive queues, with the code that the datapath runs.
package spreadplan

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/packet"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// Scene is flows on their way to a NIC.
type Scene struct {
	Flows, Rounds int // at least 1
	Lanes         int // source ports; 0 for one per queue
	Seed          uint64
	RSS           spread.RSS
	Source        string // of RSS, for people
	From          netip.Addr
	To            netip.AddrPort
	Candidates    spread.Ports
}

// Report is what came of it.
type Report struct {
	Flows   int            `json:"flows"`
	Queues  []int          `json:"queues"` // numbers, in the order of loads
	From    netip.Addr     `json:"from"`
	To      netip.AddrPort `json:"to"`
	Ports   string         `json:"ports"`
	Rounds  int            `json:"rounds"`
	Choices []Choice       `json:"choices"`
	NoPlan  string         `json:"no_plan,omitempty"` // why there are no planned ports

	source string
}

// Choice is one way to choose a flow's source port.
type Choice struct {
	Name          string    `json:"name"`
	Ports         []uint16  `json:"ports"`
	Loads         []float64 `json:"loads"`             // of the first round, by queue, in flows
	BusiestToMean float64   `json:"busiest_to_mean"`   // of the first round
	Idle          int       `json:"idle_queues"`       // of the first round
	Median        float64   `json:"median_of_busiest"` // to mean, over all rounds

	byHash  bool // not by load
	queue   []int
	packets []int // of the round, by queue
	ratios  []float64
}

// Run plays all rounds. Errors are those of scenes with nothing to play, and of hashes that cannot be computed
// (spread.ErrUnknownHash).
func (s *Scene) Run() (*Report, error) {
	if s.Flows < 1 || s.Rounds < 1 || s.Lanes < 0 || s.Candidates.Len() < 1 || len(s.RSS.Indirection) < 1 {
		return nil, fmt.Errorf("playing %d flows in %d rounds, from %d of %d ports to a table of %d entries: there is nothing to play",
			s.Flows, s.Rounds, s.Lanes, s.Candidates.Len(), len(s.RSS.Indirection))
	}
	r := &Report{
		Flows: s.Flows, Queues: s.RSS.Queues(), From: s.From, To: s.To, Ports: s.Candidates.String(),
		Rounds: s.Rounds, source: s.Source,
	}
	ports := s.unplanned(len(r.Queues))
	r.Choices = []Choice{{Name: "hash", Ports: ports, byHash: true}, {Name: "least loaded", Ports: ports}}
	if planned, err := spread.Plan(&s.RSS, s.From, s.To, s.Candidates, s.Lanes); err != nil {
		r.NoPlan = err.Error()
	} else {
		r.Choices = append(r.Choices, Choice{Name: "planned", Ports: planned})
	}
	for i := range r.Choices {
		if err := r.Choices[i].play(s, r.Queues); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// unplanned are the first ports of the range: as many as lanes, or as queues.
func (s *Scene) unplanned(queues int) []uint16 {
	n := s.Lanes
	if n == 0 {
		n = min(queues, spread.MaxPorts)
	}
	ports := make([]uint16, min(n, s.Candidates.Len()))
	for i := range ports {
		ports[i] = s.Candidates.First + uint16(i)
	}
	return ports
}

const (
	planPackets    = 20 // of each flow, per round
	planPacketSize = 1400
	planInterval   = int64(time.Millisecond)  // between packets of a flow
	planPause      = int64(100 * time.Second) // between rounds: nothing is left of flows and loads
	planTableLog2  = 16
)

func (c *Choice) play(s *Scene, queues []int) error {
	c.queue = make([]int, len(c.Ports))
	for lane, port := range c.Ports {
		q, err := s.RSS.Queue(netip.AddrPortFrom(s.From, port), s.To)
		if err != nil {
			return err
		}
		c.queue[lane], _ = slices.BinarySearch(queues, q)
	}
	c.packets = make([]int, len(queues))
	flows, loads := spread.NewFlows(planTableLog2, spread.DefaultGap), spread.NewLoads(len(c.Ports), 0)
	rng := rand.New(rand.NewPCG(s.Seed, 0))
	for round := range s.Rounds {
		clear(c.packets)
		c.round(flows, loads, randomFlows(rng, s.Flows), int64(round+1)*planPause)
		c.count(s.Flows)
	}
	slices.Sort(c.ratios)
	c.Median = c.ratios[len(c.ratios)/2]
	return nil
}

// round sends the packets of all flows.
func (c *Choice) round(flows *spread.Flows, loads *spread.Loads, hashes []uint32, now int64) {
	step := planInterval / int64(len(hashes))
	for range planPackets {
		for _, hash := range hashes {
			now += step
			lane := int(hash % uint32(len(c.Ports)))
			if !c.byHash {
				lane = flows.Choose(loads, hash, now, planPacketSize)
			}
			c.packets[c.queue[lane]]++
		}
	}
}

// count closes a round.
func (c *Choice) count(flows int) {
	ratio := float64(slices.Max(c.packets)*len(c.packets)) / float64(flows*planPackets)
	if c.ratios = append(c.ratios, ratio); len(c.ratios) > 1 {
		return
	}
	c.BusiestToMean = ratio
	for _, n := range c.packets {
		c.Loads = append(c.Loads, float64(n)/planPackets)
		if n == 0 {
			c.Idle++
		}
	}
}

// randomFlows are the hashes, as the engine computes them, of TCP flows between random ends.
func randomFlows(rng *rand.Rand, n int) []uint32 {
	hashes := make([]uint32, n)
	for i := range hashes {
		ip := make([]byte, 40)
		ip[0], ip[3], ip[9] = 0x45, byte(len(ip)), 6
		binary.BigEndian.PutUint64(ip[12:], rng.Uint64()) // addresses
		binary.BigEndian.PutUint32(ip[20:], rng.Uint32()) // ports
		ip[32] = 0x50
		hashes[i] = packet.FlowHash(ip)
	}
	return hashes
}
