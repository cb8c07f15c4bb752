// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"log/slog"
	"net"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/measurement"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/tunnel/autounderlay"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// ports opens the UDP port of one device, and another one whenever the listen port changes.
type ports struct {
	log    *slog.Logger
	device string // the network device for AF_XDP; if empty, the device towards most peers

	mu        sync.Mutex
	inherited *udp.Sockets // of the predecessor, for the first port; nil for none
	latest    *udp.Port    // the last port opened
	reserved  udp.Reservation
}

// open opens the UDP port, and the underlay that chooses between it and AF_XDP.
func (p *ports) open(o device.PortOptions) (underlay.Port, error) {
	u, err := p.sockets(o)
	if err != nil {
		return nil, err
	}
	a, err := autounderlay.Open(autounderlay.Config{UDP: u, Mode: o.Mode, Device: p.device, Measurements: measurement.DefaultDir, Mark: o.Mark, BusyPoll: true, Log: p.log})
	if err != nil {
		return nil, errors.Join(err, u.Close())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latest = u
	return a, nil
}

// sockets opens the sockets of a port, or uses the inherited ones.
func (p *ports) sockets(o device.PortOptions) (*udp.Port, error) {
	c := udp.Config{
		Port: o.Port, Lanes: o.Lanes, Mark: o.Mark, ReceiveBuffer: receiveBuffer(o.Lanes), SendBuffer: sendBuffer, BusyPoll: true, Log: p.log,
		Fragments: o.Fragments, TooBig: o.TooBig,
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.inherited; s != nil && len(s.Lanes) > 0 {
		p.inherited = nil
		c.Sockets = s
		u, err := udp.Open(c)
		if err == nil {
			return u, nil
		}
		p.log.Warn("using the sockets of the old daemon failed, opening new ones: packets queued in the old ones are lost", "error", errors.Join(err, s.Close()))
		c.Sockets = nil
	}
	return udp.Open(c)
}

// reserve implements device.Config.ReservePort.
func (p *ports) reserve(port uint16) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.adoptReservation()
	return p.reserved.Set(port)
}

// adoptReservation continues the predecessor's reservation, if it had one. The caller holds mu.
func (p *ports) adoptReservation() {
	s := p.inherited
	if s == nil || len(s.Lanes) > 0 || len(s.Holder) == 0 {
		return
	}
	if err := p.reserved.Adopt(s.Holder[0]); err != nil {
		p.log.Warn("taking over the old daemon's reservation of the listen port failed, other programs can bind the port while the interface is down", "error", err)
	}
	s.Holder = nil // the reservation owns it
}

// dupSockets fills in s with duplicates of the open port's sockets, without an open port with one of the reservation. Afterwards the
// port's sockets do not change any more, and closing the port leaves the duplicates as they are.
func (p *ports) dupSockets(s *udp.Sockets) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.latest != nil {
		sockets, err := p.latest.Keep()
		if err == nil {
			*s = *sockets
			return nil
		}
		if !errors.Is(err, net.ErrClosed) { // else the interface is down
			return err
		}
	}
	p.adoptReservation()
	s.Holder, err = p.reserved.Duplicate()
	return err
}

// closeInherited closes inherited sockets that no port has used.
func (p *ports) closeInherited() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inherited == nil {
		return nil
	}
	err := p.inherited.Close()
	p.inherited = nil
	return err
}

// Socket buffers of a lane in bytes.
const (
	// sendBuffer bounds how far a lane may be ahead of its network device. Messages of one session
	// leave by several lanes and device queues. The receiver refuses as a replay any message more
	// than 8,128 behind the newest (WireGuard paper, section 5.4.6). 1 MiB are 720 messages of
	// 1,452 bytes.
	sendBuffer = 1 << 20
	// The receive buffer holds what arrives while the lane's thread waits for a CPU, some ms on a busy host. It holds no standing queue:
	// the lane empties it after each quantum of work.
	maxReceiveBuffer   = 16 << 20
	minReceiveBuffer   = 2 << 20
	receiveBufferTotal = 64 << 20
)

// receiveBuffer returns the size of a lane's socket receive buffer.
func receiveBuffer(lanes int) int {
	return min(max(receiveBufferTotal/lanes, minReceiveBuffer), maxReceiveBuffer)
}

// warnOfLocalPorts warns if spread ports are in the kernel's range of local ports, which it gives to other sockets too.
func warnOfLocalPorts(log *slog.Logger, ports spread.Ports) {
	local, err := hostnet.ReadLocalPorts()
	if err != nil {
		log.Debug("reading the local port range failed, not checking whether spread ports overlap it", "error", err)
		return
	}
	if overlap := local.EphemeralRange(ports.All()); overlap.Len() > 0 {
		log.Warn("spread ports overlap the local port range, spread does without the ports that other programs use: run the command to reserve them",
			"spread_ports", ports, "local_port_range", local.Range, "command", local.ReserveCommand(overlap))
	}
}
