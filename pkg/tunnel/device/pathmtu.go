// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/probe"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// pathMTU is the knowledge of the path MTU of one peer, besides the findings of the prober. Peer.mu
// guards all but reported and refused.
type pathMTU struct {
	peer     *Peer
	reported atomic.Uint64 // the size of an ICMP error in bytes, and in the low 16 bits the quoted source port; 0 for none
	refused  atomic.Uint64 // the size in bytes of a message that the host refused, 0 for none
	known    pathLimits
	overhead int // of the outer packets, in bytes
	max      int // the size of the largest packet that data can have
	logged   int // the limit of inner packets that was logged last, 0 for none
}

// update starts the search when it becomes possible, and restarts it if it does not know the present largest size. The caller holds mu.
func (m *pathMTU) update(now int64) {
	p := m.peer
	s, to, mtu := m, p.engine.Endpoint.Load(), int(p.dev.mtu.Load())
	if to == nil || mtu <= 0 {
		m.stop()
		return
	}
	sizes := probeSizes(mtu, to)
	changed := s.max != sizes.Max || s.overhead != sizes.Offset
	s.max, s.overhead = sizes.Max, sizes.Offset
	switch off := p.dev.spreading.Load().mode == config.SpreadOff; { // then neither side accepts hellos
	case off || !p.running || !p.hello.exchange.Remote.Probes:
		p.probing.stop()
	case changed || !p.probing.active():
		p.probing.get().Start(now, sizes)
	}
	if p.probing.active() {
		p.probing.EnableTrains(p.dev.outer.trainLimiter() != nil)
	}
	m.apply()
}

// probeSizes returns the sizes to try for a TUN of the given MTU.
func probeSizes(mtu int, to *underlay.Endpoint) probe.Sizes {
	s := probe.Sizes{Floor: probe.BaseSize, Offset: packet.IPv6HeaderLen, Step: wire.PaddingMultiple}
	if to.Dst.Addr().Is4() {
		s.Floor, s.Offset = probe.FloorIPv4, packet.IPv4HeaderLen
	}
	s.Max = min(s.Offset+packet.UDPHeaderLen+wire.DataOverhead+mtu, s.Offset+packet.UDPHeaderLen+underlay.MaxDatagramRun)
	s.Offset += packet.UDPHeaderLen + wire.DataOverhead
	s.Floor = min(s.Floor, s.Max)
	return s
}

// saved returns the limit of the last search for the next device, 0 for none. The caller holds mu.
func (m *pathMTU) saved() uint16 {
	p := m.peer
	if p.probing.Prober == nil {
		return 0
	}
	limit, _ := p.probing.Limit()
	if limit >= m.max {
		return 0
	}
	return uint16(limit)
}

// stop ends the search. The next one begins with its limit. The caller holds mu.
func (m *pathMTU) stop() {
	m.peer.probing.stop()
	m.apply()
}

// apply passes the limit for inner packets to the lanes. The caller holds mu.
func (m *pathMTU) apply() {
	limit, state := m.limit()
	inner := m.innerLimit(limit)
	m.peer.engine.SetPathMTU(inner)
	if final := state != config.PathMTUSearching && state != config.PathMTUUnknown; final && inner != m.logged {
		m.logged = inner
		m.logLimit()
	}
}

// logLimit logs the limit of inner packets. There may be thousands of such peers. The caller holds mu.
func (m *pathMTU) logLimit() {
	p := m.peer
	level := slog.LevelInfo
	if !p.dev.pathMTULog.Allow(p.dev.clock(), time.Minute) {
		level = slog.LevelDebug
	}
	r := m.report()
	log := p.log().With("peer", p.key, "path_mtu", r.Bytes, "inner_mtu", r.InnerBytes, "state", r.State)
	if r.InnerBytes == 0 {
		log.Log(context.Background(), level, "path MTU no longer limits packets to peer")
		return
	}
	log.Log(context.Background(), level, "path MTU limits packets to peer, larger ones are fragmented or answered with ICMP errors")
}

// limit returns the size that data may have, 0 if it is not known, and how it is known. The caller holds mu.
func (m *pathMTU) limit() (limit int, state config.PathMTUState) {
	p := m.peer
	state = config.PathMTUUnknown
	if p.probing.active() {
		var proven bool
		limit, proven = p.probing.Limit()
		state = searchState(p.probing.State(), proven)
	}
	if !p.dev.outer.sendsFragments() {
		limit, state = m.known.apply(limit, state)
	}
	return limit, state
}

// innerLimit returns the size of the largest inner packet that fits in an outer packet of size limit, 0 for no limit. Padding may enlarge a packet up
// to the TUN's MTU, so the limit is a multiple of the padding.
func (m *pathMTU) innerLimit(limit int) int {
	if limit == 0 || limit >= m.max {
		return 0
	}
	return max((limit-m.overhead)&^(wire.PaddingMultiple-1), wire.PaddingMultiple)
}

// report returns the path MTU for people. The caller holds mu.
func (m *pathMTU) report() config.PathMTU {
	limit, state := m.limit()
	return config.PathMTU{Bytes: limit, InnerBytes: m.innerLimit(limit), State: state}
}

// searchState returns the state of a search for people. proven says that its limit is.
func searchState(s probe.State, proven bool) config.PathMTUState {
	switch {
	case s == probe.Unreachable:
		return config.PathMTUUnreachable
	case proven && (s == probe.Complete || s == probe.Raising):
		return config.PathMTUConfirmed
	}
	return config.PathMTUSearching
}
