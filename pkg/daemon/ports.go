// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"log/slog"
	"net"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/device"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/spread"
	"github.com/ropewalk/ropewalk/pkg/underlay"
	"github.com/ropewalk/ropewalk/pkg/underlay/auto"
	"github.com/ropewalk/ropewalk/pkg/underlay/udp"
)

// ports opens the UDP ports of one device, one after the other.
type ports struct {
	log    *slog.Logger
	device string // of AF_XDP, empty for the one that most peers are reached by

	mu        sync.Mutex
	inherited *udp.Sockets // for the first port; nil for none
	now       *udp.Port    // the last one
}

// open opens the UDP port, and puts in front of it what chooses the way.
func (p *ports) open(o device.PortOptions) (underlay.Port, error) {
	u, err := p.sockets(o)
	if err != nil {
		return nil, err
	}
	a, err := auto.Open(auto.Config{UDP: u, Mode: o.Mode, Device: p.device, ReceiveCPUs: o.CPUs, Mark: o.Mark, Linger: true, Log: p.log})
	if err != nil {
		return nil, errors.Join(err, u.Close())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = u
	return a, nil
}

// sockets opens those of a port, or goes on with the inherited ones.
func (p *ports) sockets(o device.PortOptions) (*udp.Port, error) {
	c := udp.Config{Port: o.Port, Lanes: o.Lanes, Mark: o.Mark, ReceiveBuffer: receiveBuffer(o.Lanes), Linger: true, Log: p.log}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.inherited; s != nil && len(s.Lanes) > 0 {
		p.inherited = nil
		c.Sockets = s
		u, err := udp.Open(c)
		if err == nil {
			return u, nil
		}
		p.log.Warn("the sockets of before are of no use: others are opened", "error", errors.Join(err, s.Close()))
		c.Sockets = nil
	}
	return udp.Open(c)
}

// keep fills in the sockets of the port that is open now, if any.
func (p *ports) keep(s *udp.Sockets) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		return nil
	}
	now, err := p.now.Keep()
	switch {
	case err == nil:
		*s = *now
	case !errors.Is(err, net.ErrClosed): // the interface is down
		return err
	}
	return nil
}

// discard closes what was inherited and not used.
func (p *ports) discard() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inherited == nil {
		return nil
	}
	err := p.inherited.Close()
	p.inherited = nil
	return err
}

// receiveBuffer bounds the queue in front of a lane, in bytes. It is what a bulk transfer makes others wait for: 7 MiB,
// which other tunnels take, holds 15 ms at 4 Gbit/s. A peer that spreads fills all lanes, so that each gets a part; with
// less than half a MiB, trains are lost (docs/performance.md).
func receiveBuffer(lanes int) int { return max(1<<20/lanes, 512<<10) }

// warnOfLocalPorts tells of spread ports that the kernel gives to other sockets too.
func warnOfLocalPorts(log *slog.Logger, ports spread.Ports) {
	local, err := hostnet.ReadLocalPorts()
	if err != nil {
		log.Debug("whether other sockets are given the spread ports is not known", "error", err)
		return
	}
	if given := local.Among(ports.All()); given.Len() > 0 {
		log.Warn("the kernel gives some of the spread ports to other sockets too: those it has given away are left out",
			"spread_ports", ports, "local_port_range", local.Range, "to_reserve", local.Reserving(given))
	}
}
