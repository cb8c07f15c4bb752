// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// syncDevice changes the device to what the file says, and keeps sessions.
type syncDevice struct {
	configure
	before config.Status
	report deviceReport
}

// String is empty if nothing changes. The device gets its settings all the same: it ignores those that it has.
func (s syncDevice) String() string {
	if len(s.details()) == 0 {
		return ""
	}
	return fmt.Sprintf("wg syncconf %s <(ropewalk strip %s)", s.link, s.path)
}

// details returns a line for each change of the device, without secrets.
func (s syncDevice) details() []string {
	lines := s.deviceDetails()
	before := map[noise.PublicKey]*config.PeerStatus{}
	for i := range s.before.Peers {
		before[s.before.Peers[i].PublicKey] = &s.before.Peers[i]
	}
	if s.dev.ReplacePeers {
		for _, p := range s.before.Peers {
			lines = append(lines, "peer "+p.PublicKey.Base64()+": removed")
		}
		before = map[noise.PublicKey]*config.PeerStatus{}
	}
	for _, p := range s.dev.Peers {
		if s.report.Spread == nil { // another daemon than ropewalk: it keeps no names
			p.Name, p.EndpointName = nil, ""
		}
		for _, change := range peerDetails(before[p.PublicKey], &p) {
			lines = append(lines, "peer "+p.PublicKey.Base64()+": "+change)
		}
	}
	return lines
}

func (s syncDevice) deviceDetails() (lines []string) {
	if key := s.dev.PrivateKey; key != nil && key.Clamp() != s.before.PrivateKey {
		lines = append(lines, "private key: replaced, all sessions end")
	}
	switch p := s.dev.ListenPort; {
	case p == nil || *p == s.before.ListenPort:
	case *p == 0:
		lines = append(lines, fmt.Sprintf("listen port: one that the kernel chooses, was %d", s.before.ListenPort))
	default:
		lines = append(lines, fmt.Sprintf("listen port: %d, was %d", *p, s.before.ListenPort))
	}
	if m := s.dev.FwMark; m != nil && *m != s.before.FwMark {
		lines = append(lines, fmt.Sprintf("fwmark: %#x, was %#x", *m, s.before.FwMark))
	}
	return append(lines, s.ownDetails()...)
}

// ownDetails describes changes of the settings that only ropewalk has.
func (s syncDevice) ownDetails() (lines []string) {
	before := s.report.values()
	for _, k := range deviceKeys(&s.dev) {
		now, reported := before[k.name]
		switch {
		case !k.given || k.name == listenPortKey || reported && now == k.text():
		case !reported:
			lines = append(lines, fmt.Sprintf("%s: %s (applied live)", k.name, k.text()))
		default:
			lines = append(lines, fmt.Sprintf("%s: %s, was %s (applied live)", k.name, k.text(), now))
		}
	}
	return lines
}

// peerDetails describes the change of a peer; before is nil for a new one.
func peerDetails(before *config.PeerStatus, p *config.Peer) (changes []string) {
	switch {
	case p.Remove:
		return []string{"removed"}
	case before == nil:
		changes, before = []string{"added"}, new(config.PeerStatus)
	}
	if p.Name != nil && *p.Name != before.Name {
		changes = append(changes, fmt.Sprintf("name %q", *p.Name))
	}
	if p.Endpoint != nil && *p.Endpoint != before.Endpoint {
		changes = append(changes, fmt.Sprintf("endpoint %v", p.Endpoint.AddrPort))
	}
	if p.Endpoint != nil && p.EndpointName != before.EndpointName {
		changes = append(changes, fmt.Sprintf("endpoint name %q", p.EndpointName))
	}
	if p.Keepalive != nil && *p.Keepalive != before.Keepalive {
		changes = append(changes, "persistent keepalive "+keepalive(*p.Keepalive))
	}
	if p.PresharedKey != nil && *p.PresharedKey != before.PresharedKey {
		changes = append(changes, "preshared key replaced")
	}
	owners := map[netip.Prefix]noise.PublicKey{}
	for _, prefix := range before.AllowedIPs {
		owners[prefix] = p.PublicKey
	}
	applyPeer(owners, p)
	after := slices.SortedFunc(maps.Keys(owners), netip.Prefix.Compare)
	for _, prefix := range without(before.AllowedIPs, after) {
		changes = append(changes, fmt.Sprintf("allowed IP %v removed", prefix))
	}
	for _, prefix := range without(after, before.AllowedIPs) {
		changes = append(changes, fmt.Sprintf("allowed IP %v added", prefix))
	}
	return changes
}

func keepalive(seconds uint16) string {
	if seconds == 0 {
		return "off"
	}
	return fmt.Sprintf("%d s", seconds)
}
