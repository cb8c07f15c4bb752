// SPDX-License-Identifier: Apache-2.0

package meshmode

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/proof"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

const (
	// stepInterval is the time between two calls of proof.Tracker.Step.
	stepInterval = time.Second
	// countInterval is the time between two reads of the peers' counters, and of the devices to which
	// the guard is attached.
	countInterval = 10 * time.Second
	// quantumInterval is the same of sessions' keys: statistics of thousands of peers take longer.
	quantumInterval = 30 * time.Second
	// triggerInterval is the least time between two requests for a reconcile. It doubles up to
	// maxTriggerInterval while reconciles fail, which the caller retries by itself.
	triggerInterval    = 2 * time.Second
	maxTriggerInterval = time.Minute
	// messageTime is how long a condition keeps its message while status and reason stay the same.
	// An example of a packet would differ at each look, and all nodes would write it.
	messageTime = 5 * time.Minute
)

// Engine is the part of an engine.Client that a Prover uses.
type Engine interface {
	Probe(peers ...noise.PublicKey) (map[noise.PublicKey]config.PeerProbe, error)
	StatusOf(peers ...noise.PublicKey) (config.Status, error)
	PostQuantum() (*config.PostQuantumReport, error)
}

// Applied is the state that a reconcile has applied.
type Applied struct {
	Peers []proof.Peer
	// Addresses are the node's own of the tunnel, from which datagrams are sent.
	Addresses []netip.Addr
	// All reports that each node that takes part is a peer, with known pods.
	All         bool
	Fault       proof.TunnelFault
	FaultDetail string
	Strictness  proof.Strictness
	PostQuantum config.PostQuantum
	// Changed reports that the reconcile has changed the host.
	Changed bool
}

// Outcome has the observations.
type Outcome struct {
	Conditions []proof.Condition
	Peers      proof.Summary
	Lost       []noise.PublicKey
}

// Prover runs the proofs of a node. Its methods may be called at any time, but for Start and Stop.
type Prover struct {
	Engine  Engine
	Guard   *Guard
	Log     *slog.Logger
	Tunnel  string    // the interface
	Port    uint16    // of the peers' reflectors; 0: there are none
	Trigger func()    // requests a reconcile
	Open    OpenAsker // nil: it opens a reflector.Client

	cancel context.CancelFunc
	done   chan struct{}

	mu        sync.Mutex
	tracker   proof.Tracker
	latch     proof.Latch
	applied   Applied
	follows   bool // Applied was called
	keys      map[netip.Addr]noise.PublicKey
	askers    askers
	last      []proof.Condition // as Outcome returned them
	since     []time.Time       // of the messages of last
	wasReady  bool              // the latch, as Latched returned it
	triggered time.Time
	interval  time.Duration // to the next request
	counted   time.Time

	quantum   proof.PostQuantumTracker
	quantumAt time.Time // of its last count
}

