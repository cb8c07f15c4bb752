// SPDX-License-Identifier: Apache-2.0

// Package metrics shows Prometheus what a tunnel does. A Collector takes a snapshot per scrape, so nothing is counted
// twice and packets cost nothing more; a Server answers scrapes over HTTP, and says whether the tunnel is alive and ready.
//
// Peers have labels that never change (interface and public_key); what may change is in ropewalk_peer_info alone. Private and
// preshared keys do not get as far as a Snapshot.
package metrics

import (
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/engine"
)

// Options says what a Collector shows. The zero Options are the usual ones.
type Options struct {
	PerPeer        PerPeer
	WireGuardNames bool // also show peers under the names of the common WireGuard exporter
}

// Collector is a prometheus.Collector of one interface. It may be scraped by several goroutines at once.
type Collector struct {
	source  Source
	options Options
	desc    [familyCount]*prometheus.Desc
}

// NewCollector returns a Collector of what source says.
func NewCollector(source Source, o Options) *Collector {
	return &Collector{source: source, options: o, desc: descriptors()}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for f := interfaceInfo; f < familyCount; f++ {
		if !f.optional() || c.options.WireGuardNames {
			ch <- c.desc[f]
		}
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	s := scrape{Collector: c, Snapshot: c.source(), ch: ch}
	s.device()
	s.lanes()
	s.drops()
	s.handshakes()
	s.underlay()
	s.peers()
}

// scrape is one answer in the making.
type scrape struct {
	*Collector
	Snapshot
	ch chan<- prometheus.Metric
}

// emit sends one value of a family. The interface is always the first label.
func (s *scrape) emit(f family, v float64, labels ...string) {
	labels = append([]string{s.Interface}, labels...)
	m, err := prometheus.NewConstMetric(s.desc[f], definitions[f].kind.valueType(), v, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(s.desc[f], fmt.Errorf("collecting %s: %w", definitions[f].name, err))
	}
	s.ch <- m
}

func (s *scrape) count(f family, n uint64, labels ...string) { s.emit(f, float64(n), labels...) }

func (s *scrape) flag(f family, on bool, labels ...string) { s.emit(f, truth(on), labels...) }

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// device shows what the interface is.
func (s *scrape) device() {
	st := &s.Stats
	s.emit(interfaceInfo, 1, s.PublicKey, strconv.Itoa(int(s.ListenPort)), st.Cipher)
	s.flag(interfaceUp, st.Up)
	s.emit(lanes, float64(len(st.Lanes)))
	s.emit(workers, float64(st.Workers))
	for feature, on := range map[string]bool{
		"tun_tso": st.TUN.TSO, "tun_uso": st.TUN.USO, "tun_steer": st.TUN.Steer,
		"underlay_gso": st.Underlay.GSO, "underlay_gro": st.Underlay.GRO, "underlay_select": st.Underlay.Select,
		"underlay_ipv4": st.Underlay.IPv4, "underlay_ipv6": st.Underlay.IPv6,
		"underlay_filter": st.Underlay.Filter,
	} {
		s.flag(featureEnabled, on, feature)
	}
	s.emit(selectionPlans, float64(st.Selection.Wanted), "wanted")
	s.emit(selectionPlans, float64(st.Selection.Plans), "in_force")
}

// handshakes shows what became of them, by our role.
func (s *scrape) handshakes() {
	h := &s.Stats.Handshakes
	s.count(handshakesStarted, h.Initiated, "initiator")
	s.count(handshakesStarted, h.Answered, "responder")
	s.count(handshakes, h.Completed, "initiator", "completed")
	s.count(handshakes, h.GaveUp, "initiator", "gave_up")
	s.count(handshakes, h.Confirmed, "responder", "completed")
}

// slowLane is the label of what no lane carried.
const slowLane = "slow"

// lanes shows what each lane did, and how large the runs of all were.
func (s *scrape) lanes() {
	var tx, rx engine.RunSizes
	for i := range s.Stats.Lanes {
		l := &s.Stats.Lanes[i]
		name := strconv.Itoa(i)
		s.lane(name, l, sum(l.Drops))
		s.count(laneSocketDropped, l.Drops[drop.RXSocket.String()], name)
		s.crew(name, l)
		tx.Add(&l.TxRunSizes)
		rx.Add(&l.RxRunSizes)
	}
	slow := &s.Stats.Slow
	s.count(laneSocketDropped, slow.Drops[drop.RXSocket.String()], slowLane)
	s.lane(slowLane, slow, sum(slow.Drops)+sum(s.Stats.Drops))
	tx.Add(&slow.TxRunSizes)
	rx.Add(&slow.RxRunSizes)
	s.sizes(&tx, "transmit")
	s.sizes(&rx, "receive")
}

func (s *scrape) lane(name string, l *engine.LaneStats, drops uint64) {
	s.count(laneTransmitPackets, l.TxPackets, name)
	s.count(laneTransmitBytes, l.TxBytes, name)
	s.count(laneTransmitTrains, l.TxTrains, name)
	s.count(laneTransmitRuns, l.TxRuns, name)
	s.count(laneReceivePackets, l.RxPackets, name)
	s.count(laneReceiveBytes, l.RxBytes, name)
	s.count(laneReceiveTrains, l.RxTrains, name)
	s.count(laneReceiveRuns, l.RxRuns, name)
	s.count(laneDropped, drops, name)
}

func (s *scrape) crew(name string, l *engine.LaneStats) {
	for _, d := range []struct {
		label                           string
		offered, done, taken, backedOff uint64
	}{
		{"transmit", l.TxCrew.Offered, l.TxCrew.Done, l.TxCrew.TakenBack, l.TxCrew.BackOffs},
		{"receive", l.RxCrew.Offered, l.RxCrew.Done, l.RxCrew.TakenBack, l.RxCrew.BackOffs},
	} {
		s.count(crewOffered, d.offered, name, d.label)
		s.count(crewCollected, d.done, name, d.label, "worker")
		s.count(crewCollected, d.taken, name, d.label, "lane")
		s.count(crewBackOffs, d.backedOff, name, d.label)
	}
}

// sizes shows a histogram, whose buckets are cumulative.
func (s *scrape) sizes(r *engine.RunSizes, direction string) {
	buckets := make(map[float64]uint64, len(r.Runs)-1)
	total := uint64(0)
	for i, n := range r.Runs {
		total += n
		if i < len(r.Runs)-1 {
			buckets[float64(uint(1)<<i)] = total
		}
	}
	m, err := prometheus.NewConstHistogram(s.desc[runMessages], total, float64(r.Messages), buckets, s.Interface, direction)
	if err != nil {
		m = prometheus.NewInvalidMetric(s.desc[runMessages], err)
	}
	s.ch <- m
}

func sum(drops map[string]uint64) (n uint64) {
	for _, d := range drops {
		n += d
	}
	return n
}
