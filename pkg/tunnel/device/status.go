// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/chachapoly"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
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
		Peers:       make([]config.PeerStatus, 0, len(d.peers)),
		Spread:      d.spreading.Load().mode,
		SpreadPorts: d.spreadPorts(),
		Spray:       d.spreading.Load().spray,
		Lanes:       d.engine.Lanes(),
	}
	if id := d.identity.Load(); id != nil {
		s.PublicKey = id.Public()
	}
	for _, p := range d.peers {
		s.Peers = append(s.Peers, p.status())
	}
	slices.SortFunc(s.Peers, func(a, b config.PeerStatus) int { return bytes.Compare(a.PublicKey[:], b.PublicKey[:]) })
	return s
}

func (p *Peer) status() config.PeerStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := config.PeerStatus{
		PublicKey:     p.key,
		Name:          p.nameText(),
		PresharedKey:  p.handshake.psk,
		LastHandshake: p.handshake.completedAt,
		Keepalive:     p.timers.keepalive,
		AllowedIPs:    p.dev.engine.Routes.Prefixes(p.engine),
	}
	if to := p.engine.Endpoint.Load(); to != nil {
		s.Endpoint = config.Endpoint{AddrPort: to.Dst, Scope: to.Scope}
	}
	s.EndpointName = p.endpointName()
	s.RxBytes, s.TxBytes = p.engine.Traffic()
	s.Handshake = p.reportHandshake()
	s.PostQuantum = p.quantum.report(p.dev.clock())
	s.Spread, s.PathMTU, s.Packets = p.path.spread, p.reportPathMTU(), config.PeerPackets(p.engine.Packets())
	return s
}

// Stats is the response to the control socket's stats request, in JSON.
type Stats struct {
	// Version is of the program, and Features are what its control socket understands (uapi.Features); both are set by package daemon.
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
	// Handshakes counts those of all present and removed peers.
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
	s := Stats{Interface: d.cfg.TUN.Name(), TUN: d.cfg.TUN.Features(), Stats: d.trafficStats()}
	d.addTUNDrops(&s.Stats)
	if port := d.port.Load(); port != nil {
		s.Up, s.Underlay = true, port.Features()
	}
	s.Spread, s.Selection, s.Path = d.spreadReport(), d.selection.report(), d.underlayReport()
	s.PathMTU = d.pathMTUReport()
	configured := d.configured()
	s.PathMTUErrors, s.Settings = d.icmpCounts.snapshot(), configured.Texts()
	s.Handshakes, s.FailingHandshakes = d.handshakeCounts.snapshot(), d.handshakeReport()
	s.PostQuantum = d.postQuantumReport()
	s.Names, s.Stalls = d.nameReport(), d.stallReport()
	s.Cipher, s.Workers = chachapoly.Implementation(), d.cfg.Pool.Workers()
	return s
}

// eachPeer calls f with each peer's key in base64, while it holds the peer's mu. It takes no lock that configuration holds for long.
func (d *Device) eachPeer(f func(key string, p *Peer)) {
	d.peersMu.RLock()
	defer d.peersMu.RUnlock()
	for key, p := range d.peers {
		p.mu.Lock()
		f(key.Base64(), p)
		p.mu.Unlock()
	}
}

// spreadReport reports the spread to each peer.
func (d *Device) spreadReport() config.SpreadReport {
	ports := d.spreadPorts()
	r := config.SpreadReport{
		Mode: d.spreading.Load().mode, FirstPort: ports.First, LastPort: ports.Last, Spray: d.spreading.Load().spray, Lanes: d.engine.Lanes(),
		Peers: map[string]config.PeerSpread{},
	}
	d.eachPeer(func(key string, p *Peer) { r.Peers[key] = p.path.spread })
	return r
}

// pathMTUReport reports the path MTU of each peer.
func (d *Device) pathMTUReport() config.PathMTUReport {
	r := config.PathMTUReport{}
	d.eachPeer(func(key string, p *Peer) { r[key] = p.reportPathMTU() })
	return r
}

// postQuantumReport reports the sessions with each peer.
func (d *Device) postQuantumReport() config.PostQuantumReport {
	r, now := d.quantumCounts.report(), d.clock()
	r.Policy, r.Peers = config.PostQuantum(d.postQuantum.Load()).Or(config.DefaultPostQuantum), map[string]config.PeerPostQuantum{}
	d.eachPeer(func(key string, p *Peer) {
		if q := p.quantum.report(now); q.Policy != config.PostQuantumOff || q.Own {
			r.Peers[key] = q
		}
	})
	return r
}

// handshakeReport reports the peers whose handshakes fail.
func (d *Device) handshakeReport() config.HandshakeReport {
	r := config.HandshakeReport{}
	d.eachPeer(func(key string, p *Peer) {
		if h := p.reportHandshake(); h.Failing() {
			r[key] = h
		}
	})
	return r
}

// nameReport reports the peers that have names.
func (d *Device) nameReport() config.NameReport {
	r := config.NameReport{}
	d.eachPeer(func(key string, p *Peer) {
		if names := p.peerName(); names != (config.PeerName{}) {
			r[key] = names
		}
	})
	return r
}
