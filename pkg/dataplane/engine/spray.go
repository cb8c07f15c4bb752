// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// A lane sprays its largest flow, if that is large enough: the trains of the flow leave from several source ports in turn, so that no limit
// of one 5-tuple holds for it. They have the counters of a stream (session.Stream), by which the peer puts them back into order. Spraying begins
// and ends with the port that the flow has without it, so that nothing overtakes at the seams:
//   - The first train of the stream leaves from that port, behind all that the flow has sent before. The peer delivers no other train of the
//     stream before it.
//   - Before the end, all trains leave from that port for sprayDrain. Until then, the peer has delivered or given up what left from other ports.

const (
	// sprayInterval is the time in ns over which the rate of a flow is measured.
	sprayInterval = int64(100 * time.Millisecond)
	// sprayRate is the rate in bytes per second from which a flow is sprayed: 1 Gbit/s. It ends to be at a quarter of that.
	sprayRate     = 125_000_000
	minSprayBytes = sprayRate / 4 * sprayInterval / int64(time.Second)
	// sprayDrain is the time in ns between the last train from another port and the end of the stream: the
	// longest wait of the peer, and as much for the difference of the paths.
	sprayDrain = 2 * int64(spread.MaxOrderWait)
)

// Spray says how one flow may be sprayed. The zero Spray is never.
type Spray struct {
	Ports int // source ports of one flow, at least 2
	// Lanes is the number of the peer's receive lanes. Messages from port FirstPort + i, up to LastPort, arrive at lane i modulo Lanes. A flow
	// uses only ports of one lane.
	Lanes               int
	FirstPort, LastPort uint16
}

// Sprayed returns a copy of s, with the same loads, that sprays flows. port returns the port of a source.
func (s *Spread) Sprayed(spray Spray, port func(source int) uint16) *Spread {
	c := *s
	c.spray, c.sprayLanes = spray, nil
	if spray.Ports == 0 {
		return &c
	}
	c.sprayLanes = make([]int, len(s.sources))
	for i, source := range s.sources {
		if spray.Lanes == 1 {
			continue
		}
		if p := port(int(source)); p >= spray.FirstPort && p <= spray.LastPort {
			c.sprayLanes[i] = int(p-spray.FirstPort) % spray.Lanes
		} else {
			c.sprayLanes[i] = noLane // the peer selects the lane by hash
		}
	}
	return &c
}

// noLane is the lane of a source whose messages may arrive at any lane.
const noLane = -1

// Spray returns the argument of Sprayed.
func (s *Spread) Spray() Spray { return s.spray }

// Sprays returns the largest number of sources over which one flow may be sprayed, 0 for none: a lane of the peer may have fewer than Spray.Ports.
func (s *Spread) Sprays() (most int) {
	for _, source := range s.sources[:len(s.sprayLanes)] {
		most = max(most, len(s.sourcesWith(int(source))))
	}
	return most
}

// sourcesWith returns the sources over which a flow is sprayed that leaves from source home otherwise; home is first. None means that the flow
// cannot be sprayed.
func (s *Spread) sourcesWith(home int) []uint8 {
	at := -1
	for i, source := range s.sources {
		if int(source) == home {
			at = i
		}
	}
	if at < 0 || s.sprayLanes[at] == noLane {
		return nil
	}
	var list []uint8
	for i := range s.sources {
		j := (at + i) % len(s.sources)
		if s.sprayLanes[j] == s.sprayLanes[at] && !s.loads.Blocks(int(s.sources[j])) && len(list) < s.spray.Ports {
			list = append(list, s.sources[j])
		}
	}
	if len(list) < 2 {
		return nil
	}
	return list
}