// Start starts the goroutine of the proofs, unless it runs.
func (p *Prover) Start() {
	if p.cancel != nil {
		return
	}
	if p.Open == nil {
		p.Open = openReflectorClient
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel, p.done = cancel, make(chan struct{})
	go p.run(ctx)
}

// Stop ends the goroutine, if it runs, and forgets what was seen.
func (p *Prover) Stop() {
	if p.cancel == nil {
		return
	}
	p.cancel()
	<-p.done
	p.cancel = nil
	p.mu.Lock()
	defer p.mu.Unlock()
	p.askers.close()
	p.tracker, p.latch, p.follows, p.last = proof.Tracker{}, proof.Latch{}, false, nil
	p.quantum, p.quantumAt = proof.PostQuantumTracker{}, time.Time{}
}

func (p *Prover) run(ctx context.Context) {
	defer close(p.done)
	every := time.NewTicker(stepInterval)
	defer every.Stop()
	for {
		p.step()
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// step asks peers, and requests a reconcile if a result matters.
func (p *Prover) step() {
	now := time.Now()
	if now.Sub(p.counted) >= countInterval {
		p.counted = now
		p.count(now)
	}
	p.mu.Lock()
	actions := p.tracker.Step(now)
	p.mu.Unlock()
	p.ask(actions)
	if p.matters(now) {
		p.Trigger()
	}
}

// count reads the counters of all peers.
func (p *Prover) count(now time.Time) {
	p.Guard.Attach()
	st, err := p.Engine.StatusOf()
	if err != nil {
		return // its absence is a fault that a reconcile finds
	}
	p.mu.Lock()
	p.tracker.Counted(now, st.Peers)
	due, wanted := p.follows && now.Sub(p.quantumAt) >= quantumInterval, p.applied.PostQuantum
	p.mu.Unlock()
	if due {
		p.countPostQuantum(now, wanted, st.Peers)
	}
}

// countPostQuantum reads which sessions have keys of post-quantum exchanges. wanted is the policy that was applied before.
func (p *Prover) countPostQuantum(now time.Time, wanted config.PostQuantum, peers []config.PeerStatus) {
	report, err := p.Engine.PostQuantum()
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quantumAt = now
	p.quantum.Counted(now, wanted, report, peers, p.tracker.Has)
}

func (p *Prover) ask(a proof.Actions) {
	if len(a.Probe) == 0 {
		return
	}
	reports, err := p.Engine.Probe(a.Probe...)
	if err != nil {
		p.Log.Debug("asking the engine to probe peers failed, retrying", "error", err)
		return
	}
	p.mu.Lock()
	p.tracker.Probed(time.Now(), reports)
	asking := p.askers.open(p, p.applied.Addresses)
	p.mu.Unlock()
	for _, peer := range a.Ask {
		if c := asking[peer.Address.Is4()]; c != nil {
			if err := c.Ask(peer.Address); err != nil {
				p.Log.Debug("sending a datagram to a peer's reflector failed, retrying", "peer", peer.Key, "error", err)
			}
		}
	}
}

// answered takes the answer of a reflector.
func (p *Prover) answered(from netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if key, known := p.keys[from]; known {
		p.tracker.Answered(time.Now(), key)
	}
}

// matters reports whether a reconcile would do other than the last one, and is due.
func (p *Prover) matters(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.follows || !p.differs(now) {
		return false
	}
	p.triggered, p.interval = now, min(2*p.interval, maxTriggerInterval)
	return true
}

func (p *Prover) differs(now time.Time) bool {
	facts, _ := p.facts(now)
	ready := p.latch.Ready(now, &facts, p.applied.All)
	if now.Sub(p.triggered) < p.interval {
		return false
	}
	if p.applied.Strictness == proof.Permissive && (ready != p.wasReady || p.tracker.RoutesDiffer(now)) {
		return true
	}
	for i, c := range proof.ConditionsOf(now, &facts) {
		if len(p.last) <= i || !c.Same(p.last[i]) {
			return true
		}
	}
	return false
}

func (p *Prover) facts(now time.Time) (proof.Facts, GuardCounts) {
	seen, counts := p.Guard.Facts()
	quantum := p.quantum.Facts()
	if quantum.Wanted != p.applied.PostQuantum || now.Sub(p.quantumAt) > 3*quantumInterval {
		quantum = proof.PostQuantumFacts{Wanted: p.applied.PostQuantum} // nothing else is known
	}
	return proof.Facts{
		Tunnel: p.applied.Fault, TunnelError: p.applied.FaultDetail, Peers: p.tracker.Summary(now), Guard: seen, Strictness: p.applied.Strictness,
		PostQuantum: quantum,
	}, counts
}

// Applied takes the result of a reconcile.
func (p *Prover) Applied(a Applied) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applied, p.follows, p.interval = a, true, triggerInterval
	now := time.Now()
	if p.tracker.SetPeers(now, a.Peers); a.Changed {
		p.tracker.Changed(now)
	}
	p.keys = make(map[netip.Addr]noise.PublicKey, len(a.Peers))
	for _, peer := range a.Peers {
		p.keys[peer.Address] = peer.Key
	}
}

// Failed takes the fault of a reconcile that has applied nothing.
func (p *Prover) Failed(fault proof.TunnelFault, detail string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applied.Fault, p.applied.FaultDetail, p.follows = fault, detail, true
	p.interval = max(p.interval, triggerInterval)
}

// Latched reports whether all is proved at present, and was so for long enough to become strict.
func (p *Prover) Latched() bool {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	facts, _ := p.facts(now)
	p.wasReady = p.follows && p.latch.Ready(now, &facts, p.applied.All)
	return p.wasReady
}

// LeadsInto reports whether the routes to a peer should lead into the tunnel in the permissive
// state. routed is the answer for a peer that is not known yet.
func (p *Prover) LeadsInto(key noise.PublicKey, routed bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.tracker.Has(key) {
		return routed
	}
	return p.tracker.LeadsInto(time.Now(), key)
}

// Seen returns the states of the peers and the counts of the guard at present.
func (p *Prover) Seen() (proof.Summary, GuardCounts) {
	p.mu.Lock()
	defer p.mu.Unlock()
	facts, counts := p.facts(time.Now())
	counts.InFront = facts.Guard.Fault == "" && len(facts.Guard.Behind) == 0
	return facts.Peers, counts
}

// Outcome returns what was seen until now. The Prover requests a reconcile when that changes.
func (p *Prover) Outcome() (o Outcome) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	facts, _ := p.facts(now)
	o = Outcome{Conditions: proof.ConditionsOf(now, &facts), Peers: facts.Peers, Lost: p.tracker.Lost()}
	since := make([]time.Time, len(o.Conditions))
	for i := range o.Conditions {
		c := &o.Conditions[i]
		since[i] = now
		if len(p.last) > i && c.Same(p.last[i]) && now.Sub(p.since[i]) < messageTime {
			c.Message, since[i] = p.last[i].Message, p.since[i]
		}
	}
	p.last, p.since = o.Conditions, since
	return o
}
