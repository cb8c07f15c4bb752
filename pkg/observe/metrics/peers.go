// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
)

// PerPeer selects when metrics of single peers are exported. The zero PerPeer is PerPeerAuto.
type PerPeer uint8

// Values of PerPeer.
const (
	PerPeerAuto PerPeer = iota // while there are at most MaxPeers peers
	PerPeerOn                  // always
	PerPeerOff                 // never
)

// MaxPeers is the number of peers up to which PerPeerAuto exports each peer.
const MaxPeers = 256

// String returns auto, on or off.
func (p PerPeer) String() string {
	switch p {
	case PerPeerOn:
		return "on"
	case PerPeerOff:
		return "off"
	default:
		return "auto"
	}
}

// MarshalText implements encoding.TextMarshaler with String.
func (p PerPeer) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler for the results of String, ignoring case.
func (p *PerPeer) UnmarshalText(text []byte) error {
	for _, mode := range []PerPeer{PerPeerAuto, PerPeerOn, PerPeerOff} {
		if strings.EqualFold(string(text), mode.String()) {
			*p = mode
			return nil
		}
	}
	return errors.New("want auto, on or off")
}

// exports reports whether each of that many peers has its own metrics.
func (p PerPeer) exports(peers int) bool {
	return p == PerPeerOn || p == PerPeerAuto && peers <= MaxPeers
}

// peers emits the summary of all peers, and the metrics of each if they are to be exported.
func (s *scrape) peers() {
	each := s.options.PerPeer.exports(len(s.Peers))
	s.flag(peersAggregated, !each)
	s.summary()
	if !each {
		return
	}
	for i := range s.Peers {
		p := &s.Peers[i]
		s.peer(p)
		if s.options.WireGuardNames {
			s.wireGuardNames(p)
		}
	}
}

// summary emits the metrics of all peers together. It has no totals of bytes: they would decrease when a peer is removed.
// The counters of the lanes do not.
func (s *scrape) summary() {
	states := map[string]int{"established": 0, "idle": 0, "never": 0}
	spread, failing := 0, 0
	var last time.Time
	for i := range s.Peers {
		p := &s.Peers[i]
		states[p.state(s.At)]++
		if p.SpreadPorts > 0 {
			spread++
		}
		if p.Handshake.Failing() {
			failing++
		}
		if p.LastHandshake.After(last) {
			last = p.LastHandshake
		}
	}
	for state, n := range states {
		s.emit(peers, float64(n), state)
	}
	s.emit(peersSpread, float64(spread))
	s.emit(peersFailing, float64(failing))
	s.count(pathMTUErrors, s.Stats.PathMTUErrors.Believed, "believed")
	s.count(pathMTUErrors, s.Stats.PathMTUErrors.Ignored, "ignored")
	s.emit(lastHandshake, unix(last))
}

// state returns the value of the label state in ropewalk_peers. No session is older than Reject-After-Time.
func (p *Peer) state(now time.Time) string {
	switch {
	case p.LastHandshake.IsZero():
		return "never"
	case now.Sub(p.LastHandshake) > time.Duration(peer.RejectAfterTime):
		return "idle"
	default:
		return "established"
	}
}

func (s *scrape) peer(p *Peer) {
	s.emit(peerInfo, 1, p.PublicKey, p.Name, p.Endpoint, prefixes(p.AllowedIPs, maxPrefixes))
	s.count(peerReceiveBytes, p.RxBytes, p.PublicKey)
	s.count(peerTransmitBytes, p.TxBytes, p.PublicKey)
	s.count(peerReceivePackets, p.Packets.Rx, p.PublicKey)
	s.count(peerTransmitPackets, p.Packets.Tx, p.PublicKey)
	s.count(peerDropped, p.Packets.RxDrops, p.PublicKey, "receive")
	s.count(peerDropped, p.Packets.TxDrops, p.PublicKey, "transmit")
	s.emit(peerLastHandshake, unix(p.LastHandshake), p.PublicKey)
	s.emit(peerKeepalive, float64(p.Keepalive), p.PublicKey)
	s.emit(peerSpreadPorts, float64(p.SpreadPorts), p.PublicKey)
	s.emit(peerBlockedPorts, float64(p.BlockedPorts), p.PublicKey)
	s.emit(peerPathMTU, float64(p.PathMTU.Bytes), p.PublicKey)
	s.emit(peerPathMTUInfo, 1, p.PublicKey, string(cmp.Or(p.PathMTU.State, config.PathMTUUnknown)))
	s.emit(peerUnanswered, float64(p.Handshake.Unanswered), p.PublicKey)
}

// wireGuardNames emits the metrics of prometheus_wireguard_exporter for a peer. Like there, allowed IPs are a label.
func (s *scrape) wireGuardNames(p *Peer) {
	allowed := prefixes(p.AllowedIPs, len(p.AllowedIPs))
	s.count(wgSentBytes, p.TxBytes, p.PublicKey, allowed)
	s.count(wgReceivedBytes, p.RxBytes, p.PublicKey, allowed)
	s.emit(wgLatestHandshake, float64(int64(unix(p.LastHandshake))), p.PublicKey, allowed)
}

// maxPrefixes is the maximum number of allowed IPs in a label: a peer may have a whole routing table.
const maxPrefixes = 16

// prefixes formats the first limit prefixes as wg(8) does, followed by the number of further ones, such as "+2".
func prefixes(all []netip.Prefix, limit int) string {
	var b strings.Builder
	for i, p := range all {
		if i > 0 {
			b.WriteByte(',')
		}
		if i == limit {
			b.WriteString("+" + strconv.Itoa(len(all)-i))
			break
		}
		b.WriteString(p.String())
	}
	return b.String()
}

// unix returns t as Unix time in seconds, 0 for the zero time.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1e3
}
