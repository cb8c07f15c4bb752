// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/chachapoly"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/sockets"
)

// Status returns a snapshot of configuration and peers, sorted by public key. It holds secrets.
func (d *Device) Status() config.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := config.Status{
		Name:        d.cfg.TUN.Name(),
		PrivateKey:  d.private,
		ListenPort:  d.listenPort,
		FwMark:      d.mark.Load(),
		Peers:       make([]config.PeerStatus, 0, len(d.peers.list)),
		Spread:      d.spreading.Load().mode,
		SpreadPorts: d.outer.spreadPorts(),
		Spray:       d.spreading.Load().spray,
		Lanes:       d.engine.Lanes(),
	}
	if id := d.identity.Load(); id != nil {
		s.PublicKey = id.Public()
	}
	for _, p := range d.peers.list {
		s.Peers = append(s.Peers, p.status())
	}
	slices.SortFunc(s.Peers, func(a, b config.PeerStatus) int { return bytes.Compare(a.PublicKey[:], b.PublicKey[:]) })
	return s
}

// SelectionReport describes how receive lanes are selected.
type SelectionReport = sockets.SelectionReport

// Stats is the response to the control socket's stats request, in JSON.
type Stats struct {
	// Version is of the program, and Features name the requests that its control socket understands
	// (uapi.Features). Package daemon sets both.
	Version   string            `json:"version,omitempty"`
	Features  []string          `json:"features,omitempty"`
	Interface string            `json:"interface"`
	Up        bool              `json:"up"`
	TUN       tun.Features      `json:"tun"`
	Underlay  underlay.Features `json:"underlay"`
	engine.Stats
	Spread  config.SpreadReport  `json:"spread"`
	PathMTU config.PathMTUReport `json:"path_mtu"`
	// PathMTUErrors counts ICMP errors that report a path MTU.
	PathMTUErrors config.ICMPErrorCounts `json:"path_mtu_errors"`
	Selection     SelectionReport        `json:"selection"`
	Path          config.UnderlayReport  `json:"path"`
	// Settings are as configured, by their names in files.
	Settings map[string]string `json:"settings"`
	// PostQuantum says which sessions have keys of post-quantum exchanges.
	PostQuantum config.PostQuantumReport `json:"post_quantum"`
	// FailingHandshakes has the peers that do not answer.
	FailingHandshakes config.HandshakeReport `json:"failing_handshakes"`
	// Names has the peers that have names.
	Names config.NameReport `json:"names,omitempty"`
	// Handshakes counts for all present and removed peers.
	Handshakes HandshakeStats `json:"handshakes"`
	// Stalls counts what took packets and made no progress.
	Stalls  config.StallReport `json:"stalls"`
	Cipher  string             `json:"cipher"`  // the ChaCha20-Poly1305 implementation
	Workers int                `json:"workers"` // workers that help lanes
	// AbsentLinks are the former indexes of links of endpoints that do not exist at present, by name. Package daemon sets it.
	AbsentLinks map[string]int `json:"absent_links,omitempty"`
	// Reflector is nil if there is none. Package daemon sets it.
	Reflector *config.ReflectorReport `json:"reflector,omitempty"`
}

// Stats returns a snapshot of all counters. It holds no secrets.
func (d *Device) Stats() any {
	s := Stats{Interface: d.cfg.TUN.Name(), TUN: d.cfg.TUN.Features(), Stats: d.counts.traffic()}
	d.counts.addTUNDrops(&s.Stats)
	if port := d.outer.port.Load(); port != nil {
		s.Up, s.Underlay = true, port.Features()
	}
	s.addPeers(d)
	s.Selection, s.Path = d.outer.selection.Report(), d.outer.report()
	configured := d.configured()
	s.PathMTUErrors, s.Settings = d.icmp.counts.snapshot(), configured.Texts()
	s.Handshakes, s.Stalls = d.counts.handshakes.snapshot(), d.stalls.report()
	s.Cipher, s.Workers = chachapoly.Implementation(), d.cfg.Pool.Workers()
	return s
}

