// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"context"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/toobig"
)

// The kernel announces no learned path MTU over IPv6. So the watcher also reads the Packet Too Big messages that it learns from,
// and has the paths to their destinations resolved again. Nothing else is taken from them: which of them to believe is the
// kernel's decision, which it makes by its sockets. Over IPv4 routers may fragment what exceeds a learned path MTU.

const (
	// tooBigDelay is how long messages are collected before they are acted on. Raw sockets get them before the kernel has learned
	// from them, and a flood of them must not cost more than this.
	tooBigDelay = 50 * time.Millisecond
	// maxTooBig is the number of destinations that are collected. The periodic review finds the others.
	maxTooBig = 256
)

// watchTooBig records messages until ctx ends. Without CAP_NET_RAW, learned path MTUs are noticed at the next review.
func (w *watcher) watchTooBig(ctx context.Context) {
	l, err := toobig.Listen(func(m *toobig.Message) {
		if w.recordTooBig(m.To.Addr()) {
			pause(ctx, tooBigDelay)
			notify(w.wake)
		}
	})
	if err != nil {
		return
	}
	w.finished.Go(func() {
		<-ctx.Done()
		_ = l.Close()
	})
}

// recordTooBig records a destination, and reports whether it was the first since the last takeTooBig.
func (w *watcher) recordTooBig(to netip.Addr) (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !to.Is6() || len(w.tooBig) >= maxTooBig {
		return false
	}
	w.tooBig[to] = struct{}{}
	return len(w.tooBig) == 1
}

// takeTooBig returns the destinations since the last call.
func (w *watcher) takeTooBig() map[netip.Addr]struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.tooBig
	w.tooBig = map[netip.Addr]struct{}{}
	return all
}
