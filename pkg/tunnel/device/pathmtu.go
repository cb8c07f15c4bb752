// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/pathmtu"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// mtuSearch is what is known of the path MTU of one peer, and the search for it if the peer answers probes. Peer.mu guards it.
type mtuSearch struct {
	search      *pathmtu.Search // nil before the first one
	known       pathLimits
	overhead    int    // of the outer packets, in bytes
	max         int    // the size of the largest packet that data can have
	confirmedTx uint64 // the bytes sent to the peer at the last probe
	counts      config.ProbeCounts
	logged      int // the limit of inner packets that was logged last, 0 for none
}

// probeCounters counts the probes to all present and removed peers.
type probeCounters struct{ sent, answered, refused atomic.Uint64 }

func (c *probeCounters) snapshot() config.ProbeCounts {
	return config.ProbeCounts{Sent: c.sent.Load(), Answered: c.answered.Load(), Refused: c.refused.Load()}
}

// activeMessages is the number of messages of the largest size, the last probe included, after which data is being sent.
const activeMessages = 3

// probeQueue takes a peer's probes, and answers to ours, from lanes. It keeps the last one of each only.
type probeQueue struct {
	probe, answer         atomic.Pointer[wire.Probe] // nil when none waits for a worker
	probeRate, answerRate rate                       // both sides may search at the same time
}

// receiveProbe takes a probe or an answer from a lane.
func (p *Peer) receiveProbe(plain []byte) drop.Reason {
	var m wire.Probe
	if p.dev.spreading.Load().mode == config.SpreadOff {
		return drop.HelloUnwanted
	}
	switch err := wire.ParseProbe(plain, &m); {
	case errors.Is(err, wire.ErrProbeVersion):
		return drop.HelloVersion
	case err != nil:
		return drop.HelloInvalid
	}
	q := &p.requests.probes
	limit, waiting := &q.probeRate, &q.probe
	if m.Answer {
		limit, waiting = &q.answerRate, &q.answer
	}
	if !limit.allow(p.dev.clock(), time.Second) {
		return drop.HelloUnwanted
	}
	waiting.Store(&wire.Probe{Answer: m.Answer, ID: m.ID, Size: m.Size}) // m must not escape
	p.post(taskProbe)
	return drop.None
}

// handleProbes answers the peer's probe, and takes its answer to ours. The caller holds mu.
func (p *Peer) handleProbes(now int64) {
	q, s := &p.requests.probes, &p.mtu
	if m := q.probe.Swap(nil); m != nil {
		if keys := p.engine.Current.Load(); keys.Usable(now) {
			answer := wire.Probe{Answer: true, ID: m.ID, Size: m.Size}
			p.dev.engine.SendHello(p.engine, keys, 0, wire.AppendProbe(nil, &answer))
		}
	}
	m, search := q.answer.Swap(nil), s.active()
	if m == nil || p.echoed(m, now) || search == nil {
		return
	}
	size := m.Size + s.overhead
	if path, ok := search.Answered(now, m.ID, size); ok {
		s.counts.Answered++
		p.dev.probeCounts.answered.Add(1)
		s.known.refute(size, path)
		p.applyPathMTU()
	}
}

// updatePathMTU starts the search when it becomes possible, restarts it if it does not know the present largest size, and tells it the number
// of source ports. The caller holds mu.
func (p *Peer) updatePathMTU(now int64) {
	s, to, mtu := &p.mtu, p.engine.Endpoint.Load(), int(p.dev.mtu.Load())
	if to == nil || mtu <= 0 {
		p.stopPathMTU()
		return
	}
	sizes := probeSizes(mtu, to)
	changed := s.max != sizes.Max || s.overhead != sizes.Offset
	s.max, s.overhead = sizes.Max, sizes.Offset
	switch off := p.dev.spreading.Load().mode == config.SpreadOff; { // then neither side accepts hellos
	case off || !p.running || !p.hello.known || !p.hello.remote.Probes:
		s.stop()
	case s.active() == nil || changed && !s.search.Shrink(sizes):
		if s.search == nil {
			s.search = new(pathmtu.Search)
		}
		s.search.Start(now, sizes, 1+len(p.probeSources()))
		s.search.SkipPaths(p.skipsPath)
	default:
		s.search.SetPaths(now, 1+len(p.probeSources()))
	}
	p.applyPathMTU()
}