// reportPeers returns what of returns for each peer, if ok, by public key in base64. It takes no lock that configuration holds for long.
func reportPeers[R any](d *Device, of func(p *Peer) (r R, ok bool)) map[string]R {
	reports := map[string]R{}
	d.peers.each(func(key string, p *Peer) {
		if r, ok := of(p); ok {
			reports[key] = r
		}
	})
	return reports
}

// addPeers fills in the part of s that concerns peers.
func (s *Stats) addPeers(d *Device) {
	ports, spreading, now := d.outer.spreadPorts(), d.spreading.Load(), d.clock()
	s.Spread = config.SpreadReport{
		Mode: spreading.mode, FirstPort: ports.First, LastPort: ports.Last, Spray: spreading.spray, Lanes: d.engine.Lanes(),
		Peers: reportPeers(d, func(p *Peer) (config.PeerSpread, bool) { return p.spread.report, true }),
	}
	s.PathMTU = reportPeers(d, func(p *Peer) (config.PathMTU, bool) { return p.mtu.report(), true })
	s.PostQuantum = d.counts.quantum.report()
	s.PostQuantum.Policy = config.PostQuantum(d.postQuantum.Load()).Or(config.DefaultPostQuantum)
	s.PostQuantum.Peers = reportPeers(d, func(p *Peer) (config.PeerPostQuantum, bool) {
		r := p.quantum.report(now)
		return r, r.Policy != config.PostQuantumOff || r.Own
	})
	s.FailingHandshakes = reportPeers(d, func(p *Peer) (config.PeerHandshake, bool) {
		r := p.handshake.report()
		return r, r.Failing()
	})
	s.Names = reportPeers(d, func(p *Peer) (config.PeerName, bool) {
		names := p.peerName()
		return names, names != config.PeerName{}
	})
}

