// SPDX-License-Identifier: Apache-2.0

package send

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// A lane sprays its largest flow, if that is large enough. The trains of the flow leave from
// several source ports in turn, so no limit of one 5-tuple holds for it. They have the counters
// of a stream (session.Stream), by which the peer puts them back into order. Spraying begins and
// ends with the port that the flow has without it, so that nothing overtakes at the seams:
//   - The first train of the stream leaves from that port, behind all that the flow has sent before. The peer delivers no other train of the
//     stream before it.
//   - Before the end, all trains leave from that port for sprayDrain. Until then, the peer has delivered or given up what left from other ports.

const (
	// sprayInterval is the time in ns over which the rate of a flow is measured.
	sprayInterval = int64(100 * time.Millisecond)
	// sprayRate is the rate in bytes per second from which a flow is sprayed: 1 Gbit/s. It ends to be at a quarter of that.
	sprayRate     = 125_000_000
	minSprayBytes = sprayRate / 4 * sprayInterval / int64(time.Second)
	// sprayDrain is the time in ns between the last train from another port and the end of the
	// stream. It is twice the longest wait of the peer, since the delays of paths differ.
	sprayDrain = 2 * int64(spread.MaxOrderWait)
)

// sprayer finds the largest flow of a lane and sprays it.
type sprayer struct {
	on bool // the flow is sprayed. Lanes read this once per train
	// The flow that is sprayed, or may be the largest: the majority vote of Boyer and Moore, by bytes.
	peer   *lane.Peer
	hash   uint32
	flow   packet.Flow
	weight int
	bytes  int   // of the flow since
	since  int64 // when the interval began
	small  bool  // the flow is no longer large

	stream  session.Stream
	spread  *lane.Spread // of sources
	sources []uint8
	turn    int
	until   int64 // the end of sending from one port before the stream ends; 0 while trains are sprayed
	last    int64 // time of the last train, or of the decision to spray before there is one
}

// note counts t's parsed train to p, to which flows may be sprayed.
func (e *sprayer) note(t *Transmitter, p *lane.Peer) {
	n, hash := t.train.Len(), t.flowHash()
	switch {
	case e.peer == p && e.hash == hash:
		e.bytes += n
		e.weight += n
	case e.on:
	case e.weight <= 0:
		e.peer, e.hash, e.flow, e.weight, e.bytes, e.since = p, hash, t.train.Flow(), n, 0, t.out.now
	default:
		e.weight -= n
	}
	if t.out.now-e.since >= sprayInterval {
		e.evaluate(t.out.now)
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

// assign makes t's parsed train to p part of the stream if its flow is sprayed. It returns the session and the source to send with instead
// of keys and source.
func (e *sprayer) assign(t *Transmitter, p *lane.Peer, keys *session.Keypair, source int) (*session.Keypair, int) {
	if p != e.peer || t.flowHash() != e.hash || !e.flow.Matches(t.train.Flow()) {
		return keys, source
	}
	s, at := p.Spread.Load(), source
	switch old := e.stream.Keys(); {
	case old == nil:
		e.begin(s, keys, source)
	case t.out.now-e.last >= int64(spread.DefaultGap) || !old.Usable(t.out.now) || old.Wiped(): // nothing is on its way
		e.end(e.small || s == nil)
		e.begin(s, keys, source)
	case e.until != 0 && t.out.now >= e.until:
		e.end(e.small)
		e.begin(s, keys, source)
	case e.until != 0:
	case s != e.spread || keys != old || e.small:
		e.until = t.out.now + sprayDrain
	case !t.active():
		e.turn = (e.turn + 1) % len(e.sources)
		at = int(e.sources[e.turn])
		s.Loads.Add(at, t.out.now, t.train.Len())
	}
	if e.stream.Keys() == nil {
		return keys, source
	}
	e.last, t.stream = t.out.now, e
	return e.stream.Keys(), at
}

// begin opens a stream if the flow may be sprayed.
func (e *sprayer) begin(s *lane.Spread, keys *session.Keypair, source int) {
	if !e.on || s == nil || s.Spray().Ports == 0 {
		e.on = false
		return
	}
	if e.sources = s.SourcesWith(source); e.sources == nil {
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