// active returns the search, nil while there is none.
func (s *mtuSearch) active() *pathmtu.Search {
	if s.search == nil || s.search.State() == pathmtu.Off {
		return nil
	}
	return s.search
}

// stop ends the search.
func (s *mtuSearch) stop() {
	if s.search != nil {
		s.search.Stop()
	}
}

// probeSizes returns the sizes to try for a TUN of the given MTU.
func probeSizes(mtu int, to *underlay.Endpoint) pathmtu.Sizes {
	s := pathmtu.Sizes{Floor: pathmtu.BaseSize, Offset: packet.IPv6HeaderLen, Step: wire.PaddingMultiple}
	if to.Dst.Addr().Is4() {
		s.Floor, s.Offset = pathmtu.FloorIPv4, packet.IPv4HeaderLen
	}
	s.Max = min(s.Offset+packet.UDPHeaderLen+wire.DataOverhead+mtu, s.Offset+packet.UDPHeaderLen+underlay.MaxDatagramRun)
	s.Offset += packet.UDPHeaderLen + wire.DataOverhead
	s.Floor = min(s.Floor, s.Max)
	return s
}

// savedPathMTU returns the limit of the last search for the next device, 0 for none. The caller holds mu.
func (p *Peer) savedPathMTU() uint16 {
	if p.mtu.search == nil {
		return 0
	}
	limit, _ := p.mtu.search.Limit()
	if limit >= p.mtu.max {
		return 0
	}
	return uint16(limit)
}

// restorePathMTU makes the next search begin with the limit of the device before. The caller holds mu.
func (p *Peer) restorePathMTU(limit int) {
	p.mtu.search = nil
	if limit > 0 {
		p.mtu.search = new(pathmtu.Search)
		p.mtu.search.Resume(limit)
	}
}

// stopPathMTU ends the search. The next one begins with its limit. The caller holds mu.
func (p *Peer) stopPathMTU() {
	p.mtu.stop()
	p.applyPathMTU()
}

// runPathMTU sends the probe that is due. The caller holds mu.
func (p *Peer) runPathMTU(now int64) {
	p.updatePathMTU(now)
	s, sources := &p.mtu, p.probeSources()
	search, keys := s.active(), p.engine.Current.Load()
	if search == nil || p.path.roams.due.Load() || !keys.Usable(now) {
		return
	}
	probe, ok := search.Fire(now, p.sendsData())
	p.applyPathMTU()
	if !ok {
		return
	}
	source := 0
	if probe.Path > 0 {
		source = int(sources[probe.Path-1])
	}
	size := probe.Size - s.overhead
	message := wire.AppendProbe(nil, &wire.Probe{ID: probe.ID, Size: size})
	switch err := p.dev.engine.SendProbe(p.engine, keys, source, message, size); {
	case errors.Is(err, underlay.ErrTooBig):
		s.counts.Refused++
		p.dev.probeCounts.refused.Add(1)
		search.Refused(now, probe.Size)
	case err != nil:
		search.Unsent(now)
	default:
		s.counts.Sent++
		p.dev.probeCounts.sent.Add(1)
	}
	_, s.confirmedTx = p.engine.Traffic()
}

// sendsData reports whether at least the bytes of activeMessages messages have been sent since the last probe. The caller holds mu.
func (p *Peer) sendsData() bool {
	_, tx := p.engine.Traffic()
	return tx-p.mtu.confirmedTx >= uint64(activeMessages*p.mtu.max)
}