// ProbePeer tests the path to a peer with a message that the peer answers. It is an initiation if
// there is no session and none was sent lately. Else it is a probe if the peer answers probes and
// none is under way. It does not wait for the answer: a later call reports it. ok is false if there
// is no such peer.
func (d *Device) ProbePeer(key noise.PublicKey) (report config.PeerProbe, ok bool) {
	p := d.peers.lookup(key)
	if p == nil {
		return config.PeerProbe{}, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now, keys := d.clock(), p.engine.Current.Load()
	r := config.PeerProbe{
		Up: p.running, Session: keys.Usable(now),
		Echoes: p.hello.exchange.Remote.Probes && d.spreading.Load().mode != config.SpreadOff,
	}
	switch {
	case r.Up && r.Session && r.Echoes:
		p.probing.sendEcho(keys, now)
	case r.Up && !r.Session:
		p.handshake.initiate(now)
		p.armTimer(now)
	}
	r.Handshake, r.Reflected = p.handshake.report(), p.reflections.answered.Load()
	if e := p.probing.echo; e != nil {
		r.Sent, r.Answered, r.RTT = e.sent, e.answered, time.Duration(e.rtt)
	}
	return r, true
}

// AdmitReflection reports whether a reflector answers a request that came through the tunnel. Its
// source is an allowed IP of a peer, and the peer has sent fewer than eight others in this second.
// Then isLocal reports whether it is an address of this host, which gets no answer.
func (d *Device) AdmitReflection(from netip.Addr, isLocal func(netip.Addr) bool) bool {
	e, ok := d.engine.Routes.Lookup(from)
	if !ok {
		return false
	}
	p, ok := e.SlowPath.(*Peer)
	if !ok || !p.reflections.rate.Allow(d.clock(), time.Second) || isLocal(from) {
		return false
	}
	p.reflections.answered.Add(1)
	return true
}

// reflections limits and counts the requests of a peer that a reflector answers. It is safe for concurrent use.
type reflections struct {
	rate     pace.Rate
	answered atomic.Uint64
}

// SessionEndpoint is the endpoint of a peer that has a session, or had one with a post-quantum key.
// It holds no secret.
type SessionEndpoint struct {
	PublicKey     noise.PublicKey `json:"public_key"`
	Endpoint      netip.AddrPort  `json:"endpoint,omitzero"` // invalid: there is no session
	LastHandshake time.Time       `json:"last_handshake,omitzero"`
	// PostQuantum is when a session with such a key was last confirmed, zero for never.
	PostQuantum time.Time `json:"post_quantum,omitzero"`
}

// SessionEndpoints returns the device's public key and the peers that have a session, or had one with
// a post-quantum key. They are for Config.Recall of the next process. After the end of the device
// they are those at its end. ok is false if the device has no key or has ended. It is safe for
// concurrent use.
func (d *Device) SessionEndpoints() (own noise.PublicKey, list []SessionEndpoint, ok bool) {
	id := d.identity.Load()
	if id == nil {
		return own, nil, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lastSessions == nil {
		return id.Public(), d.sessionEndpoints(), !d.closed
	}
	return id.Public(), *d.lastSessions, false
}

// sessionEndpoints is the list of SessionEndpoints. The caller holds mu.
func (d *Device) sessionEndpoints() (list []SessionEndpoint) {
	d.peers.mu.RLock()
	defer d.peers.mu.RUnlock()
	for key, p := range d.peers.list {
		p.mu.Lock()
		e := SessionEndpoint{PublicKey: key, PostQuantum: p.quantum.machine.Load().Had()}
		at := p.engine.Endpoint.Load()
		if at != nil && at.Scope == 0 && p.sessions.has() { // the number of a scope may change
			e.Endpoint, e.LastHandshake = at.Dst, p.handshake.completedAt
		}
		if e.Endpoint.IsValid() || !e.PostQuantum.IsZero() {
			list = append(list, e)
		}
		p.mu.Unlock()
	}
	return list
}

// Flows returns the busiest flows of all lanes (engine.Engine.Flows).
func (d *Device) Flows() FlowReport {
	flows, since := d.engine.Flows()
	r := FlowReport{Interface: d.cfg.TUN.Name(), Lanes: d.engine.Lanes(), Now: d.clock(), Since: since, Flows: []Flow{}}
	peers := d.peers.byEngine()
	port := d.outer.port.Load()
	for i := range flows {
		f := &flows[i]
		p, ok := peers[f.Peer]
		if !ok { // the peer was removed
			continue
		}
		flow := flowOf(f, p)
		if !f.Received && port != nil {
			flow.OuterPort = port.Source(f.Source)
		}
		r.Flows = append(r.Flows, flow)
	}
	return r
}

func flowOf(f *engine.FlowStats, p *Peer) Flow {
	flow := Flow{
		FlowID: FlowID{Direction: "tx", Peer: p.key.Base64(), Name: p.nameText()}, Lane: f.Lane, OuterPort: f.Port, Sprayed: f.Sprayed,
		Packets: f.Packets, Bytes: f.Bytes, Marks: f.Marks, Drops: f.Drops, First: f.First, Last: f.Last,
	}
	if f.Received {
		flow.Direction = "rx"
	}
	if f.Flow.Source.IsValid() {
		flow.Protocol = f.Flow.Protocol.String()
		flow.Source, flow.Destination = endText(f.Flow.Source), endText(f.Flow.Destination)
	}
	return flow
}

// endText returns address and port, or the address of a flow without ports.
func endText(end netip.AddrPort) string {
	if end.Port() == 0 {
		return end.Addr().String()
	}
	return end.String()
}

// FlowReport is the response to the control socket's flows request, in JSON. It has the addresses of users: only the control socket
// passes it on, never a metric or a log line.
type FlowReport struct {
	Interface string `json:"interface"`
	Lanes     int    `json:"lanes"`
	// Times are nanoseconds of one monotonic clock: of this report, and of the beginning of counting.
	Now   int64  `json:"now"`
	Since int64  `json:"since"`
	Flows []Flow `json:"flows"`
}

// Flow is one inner flow in one direction of one lane. Counters begin when the lane's table gets an entry for the flow.
type Flow struct {
	FlowID
	Lane      int    `json:"lane"` // FlowReport.Lanes for the slow path
	OuterPort uint16 `json:"outer_port"`
	Sprayed   int    `json:"sprayed,omitempty"` // sent flows: the number of source ports over which the flow is sprayed; absent for none
	Packets   uint64 `json:"packets"`
	Bytes     uint64 `json:"bytes"`
	Marks     uint64 `json:"marks"`
	Drops     uint64 `json:"drops"`
	First     int64  `json:"first"`
	Last      int64  `json:"last"`
}

// FlowID identifies a flow.
type FlowID struct {
	Direction string `json:"direction"`      // rx or tx
	Peer      string `json:"peer"`           // public key, base64
	Name      string `json:"name,omitempty"` // of the peer, for people
	// Protocol, Source and Destination are empty for messages that the receive queue dropped before they were opened.
	Protocol    string `json:"protocol"` // such as tcp, or a number
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

// StuckLanes returns the lanes that make no progress, such as rx0. It takes no lock of a peer, so its cost does not grow with them.
func (d *Device) StuckLanes() []string { return d.stalls.report().Lanes }

// HandshakeStats counts the handshakes of all peers, by our role. Rejected messages count as drops, by reason.
type HandshakeStats struct {
	Initiated uint64 `json:"initiated"` // initiations sent, retries included
	Completed uint64 `json:"completed"` // initiations that were answered
	GaveUp    uint64 `json:"gave_up"`   // attempts of 90 s without an answer
	Answered  uint64 `json:"answered"`  // responses sent
	Confirmed uint64 `json:"confirmed"` // responses whose session the initiator has used
}

// handshakeCounters is the atomic form of HandshakeStats.
type handshakeCounters struct{ initiated, completed, gaveUp, answered, confirmed atomic.Uint64 }

func (c *handshakeCounters) snapshot() HandshakeStats {
	return HandshakeStats{
		Initiated: c.initiated.Load(), Completed: c.completed.Load(), GaveUp: c.gaveUp.Load(),
		Answered: c.answered.Load(), Confirmed: c.confirmed.Load(),
	}
}

// add adds the counts of the device whose state this one resumes.
func (c *handshakeCounters) add(before HandshakeStats) {
	c.initiated.Add(before.Initiated)
	c.completed.Add(before.Completed)
	c.gaveUp.Add(before.GaveUp)
	c.answered.Add(before.Answered)
	c.confirmed.Add(before.Confirmed)
}

// traffic returns the lanes' counters, with the drops of the sockets in front of them.
func (c *counters) traffic() engine.Stats {
	s := c.dev.engine.Stats()
	c.socketDrops.AddTo(&s)
	return s
}

// addTUNDrops adds the drops of the kernel in front of the lanes, from the beginning of this device
// or of its predecessor.
func (c *counters) addTUNDrops(s *engine.Stats) {
	if n, before := c.tunQueueDrops(), c.tunDropsBefore.Load(); n > before {
		s.Drops[drop.TXTUNQueue.String()] += n - before
	}
}

// tunQueueDrops returns the kernel's counter, which the interface keeps.
func (c *counters) tunQueueDrops() uint64 {
	if c, ok := c.dev.cfg.TUN.(tun.DropCounter); ok {
		return c.QueueDrops()
	}
	return 0
}

// icmpCounters counts the ICMP errors that report a path MTU.
type icmpCounters struct{ believed, ignored atomic.Uint64 }

func (c *icmpCounters) snapshot() config.ICMPErrorCounts {
	return config.ICMPErrorCounts{Believed: c.believed.Load(), Ignored: c.ignored.Load()}
}

// quantumCounters count for all present and removed peers of a device.
type quantumCounters struct {
	results    [postquantum.Results]atomic.Uint64
	fallbacks  atomic.Uint64 // handshakes of ours in which the peer did not have the key that was named
	downgrades atomic.Uint64
}

// report returns the counts.
func (c *quantumCounters) report() (r config.PostQuantumReport) {
	r.Fallbacks, r.Downgrades, r.Exchanges = c.fallbacks.Load(), c.downgrades.Load(), map[string]uint64{}
	for result := postquantum.Completed; result < postquantum.Results; result++ {
		r.Exchanges[result.String()] = c.results[result].Load()
	}
	return r
}

// counters count for all present and removed peers.
type counters struct {
	dev            *Device
	handshakes     handshakeCounters
	socketDrops    sockets.Drops
	quantum        quantumCounters
	tunDropsBefore atomic.Uint64 // of a persistent interface, while no daemon served it
}
