// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"log/slog"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// trainLimiter returns the port if it sends trains in one piece, nil otherwise.
func (d *Device) trainLimiter() underlay.TrainLimiter {
	ref := d.port.Load()
	if ref == nil || !ref.Features().GSO {
		return nil
	}
	limiter, _ := ref.Port.(underlay.TrainLimiter)
	return limiter
}

// applyTrains passes the result of a test of trains to the port. The caller holds mu.
func (p *Peer) applyTrains() {
	limiter, to, lost := p.dev.trainLimiter(), p.engine.Endpoint.Load(), p.probing.TrainsLost()
	if limiter == nil || to == nil {
		return
	}
	limiter.SetTrainsLost(to, p.engine.Number, lost)
	if lost == p.path.trainsLost {
		return
	}
	p.path.trainsLost = lost
	log := p.log().With("peer", p.key, "endpoint", to.Dst)
	switch {
	case !p.dev.pathMTULog.Allow(p.dev.clock(), time.Minute):
		log.Log(context.Background(), slog.LevelDebug, "trains to peer changed", "lost", lost)
	case lost:
		log.Warn("trains of datagrams (UDP GSO) to peer are lost on the way while single ones arrive, sending single ones: " +
			"the kernel, a network device or the hypervisor divides trains wrongly (doctor: fast-udp)")
	default:
		log.Info("trains of datagrams to peer arrive again, sending them in one piece")
	}
}

// retestTrains requests another test: the host's routes or links have changed. The caller holds mu.
func (p *Peer) retestTrains() {
	if p.probing.active() {
		p.probing.RetestTrains()
	}
}
