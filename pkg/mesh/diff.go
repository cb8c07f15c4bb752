// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/noise"
)

// SentEndpoints is which endpoint each peer was given last, by its key. The device's own word is no substitute: it is where the
// peer was heard last.
type SentEndpoints map[noise.PublicKey]netip.AddrPort

// Diff returns the changes that make a device's peers those of a plan, in the order in which to apply them, and none if it
// has them. An endpoint is changed only where the plan has another than before: what roaming has learned stays.
func Diff(want []Peer, have []config.PeerStatus, told SentEndpoints) []config.Peer {
	present := make(map[noise.PublicKey]*config.PeerStatus, len(have))
	for i := range have {
		present[have[i].PublicKey] = &have[i]
	}
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
		if len(taken) > 0 { // before another peer gets them
			changes = append(changes, config.Peer{PublicKey: w.Key, UpdateOnly: true, AllowedIPs: taken})
		}
		c := config.Peer{PublicKey: w.Key, UpdateOnly: true, AllowedIPs: added, Endpoint: w.newEndpoint(st, told)}
		if c.Endpoint != nil || len(c.AllowedIPs) > 0 {
			additions = append(additions, c)
		}
	}
	return append(changes, additions...)
}

func addition(w *Peer) config.Peer {
	c := config.Peer{PublicKey: w.Key, ReplaceAllowedIPs: true}
	if w.Endpoint.IsValid() {
		c.Endpoint = &config.Endpoint{AddrPort: w.Endpoint}
	}
	for _, p := range w.AllowedIPs {
		c.AllowedIPs = append(c.AllowedIPs, config.AllowedIP{Prefix: p})
	}
	return c
}

// newEndpoint returns the endpoint if it has to be told.
func (p *Peer) newEndpoint(st *config.PeerStatus, told SentEndpoints) *config.Endpoint {
	if !p.Endpoint.IsValid() {
		return nil
	}
	last, known := told[p.Key]
	if known && last == p.Endpoint || !known && st.Endpoint.AddrPort.IsValid() {
		return nil
	}
	return &config.Endpoint{AddrPort: p.Endpoint}
}

// diffAllowedIPs returns which are too many, and which are missing.
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

// Record keeps which endpoints the changes tell, and forgets peers that they remove.
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