// nextProbe returns when to call runPathMTU, 0 for never. The caller holds mu.
func (p *Peer) nextProbe(now int64) int64 {
	search := p.mtu.active()
	if search == nil || p.path.roams.due.Load() || !p.engine.Current.Load().Usable(now) {
		return 0
	}
	return search.Next(p.sendsData())
}

// probeSources returns the sources from which data leaves, besides the listen port. The caller holds mu.
func (p *Peer) probeSources() []uint8 {
	if s := p.engine.Spread.Load(); s != nil {
		return s.Sources()
	}
	return nil
}

// skipsPath reports whether to send no probes from the source of a path, since none would be answered: it is blocked, or others are and it
// carries no data, so that nothing is known of it. The caller holds mu.
func (p *Peer) skipsPath(path int) bool {
	c, i := p.checks, path-1
	if c == nil || c.spread == nil || c.spread != p.engine.Spread.Load() || i >= len(c.spread.Sources()) || !c.spread.IsBlocked() {
		return false
	}
	return c.checks.Blocked(i) || !c.spread.InUse(i, p.dev.clock())
}

// applyPathMTU passes the limit for inner packets to the lanes. The caller holds mu.
func (p *Peer) applyPathMTU() {
	limit, state := p.pathMTU()
	inner := p.mtu.innerLimit(limit)
	p.engine.SetPathMTU(inner)
	if final := state != config.PathMTUSearching && state != config.PathMTUUnknown; final && inner != p.mtu.logged {
		p.mtu.logged = inner
		p.logPathMTU()
	}
}

// logPathMTU logs the limit of inner packets. There may be thousands of such peers. The caller holds mu.
func (p *Peer) logPathMTU() {
	level := slog.LevelInfo
	if !p.dev.pathMTULog.allow(p.dev.clock(), time.Minute) {
		level = slog.LevelDebug
	}
	r := p.reportPathMTU()
	log := p.log().With("peer", p.key, "path_mtu", r.Bytes, "inner_mtu", r.InnerBytes, "state", r.State)
	if r.InnerBytes == 0 {
		log.Log(context.Background(), level, "path MTU no longer limits packets to peer")
		return
	}
	log.Log(context.Background(), level, "path MTU limits packets to peer, larger ones are fragmented or answered with ICMP errors")
}

// pathMTU returns the size that data may have, 0 if it is not known, and how it is known. The caller holds mu.
func (p *Peer) pathMTU() (limit int, state config.PathMTUState) {
	state = config.PathMTUUnknown
	if search := p.mtu.active(); search != nil {
		var proven bool
		limit, proven = search.Limit()
		state = searchState(search.State(), proven)
	}
	if !p.dev.sendsFragments() {
		limit, state = p.mtu.known.apply(limit, state)
	}
	return limit, state
}

// innerLimit returns the size of the largest inner packet that fits in an outer packet of size limit, 0 for no limit. Padding may enlarge a packet up
// to the TUN's MTU, so the limit is a multiple of the padding.
func (s *mtuSearch) innerLimit(limit int) int {
	if limit == 0 || limit >= s.max {
		return 0
	}
	return max((limit-s.overhead)&^(wire.PaddingMultiple-1), wire.PaddingMultiple)
}

// reportPathMTU returns the path MTU for people. The caller holds mu.
func (p *Peer) reportPathMTU() config.PathMTU {
	limit, state := p.pathMTU()
	return config.PathMTU{Bytes: limit, InnerBytes: p.mtu.innerLimit(limit), State: state, Probes: p.mtu.counts}
}

// searchState returns the state of a search for people. proven is that of its limit.
func searchState(s pathmtu.State, proven bool) config.PathMTUState {
	switch {
	case s == pathmtu.Unreachable:
		return config.PathMTUUnreachable
	case proven && (s == pathmtu.Complete || s == pathmtu.Raising):
		return config.PathMTUConfirmed
	}
	return config.PathMTUSearching
}
