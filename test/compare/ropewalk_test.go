// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/test/expect"
)

// startRopewalk starts a ropewalk device with e. Spread is off, since there are no source ports in memory.
func startRopewalk(tb testing.TB, e *memoryNet, s endConfig) {
	tb.Helper()
	t := &ropewalkTUN{net: e, events: make(chan tun.Event, 1)}
	t.events <- tun.Event{Up: true, MTU: mtu}
	d := device.New(device.Config{
		TUN: t, Log: slog.New(slog.DiscardHandler),
		OpenPort: func(device.PortOptions) (underlay.Port, error) { return newPort(e, s), nil },
	})
	tb.Cleanup(d.Close)
	off, port := config.SpreadOff, s.peer.Port()
	first := config.Peer{PublicKey: s.peerKey, Endpoint: &config.Endpoint{AddrPort: s.peer}}
	for _, prefix := range s.allowed {
		first.AllowedIPs = append(first.AllowedIPs, config.AllowedIP{Prefix: prefix})
	}
	peers := []config.Peer{first}
	for _, key := range s.others {
		peers = append(peers, config.Peer{PublicKey: key})
	}
	err := d.Configure(config.Device{PrivateKey: &s.key, ListenPort: &port, Settings: config.Settings{Spread: &off}, Peers: peers})
	if err != nil {
		tb.Fatal(err)
	}
	d.Start()
	expect.Eventually(tb, "ropewalk is up", func() bool { return d.Stats().(device.Stats).Up })
	// The port is opened before the peers have started, and packets sent in between are lost. Status waits for the peers.
	_ = d.Status()
}

// ropewalkTUN implements tun.Device, with all offloads.
type ropewalkTUN struct {
	net    *memoryNet
	events chan tun.Event
	once   sync.Once
}

func (t *ropewalkTUN) Name() string             { return "memory" }
func (t *ropewalkTUN) Features() tun.Features   { return tun.Features{TSO: true, USO: true} }
func (t *ropewalkTUN) Events() <-chan tun.Event { return t.events }

func (t *ropewalkTUN) Queues() (queues []tun.Queue) {
	for _, q := range t.net.host {
		queues = append(queues, &ropewalkQueue{in: q, out: t.net.received})
	}
	return queues
}

// StopReading implements tun.Device. The interface stays up, so nobody calls it.
func (t *ropewalkTUN) StopReading() error { return errors.ErrUnsupported }

func (t *ropewalkTUN) ResumeReading() error { return errors.ErrUnsupported }

func (t *ropewalkTUN) Close() error {
	t.once.Do(func() {
		close(t.events)
		for _, q := range t.net.host {
			q.setClosed(true)
		}
	})
	return nil
}

type ropewalkQueue struct {
	in  *queue
	out *packetCounter
}

// Read implements tun.Queue. It returns after a train.
func (q *ropewalkQueue) Read(bufs [][]byte, sizes []int) (int, error) {
	n := q.in.take(len(bufs), func(i int, p *element) bool {
		sizes[i] = copy(bufs[i], p.data)
		return sizes[i] <= 4<<10
	})
	if n == 0 {
		return 0, os.ErrClosed
	}
	return n, nil
}

// TryRead implements tun.Queue. A device without workers does not call it.
func (q *ropewalkQueue) ReadOr(bufs [][]byte, sizes []int, _ []int32) (int, error) {
	return q.Read(bufs, sizes)
}

func (q *ropewalkQueue) TryRead([][]byte, []int) int { return 0 }

// Write implements tun.Queue. It counts the packets of the train.
func (q *ropewalkQueue) Write(parts [][]byte) error {
	var h offload.VnetHdr
	h.Decode(parts[0])
	q.out.inspect(parts)
	if h.GSOType == offload.GSONone {
		q.out.add(1)
		return nil
	}
	payload := -offload.VnetHdrLen - int(h.HdrLen)
	for _, p := range parts {
		payload += len(p)
	}
	q.out.add((payload + int(h.GSOSize) - 1) / int(h.GSOSize))
	return nil
}

func (q *ropewalkQueue) Inject(parts [][]byte) error { return q.Write(parts) }

// port implements underlay.Port. It is also its SecondaryPorts, which never receive.
type port struct {
	net            *memoryNet
	side           endConfig
	secondaryPorts *queue
}

func newPort(e *memoryNet, s endConfig) *port {
	return &port{net: e, side: s, secondaryPorts: newQueue(1, 0)}
}

func (p *port) Lane(i int) underlay.Lane           { return &portLane{port: p, index: i, in: p.net.network[i]} }
func (p *port) Lanes() int                         { return len(p.net.network) }
func (p *port) LocalPort() uint16                  { return p.side.peer.Port() }
func (p *port) Source(int) uint16                  { return p.LocalPort() }
func (p *port) SecondaryPorts() underlay.Receiver  { return &portLane{port: p, in: p.secondaryPorts} }
func (p *port) SetMark(uint32) error               { return nil }
func (p *port) SetFragments(bool) error            { return nil }
func (p *port) RoutesChanged()                     {}
func (p *port) SetLoop(underlay.Destination, bool) {}
func (p *port) Features() underlay.Features {
	return underlay.Features{GSO: true, GRO: true, IPv4: true, IPv6: true}
}

func (p *port) OpenSource(uint16) (int, error) { return 0, errors.ErrUnsupported }
func (p *port) OpenGroup(int) error            { return errors.ErrUnsupported }

func (p *port) SendTo(to *underlay.Endpoint, datagram []byte) error {
	return p.SendRun(&underlay.Run{To: to, Parts: [][]byte{datagram}, SegSize: len(datagram), Segments: 1})
}

func (p *port) SendRun(r *underlay.Run) error {
	p.send(0, []underlay.Run{*r})
	return nil
}

func (p *port) send(lane int, runs []underlay.Run) {
	p.net.out.send(lane, len(runs), func(i int) ([][]byte, int, int) {
		return runs[i].Parts, runs[i].SegSize, runs[i].Segments
	})
}

func (p *port) Close() error {
	p.secondaryPorts.setClosed(true)
	for _, q := range p.net.network {
		q.setClosed(true)
	}
	return nil
}

type portLane struct {
	port  *port
	index int
	in    *queue
}

// Recv implements underlay.Receiver.
func (l *portLane) Recv(rx []underlay.Datagrams) (int, error) {
	from := underlay.Endpoint{Dst: l.port.side.peer}
	n := l.in.take(len(rx), func(i int, p *element) bool {
		rx[i] = underlay.Datagrams{Buf: rx[i].Buf, N: copy(rx[i].Buf, p.data), SegSize: p.segSize, From: from}
		return true
	})
	if n == 0 {
		return 0, net.ErrClosed
	}
	return n, nil
}

// TryRecv implements underlay.Lane.
func (l *portLane) TryRecv([]underlay.Datagrams) int { return 0 }

// Send implements underlay.Lane.
func (l *portLane) SendFD(*underlay.Run) int { return -1 }

func (l *portLane) BeginWait() bool { return true }

func (l *portLane) EndWait() {}

func (l *portLane) Send(runs []underlay.Run) int {
	for i := range runs {
		runs[i].Err = nil
	}
	l.port.send(l.index, runs)
	return 0
}
