// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math/rand/v2"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// fate is the network's decision about a datagram.
type fate struct {
	copies int // 0: it is lost
	delay  time.Duration
	gap    time.Duration // between copies
}

// fate decides about a datagram by its identity, so that the decision is the same in each run of a schedule, whatever the order in which
// goroutines send. The caller holds mu.
func (n *simNetwork) fate(l *link, src, dst int, d []byte) fate {
	number, kind := l.identify(d)
	c := &n.s.Network
	r := rand.New(rand.NewPCG(n.s.Seed, uint64(src)<<56|uint64(dst)<<48|uint64(kind)<<40^number))
	f := fate{copies: 1, delay: time.Duration(c.DelayMS) * time.Millisecond}
	if c.JitterMS > 0 {
		f.delay += time.Duration(r.IntN(c.JitterMS*1000)) * time.Microsecond
	}
	if n.perfect {
		return f
	}
	if r.IntN(1000) < c.Loss || l.loses(d) {
		return fate{}
	}
	if r.IntN(1000) < c.Duplicate {
		f.copies, f.gap = 2, time.Duration(r.IntN(3))*100*time.Millisecond
	}
	if r.IntN(1000) < c.Late {
		f.delay += time.Duration(r.IntN(1000)) * time.Millisecond
	}
	if l.held > 0 {
		l.held--
		f.delay += l.holdFor
	}
	return f
}

// identify returns the number of a datagram among those of its kind on the link.
func (l *link) identify(d []byte) (number uint64, kind wire.Type) {
	kind, _ = wire.Classify(d)
	if kind != wire.TypeData {
		l.handshake[kind]++
		return l.handshake[kind], kind
	}
	index := wire.DataReceiver(d)
	session, ok := l.sessions[index]
	if !ok {
		session = uint64(len(l.sessions))
		l.sessions[index] = session
	}
	return session<<24 | wire.Counter(d), kind
}

// loses reports whether the link loses a datagram whatever its fate is.
func (l *link) loses(d []byte) bool {
	now := time.Now()
	return now.Before(l.cutUntil) || now.Before(l.narrowTo) && len(d) > l.narrow
}
