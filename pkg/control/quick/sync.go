// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// syncDevice changes the device to the settings of the file, and keeps sessions.
type syncDevice struct {
	configure
	before config.Status
	report deviceReport
}

// String is empty if nothing changes. The device gets its settings all the same: it ignores
// settings that it has.
func (s syncDevice) String() string {
	if len(s.details()) == 0 {
		return ""
	}
	return fmt.Sprintf("wg syncconf %s <(ropewalk strip %s)", s.link, s.path)
}

// details returns a line for each change of the device, without secrets.
func (s syncDevice) details() []string {
	lines := s.deviceDetails()
	before, after := map[noise.PublicKey]*config.PeerStatus{}, s.peersAfter()
	report := func(key noise.PublicKey) {
		for _, change := range peerDetails(before[key], after[key]) {
			lines = append(lines, "peer "+key.Base64()+": "+change)
		}
		delete(before, key)
		delete(after, key) // a file may have several sections of a peer
	}
	for _, p := range s.before.Peers {
		before[p.PublicKey] = &p
		report(p.PublicKey)
	}
	for i := range s.dev.Peers {
		report(s.dev.Peers[i].PublicKey)
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
		lines = append(lines, fmt.Sprintf("listen port: chosen by the kernel, was %d", s.before.ListenPort))
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
	for _, row := range config.Table() {
		text, given := row.Text(&s.dev.Settings)
		before, reported := s.report.Settings[row.Name]
		switch {
		case !given || reported && before == text:
		case !reported:
			lines = append(lines, fmt.Sprintf("%s: %s, was unknown (applied live)", row.Name, text))
		default:
			lines = append(lines, fmt.Sprintf("%s: %s, was %s (applied live)", row.Name, text, before))
		}
	}
	return lines
}

// peersAfter returns the peers after the change, by key. As in a device, the sections of a peer
// add up, and a prefix belongs to the last peer that lists it. A peer with the device's own key is
// ignored.
func (s syncDevice) peersAfter() map[noise.PublicKey]*config.PeerStatus {
	peers := map[noise.PublicKey]*config.PeerStatus{}
	owners := map[netip.Prefix]*config.PeerStatus{}
	if !s.dev.ReplacePeers {
		for _, p := range s.before.Peers {
			peers[p.PublicKey] = &p
			for _, prefix := range p.AllowedIPs {
				owners[prefix] = &p
			}
		}
	}
	dev := s.dev
	if dev.PrivateKey == nil { // it may come from a credential
		dev.PrivateKey = &s.before.PrivateKey
	}
	isSelf := selfOf(dev)
	for i := range s.dev.Peers {
		p := &s.dev.Peers[i]
		if p.Remove || isSelf(p) {
			delete(peers, p.PublicKey)
			continue
		}
		if peers[p.PublicKey] == nil {
			peers[p.PublicKey] = &config.PeerStatus{PublicKey: p.PublicKey}
		}
		s.applySection(peers[p.PublicKey], p, owners)
	}
	for _, p := range peers {
		p.AllowedIPs = slices.DeleteFunc(slices.Clone(p.AllowedIPs), func(prefix netip.Prefix) bool { return owners[prefix] != p })
	}
	return peers
}

// applySection changes a peer by a section of the file. Other daemons than ropewalk have no names.
func (s syncDevice) applySection(to *config.PeerStatus, p *config.Peer, owners map[netip.Prefix]*config.PeerStatus) {
	named := s.report.ropewalk()
	if p.Name != nil && named {
		to.Name = *p.Name
	}
	if p.Endpoint != nil {
		if unmapped(*p.Endpoint) != unmapped(to.Endpoint) {
			to.Endpoint = *p.Endpoint
		}
		if named {
			to.EndpointName = p.EndpointName
		}
	}
	if p.Keepalive != nil {
		to.Keepalive = *p.Keepalive
	}
	if p.PostQuantum != nil && s.report.PostQuantum != nil {
		to.PostQuantum.Policy = p.PostQuantum.Or(s.report.PostQuantum.Policy)
		to.PostQuantum.Own = *p.PostQuantum != config.PostQuantumDefault
	}
	if p.PresharedKey != nil {
		to.PresharedKey = *p.PresharedKey
	}
	before := to.AllowedIPs
	to.AllowedIPs = nil
	for _, prefix := range before {
		switch {
		case owners[prefix] != to:
		case p.ReplaceAllowedIPs:
			delete(owners, prefix)
		default:
			to.AllowedIPs = append(to.AllowedIPs, prefix)
		}
	}
	for _, a := range p.AllowedIPs {
		switch {
		case !a.Remove:
			owners[a.Prefix] = to
			to.AllowedIPs = append(to.AllowedIPs, a.Prefix)
		case owners[a.Prefix] == to:
			delete(owners, a.Prefix)
		}
	}
}

// unmapped returns an endpoint without the 4-in-6 form of its address, which ropewalk does not keep.
func unmapped(ep config.Endpoint) config.Endpoint {
	ep.AddrPort = netip.AddrPortFrom(ep.AddrPort.Addr().Unmap(), ep.AddrPort.Port())
	return ep
}

// peerDetails describes the change of a peer; before is nil for a new peer, after for a removed
// peer.
func peerDetails(before, after *config.PeerStatus) (changes []string) {
	switch {
	case after == nil && before == nil:
		return nil
	case after == nil:
		return []string{"removed"}
	case before == nil:
		changes, before = []string{"added"}, new(config.PeerStatus)
	}
	if after.Name != before.Name {
		changes = append(changes, fmt.Sprintf("name %q", after.Name))
	}
	if after.Endpoint != before.Endpoint {
		changes = append(changes, "endpoint "+show.Endpoint(after.Endpoint, zoneName))
	}
	if after.EndpointName != before.EndpointName {
		changes = append(changes, fmt.Sprintf("endpoint name %q", after.EndpointName))
	}
	if after.Keepalive != before.Keepalive {
		changes = append(changes, "persistent keepalive "+keepalive(after.Keepalive))
	}
	if after.PostQuantum.Policy != before.PostQuantum.Policy {
		changes = append(changes, "post-quantum "+after.PostQuantum.Policy.String())
	}
	if after.PresharedKey != before.PresharedKey {
		changes = append(changes, "preshared key replaced")
	}
	slices.SortFunc(after.AllowedIPs, netip.Prefix.Compare)
	for _, prefix := range without(before.AllowedIPs, after.AllowedIPs) {
		changes = append(changes, fmt.Sprintf("allowed IP %v removed", prefix))
	}
	for _, prefix := range without(after.AllowedIPs, before.AllowedIPs) {
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
