// SPDX-License-Identifier: Apache-2.0

// Package metrics exports the state and counters of a tunnel to Prometheus. A Collector takes a snapshot per scrape, so
// metrics add no cost per packet. A Server answers scrapes and health checks over HTTP.
//
// The labels of a peer (interface and public_key) never change. Values that may change, such as its endpoint, are only in
// ropewalk_peer_info. A Snapshot holds no private and no preshared key.
//
// Not for other programs: it may change without notice.
package metrics

import (
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// Options selects optional metrics. The zero Options are the default.
type Options struct {
	PerPeer        PerPeer
	WireGuardNames bool // also export peers under the names of prometheus_wireguard_exporter
}

// Collector is a prometheus.Collector for one interface. It is safe for concurrent use.
type Collector struct {
	source  Source
	options Options
}

// NewCollector returns a Collector of the snapshots that source returns.
func NewCollector(source Source, o Options) *Collector {
	return &Collector{source: source, options: o}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	described := families
	if c.options.WireGuardNames {
		described = slices.Concat(families, wireGuardFamilies)
	}
	for _, f := range described {
		if f != buildInfo {
			ch <- f.desc
		}
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	s := scrape{Collector: c, Snapshot: c.source(), ch: ch}
	s.device()
	s.lanes()
	s.drops()
	s.postQuantum()
	s.stalls()
	s.handshakes()
	s.underlay()
	s.peers()
}

// scrape is one scrape in progress.
type scrape struct {
	*Collector
	Snapshot
	ch chan<- prometheus.Metric
}

// emit sends one sample of a family. The interface is always the first label.
func (s *scrape) emit(f *family, v float64, labels ...string) {
	s.ch <- f.sample(v, append([]string{s.Interface}, labels...)...)
}

func (s *scrape) count(f *family, n uint64, labels ...string) { s.emit(f, float64(n), labels...) }

func (s *scrape) flag(f *family, on bool, labels ...string) { s.emit(f, boolValue(on), labels...) }

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// device emits the metrics of the interface itself.
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
	s.emit(udpWithoutGSO, float64(st.Underlay.DestinationsWithoutGSO))
	s.emit(udpLosingTrains, float64(st.Underlay.DestinationsLosingTrains))
	s.emit(selectionPlans, float64(st.Selection.Wanted), "wanted")
	s.emit(selectionPlans, float64(st.Selection.Plans), "in_force")
}

// handshakes emits the numbers of handshakes by the local role, and of datagrams that test the path.
func (s *scrape) handshakes() {
	h := &s.Stats.Handshakes
	s.count(handshakesStarted, h.Initiated, "initiator")
	s.count(handshakesStarted, h.Answered, "responder")
	s.count(handshakes, h.Completed, "initiator", "completed")
	s.count(handshakes, h.GaveUp, "initiator", "gave_up")
	s.count(handshakes, h.Confirmed, "responder", "completed")
	if r := s.Stats.Reflector; r != nil {
		s.count(reflector, r.Answered, "answered")
		s.count(reflector, r.Ignored, "ignored")
	}
}

// postQuantum emits the peers by the session in use, and how exchanges ended.
func (s *scrape) postQuantum() {
	r := &s.Stats.PostQuantum
	states := map[string]int{"active": 0, "none": 0, "downgraded": 0, "blocked": 0}
	oldest := 0.0
	for _, p := range r.Peers {
		switch {
		case p.Active:
			states["active"]++
			oldest = max(oldest, p.Age)
		case p.Blocked:
			states["blocked"]++
		case p.Downgraded:
			states["downgraded"]++
		default:
			states["none"]++
		}
	}
	for state, n := range states {
		s.emit(peersPostQuantum, float64(n), state)
	}
	for result, n := range r.Exchanges {
		s.count(exchanges, n, result)
	}
	s.count(exchangeFallbacks, r.Fallbacks)
	s.count(exchangeDowngrades, r.Downgrades)
	s.emit(oldestKey, oldest)
}

// stalls emits the stalls of each kind.
func (s *scrape) stalls() {
	r := &s.Stats.Stalls
	s.count(stalls, r.Transmit, "transmit")
	s.count(stalls, r.Receive, "receive")
	s.count(stalls, r.Staged, "staged")
	s.count(stalls, r.Queued, "queued")
	if lanes := s.Stats.Path.XDP; len(lanes) > 0 {
		n := uint64(0)
		for i := range lanes {
			n += lanes[i].Stalls
		}
		s.count(stalls, n, "xdp")
	}
}

// slowLane is the label of packets that are processed outside the lanes.
const slowLane = "slow"

// lanes emits the counters of each lane, and the sizes of runs and the ICMP errors over all lanes.
func (s *scrape) lanes() {
	var tx, rx engine.RunSizes
	slow := &s.Stats.Slow
	errors, limited := slow.ICMPErrors, slow.ICMPLimited
	for i := range s.Stats.Lanes {
		l := &s.Stats.Lanes[i]
		name := strconv.Itoa(i)
		s.lane(name, l, sum(l.Drops))
		s.count(laneSocketDropped, l.SocketDrops, name)
		s.workers(name, l)
		tx.Add(&l.TxRunSizes)
		rx.Add(&l.RxRunSizes)
		errors += l.ICMPErrors
		limited += l.ICMPLimited
	}
	s.spray()
	s.count(icmpErrors, errors, "sent")
	s.count(icmpErrors, limited, "limited")
	s.count(laneSocketDropped, slow.SocketDrops, slowLane)
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
	s.count(laneMarks, l.TxMarks, name, "transmit")
	s.count(laneMarks, l.RxMarks, name, "receive")
	s.count(laneDropped, drops, name)
}

// spray emits the counters of sprayed flows, which the slow path does not have.
func (s *scrape) spray() {
	var sum engine.LaneStats
	for i := range s.Stats.Lanes {
		l := &s.Stats.Lanes[i]
		sum.TxSprayed += l.TxSprayed
		sum.RxSprayed += l.RxSprayed
		sum.RxOrder.Add(&l.RxOrder)
	}
	s.count(sprayPackets, sum.TxSprayed, "sent")
	s.count(sprayPackets, sum.RxSprayed, "received")
	s.count(sprayPackets, sum.RxOrder.Waited, "waited")
	s.count(sprayPackets, sum.RxOrder.Late, "late")
	s.count(sprayPackets, sum.RxOrder.Skipped, "skipped")
	s.count(sprayPackets, sum.RxOrder.Unordered, "unordered")
	s.count(sprayRefused, s.Stats.SprayRefused)
}

// workers emits the counters of the jobs that a lane submitted to the worker pool.
func (s *scrape) workers(lane string, l *engine.LaneStats) {
	for _, d := range []struct {
		direction                         string
		submitted, done, byLane, backoffs uint64
	}{
		{"transmit", l.TxWorkers.Submitted, l.TxWorkers.Done, l.TxWorkers.ByLane, l.TxWorkers.BackOffs},
		{"receive", l.RxWorkers.Submitted, l.RxWorkers.Done, l.RxWorkers.ByLane, l.RxWorkers.BackOffs},
	} {
		s.count(workerSubmitted, d.submitted, lane, d.direction)
		s.count(workerCompleted, d.done, lane, d.direction, "worker")
		s.count(workerCompleted, d.byLane, lane, d.direction, "lane")
		s.count(workerBackoffs, d.backoffs, lane, d.direction)
	}
}

// sizes emits the histogram of messages per run. Its buckets are cumulative.
func (s *scrape) sizes(r *engine.RunSizes, direction string) {
	buckets := make(map[float64]uint64, len(r.Runs)-1)
	total := uint64(0)
	for i, n := range r.Runs {
		total += n
		if i < len(r.Runs)-1 {
			buckets[float64(uint(1)<<i)] = total
		}
	}
	m, err := prometheus.NewConstHistogram(udpBatchMessages.desc, total, float64(r.Messages), buckets, s.Interface, direction)
	if err != nil {
		m = prometheus.NewInvalidMetric(udpBatchMessages.desc, err)
	}
	s.ch <- m
}

func sum(drops map[string]uint64) (n uint64) {
	for _, d := range drops {
		n += d
	}
	return n
}

// drops emits every drop reason, including those with count 0: Prometheus's rate() needs the 0 before the first drop. Each drop is counted
// in one place: by the device, on its slow path, or by a lane.
func (s *scrape) drops() {
	for r := drop.None + 1; r < drop.Count; r++ {
		name := r.String()
		n := s.Stats.Drops[name] + s.Stats.Slow.Drops[name]
		for i := range s.Stats.Lanes {
			n += s.Stats.Lanes[i].Drops[name]
		}
		s.count(dropped, n, stage(name), name)
	}
}

// stage maps the prefix of a drop reason to the stage of processing. A prefix that is no abbreviation is the stage.
func stage(reason string) string {
	prefix, _, _ := strings.Cut(reason, "_")
	switch prefix {
	case "tx":
		return "transmit"
	case "rx":
		return "receive"
	case "hs":
		return "handshake"
	}
	return prefix
}

// underlay emits the path of data messages, and the counters of XDP. The counters of XDP are absent while it is not in use;
// they start at 0 when the port is opened.
func (s *scrape) underlay() {
	u := &s.Stats.Path
	s.emit(underlayInfo, 1, u.Mode.String(), u.Path.String(), label(u.Device), u.How)
	s.emit(xdpLanes, float64(u.Lanes))
	for event, n := range u.Events {
		s.count(xdpEvents, n, event)
	}
	for reason, n := range u.Drops {
		s.count(xdpDropped, n, reason)
	}
	for i := range u.XDP {
		l, name := &u.XDP[i], strconv.Itoa(i)
		s.count(xdpReceived, l.Received, name)
		s.count(xdpSent, l.Sent, name)
		s.count(xdpUDPRuns, l.Slow, name)
		s.count(xdpLost, l.Lost, name)
		s.count(xdpFallbacks, l.Fallbacks, name)
		s.count(xdpMalformed, l.Malformed, name)
		s.frames(l, name)
	}
}

// frames emits the use of the frames of a lane's AF_XDP socket.
func (s *scrape) frames(l *config.XDPLane, lane string) {
	s.count(xdpRejected, l.Rejected, lane)
	s.count(xdpOwnership, l.FrameOwnershipErrors, lane)
	s.emit(xdpHeld, float64(l.RXHeld), lane, "rx")
	s.emit(xdpHeld, float64(l.TXHeld), lane, "tx")
	s.emit(xdpHeld, float64(l.TXKernel), lane, "kernel")
}
