// SPDX-License-Identifier: Apache-2.0

package send

import (
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// flowsLog2 is the size of each lane's flow table: 4,096 entries, 32 KiB, which stay in the cache.
const flowsLog2 = 12

// chooseSource returns the source for the parsed train to p.
func (t *Transmitter) chooseSource(p *lane.Peer) int {
	s := p.Spread.Load()
	if s == nil || t.flowlets == nil {
		return 0
	}
	f := spread.Flow{Peer: p.Number, Hash: t.flowHash()}
	if t.delays(waitingFlow{p, f.Hash}, t.flowlets.Lane(s.Loads, f, t.out.now)) {
		t.flowlets.Keep(f, t.out.now)
	}
	if s.Loads == nil {
		t.flowlets.Note(f, t.out.now)
		return 0
	}
	source := t.flowlets.Choose(s.Loads, f, t.out.now, t.train.Len()) // package spread calls the source a lane
	if s.Spray().Ports > 0 {
		t.spray.note(t, p)
	}
	if s.Loads.Blocks(source) {
		return 0
	}
	return source
}

// noteStaged records the flow of the parsed train to p: once there is a session, it will leave from the listen port.
func (t *Transmitter) noteStaged(p *lane.Peer) {
	if p.Spread.Load() != nil {
		t.flowlets.Note(spread.Flow{Peer: p.Number, Hash: t.flowHash()}, t.out.now)
	}
}
