// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// SentEndpoints holds, by peer key, the endpoint that a device was last configured with, by this agent or an earlier one. The device's own endpoint
// is no substitute: roaming may have changed it.
type SentEndpoints map[noise.PublicKey]netip.AddrPort

// Diff returns the changes that give a device the peers of a plan, in the order in which to apply
// them. It returns none if there is nothing to change. It changes an endpoint only if the plan's
// endpoint has changed, so that roaming is preserved.
func Diff(want []Peer, have []config.PeerStatus, sent SentEndpoints) []config.Peer {
	present := byKey(have)
	var changes []config.Peer
	wanted := make(map[noise.PublicKey]bool, len(want))
	for i := range want {
		wanted[want[i].Key] = true
	}
	for key := range present {
		if !wanted[key] {
			changes = append(changes, config.Peer{PublicKey: key, Remove: true})
		}
	}
	slices.SortFunc(changes, func(a, b config.Peer) int { return bytes.Compare(a.PublicKey[:], b.PublicKey[:]) })
	var additions []config.Peer
	for i := range want {
		w := &want[i]
		st := present[w.Key]
		if st == nil {
			additions = append(additions, addition(w))
			continue
		}
		taken, added := w.diffAllowedIPs(st)
		if len(taken) > 0 { // before they are given to another peer
			changes = append(changes, config.Peer{PublicKey: w.Key, UpdateOnly: true, AllowedIPs: taken})
		}
		c := config.Peer{PublicKey: w.Key, UpdateOnly: true, AllowedIPs: added, Endpoint: w.newEndpoint(st, sent)}
		settings := w.diffSettings(&c, st)
		if c.Endpoint != nil || len(c.AllowedIPs) > 0 || settings {
			additions = append(additions, c)
		}
	}
	return append(changes, additions...)
}

func byKey(all []config.PeerStatus) map[noise.PublicKey]*config.PeerStatus {
	m := make(map[noise.PublicKey]*config.PeerStatus, len(all))
	for i := range all {
		m[all[i].PublicKey] = &all[i]
	}
	return m
}

// Additions returns the changes that add all peers of a plan to a device that loses its present
// ones. As with Diff, roaming is preserved.
func Additions(want []Peer, have []config.PeerStatus, sent SentEndpoints) []config.Peer {
	present := byKey(have)
	all := make([]config.Peer, 0, len(want))
	for i := range want {
		w := &want[i]
		c := addition(w)
		if st := present[w.Key]; st != nil && st.Endpoint.AddrPort.IsValid() && w.newEndpoint(st, sent) == nil {
			c.Endpoint, c.EndpointName = &st.Endpoint, w.EndpointName
		}
		all = append(all, c)
	}
	return all
}

func addition(w *Peer) config.Peer {
	c := config.Peer{PublicKey: w.Key, ReplaceAllowedIPs: true}
	if w.Endpoint.IsValid() {
		c.Endpoint = &config.Endpoint{AddrPort: w.Endpoint}
	}
	for _, p := range w.AllowedIPs {
		c.AllowedIPs = append(c.AllowedIPs, config.AllowedIP{Prefix: p})
	}
	w.diffSettings(&c, &config.PeerStatus{})
	return c
}

// diffSettings adds the keepalive to a change, and the settings that only external peers have. It
// reports whether that is needed.
func (p *Peer) diffSettings(c *config.Peer, st *config.PeerStatus) (needed bool) {
	if p.Keepalive != st.Keepalive {
		c.Keepalive, needed = &p.Keepalive, true
	}
	if !p.IsExternal() {
		return needed
	}
	if p.External != st.Name && config.CheckName(p.External) == nil {
		c.Name, needed = &p.External, true
	}
	var has config.PostQuantum
	if st.PostQuantum.Own {
		has = st.PostQuantum.Policy
	}
	if p.PostQuantum != has {
		c.PostQuantum, needed = &p.PostQuantum, true
	}
	if c.Endpoint != nil {
		c.EndpointName = p.EndpointName
	}
	return needed
}

// WithoutPostQuantum returns the peers for a device that does not know post-quantum exchanges. It
// omits external peers that require keys, and returns their names.
func WithoutPostQuantum(peers []Peer) (all []Peer, omitted []string) {
	for _, p := range peers {
		if p.PostQuantum == config.PostQuantumRequired {
			omitted = append(omitted, p.External)
			continue
		}
		p.PostQuantum = config.PostQuantumDefault
		all = append(all, p)
	}
	return all, omitted
}

// newEndpoint returns the endpoint if the device must be configured with it, or nil.
func (p *Peer) newEndpoint(st *config.PeerStatus, sent SentEndpoints) *config.Endpoint {
	if !p.Endpoint.IsValid() {
		if p.IsExternal() && p.EndpointName == "" && st.EndpointName != "" { // so that the device resolves the name no more
			return &st.Endpoint
		}
		return nil
	}
	last, known := sent[p.Key]
	renamed := p.IsExternal() && p.EndpointName != st.EndpointName
	if !renamed && (known && last == p.Endpoint || !known && st.Endpoint.AddrPort.IsValid()) {
		return nil
	}
	return &config.Endpoint{AddrPort: p.Endpoint}
}

// diffAllowedIPs returns the allowed IPs to remove and those to add.
func (p *Peer) diffAllowedIPs(st *config.PeerStatus) (taken, added []config.AllowedIP) {
	has := make(map[netip.Prefix]bool, len(st.AllowedIPs))
	for _, a := range st.AllowedIPs {
		has[a] = true
	}
	for _, a := range p.AllowedIPs {
		if !has[a] {
			added = append(added, config.AllowedIP{Prefix: a})
		}
		delete(has, a)
	}
	for _, a := range st.AllowedIPs {
		if has[a] {
			taken = append(taken, config.AllowedIP{Prefix: a, Remove: true})
		}
	}
	return taken, added
}

// Record records the endpoints of changes that were applied, and forgets the peers that they removed.
func (t SentEndpoints) Record(changes []config.Peer) {
	for i := range changes {
		switch c := &changes[i]; {
		case c.Remove:
			delete(t, c.PublicKey)
		case c.Endpoint != nil:
			t[c.PublicKey] = c.Endpoint.AddrPort
		}
	}
}

// Assume records the endpoints of a plan's peers that were never sent. A device that was taken over
// from an earlier agent has had them, or the peer has roamed since. From then on, another endpoint
// in a plan is a change.
func (t SentEndpoints) Assume(peers []Peer) {
	for i := range peers {
		if p := &peers[i]; p.Endpoint.IsValid() && !t[p.Key].IsValid() {
			t[p.Key] = p.Endpoint
		}
	}
}