// sprayer finds the largest flow of a lane and sprays it.
type sprayer struct {
	on bool // the flow is sprayed. Lanes read this once per train
	// The flow that is sprayed, or may be the largest: the majority vote of Boyer and Moore, by bytes.
	peer   *Peer
	hash   uint32
	flow   packet.Flow
	weight int
	bytes  int   // of the flow since
	since  int64 // when the interval began
	small  bool  // the flow is no longer large

	stream  session.Stream
	spread  *Spread // of sources
	sources []uint8
	turn    int
	until   int64 // the end of sending from one port before the stream ends; 0 while trains are sprayed
	last    int64 // time of the last train, or of the decision to spray before there is one
}

// noteElephant counts the parsed train to p, to which flows may be sprayed.
func (t *transmitter) noteElephant(p *Peer) {
	e, n, hash := &t.spray, t.train.Len(), t.flowHash()
	switch {
	case e.peer == p && e.hash == hash:
		e.bytes += n
		e.weight += n
	case e.on:
	case e.weight <= 0:
		e.peer, e.hash, e.flow, e.weight, e.bytes, e.since = p, hash, t.train.Flow(), n, 0, t.now
	default:
		e.weight -= n
	}
	if t.now-e.since >= sprayInterval {
		e.evaluate(t.now)
	}
}

// evaluate ends an interval of measurement.
func (e *sprayer) evaluate(now int64) {
	rate := int64(e.bytes) * int64(time.Second) / (now - e.since)
	if e.on {
		e.small = rate < sprayRate/4
	} else {
		e.on, e.small, e.last = rate >= sprayRate, false, now
	}
	e.bytes, e.since, e.weight = 0, now, min(e.weight, int(minSprayBytes))
}

// sprayTrain makes the parsed train to p part of the stream if its flow is sprayed. It returns the session and the source to send with instead
// of keys and source.
func (t *transmitter) sprayTrain(p *Peer, keys *session.Keypair, source int) (*session.Keypair, int) {
	e := &t.spray
	if p != e.peer || t.flowHash() != e.hash || !e.flow.Matches(t.train.Flow()) {
		return keys, source
	}
	s, at := p.Spread.Load(), source
	switch old := e.stream.Keys(); {
	case old == nil:
		e.begin(s, keys, source)
	case t.now-e.last >= int64(spread.DefaultGap) || !old.Usable(t.now) || old.Wiped(): // nothing is on its way
		e.end(e.small || s == nil)
		e.begin(s, keys, source)
	case e.until != 0 && t.now >= e.until:
		e.end(e.small)
		e.begin(s, keys, source)
	case e.until != 0:
	case s != e.spread || keys != old || e.small:
		e.until = t.now + sprayDrain
	case !t.queue.active():
		e.turn = (e.turn + 1) % len(e.sources)
		at = int(e.sources[e.turn])
		s.loads.Add(at, t.now, t.train.Len())
	}
	if e.stream.Keys() == nil {
		return keys, source
	}
	e.last, t.stream = t.now, e
	return e.stream.Keys(), at
}

// begin opens a stream if the flow may be sprayed.
func (e *sprayer) begin(s *Spread, keys *session.Keypair, source int) {
	if !e.on || s == nil || s.spray.Ports == 0 {
		e.on = false
		return
	}
	if e.sources = s.sourcesWith(source); e.sources == nil {
		e.on = false
		return
	}
	e.stream, e.on = keys.OpenStream()
	e.spread, e.turn, e.until = s, 0, 0
}

// end closes the stream. The flow is no longer sprayed if off is set.
func (e *sprayer) end(off bool) {
	e.stream.Close()
	e.spread = nil
	e.on = !off
}

// endIfIdle closes the stream of a flow that has stopped. Trains of other flows to the same peer may not come, and may not be sprayed.
func (e *sprayer) endIfIdle(now int64) {
	if now-e.last >= int64(spread.DefaultGap) {
		e.end(true)
	}
}

// ports returns the number of source ports of the flow.
func (e *sprayer) ports() int {
	if e.until != 0 {
		return 1
	}
	return len(e.sources)
}
