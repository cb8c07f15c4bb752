// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// settings are the host's settings that a plan makes: Reload changes it by the difference of two settings.
type settings struct {
	Addresses []netip.Prefix   `json:"addresses"`
	FileMTU   int              `json:"file_mtu"` // MTU= of the file, 0 without
	MTU       int              `json:"mtu"`
	Routes    []tableRoute     `json:"routes"`
	DNS       dnsEntry         `json:"dns"`
	Policy    []hostnet.Family `json:"policy"`              // families with a default route by policy routing
	Mark      uint32           `json:"mark"`                // of policy routing, 0 without
	FileMark  bool             `json:"file_mark"`           // the file has a mark, and not "off"
	FileKeys  []string         `json:"file_keys,omitempty"` // of deviceKeys that the file has

	// Interrupted settings are those before and after a Reload that has not ended: the host may
	// have either. OldMarks are the marks from before, also from before earlier Reloads that have
	// not ended.
	Interrupted bool     `json:"interrupted,omitempty"`
	OldMarks    []uint32 `json:"old_marks,omitempty"`

	Accepted deviations `json:"accepted,omitzero"`

	// Of these Reload only reports changes. Hooks is a hash: commands may have secrets.
	Hooks   string `json:"hooks"`
	Lanes   int    `json:"lanes"`
	Metrics string `json:"metrics"`
}

// tableRoute is a route over the interface.
type tableRoute struct {
	Dst   netip.Prefix `json:"dst"`
	Table uint32       `json:"table"` // 0: the main table, unless a route of an address covers Dst
	Name  string       `json:"name"`  // of the table, as the file has it
}

// step returns the step that adds the route.
func (r tableRoute) step(link string) addRoute {
	if r.Name == "" && r.table() != hostnet.MainTable {
		r.Name = decimal(r.Table)
	}
	return addRoute{link: link, dst: r.Dst, table: r.Table, name: r.Name}
}

// table returns the number of the table.
func (r tableRoute) table() uint32 { return cmp.Or(r.Table, hostnet.MainTable) }

// key returns the route as the kernel has it, for comparisons.
func (r tableRoute) key() tableRoute { return tableRoute{Dst: r.Dst, Table: r.table()} }

// dnsEntry is an entry of resolvconf.
type dnsEntry struct {
	Servers []conffile.Nameserver `json:"servers"`
	Search  []string              `json:"search"`
}

func (d *dnsEntry) equal(o dnsEntry) bool {
	return slices.Equal(d.Servers, o.Servers) && slices.Equal(d.Search, o.Search)
}

// settingsOf returns the settings that the steps of a plan make.
func settingsOf(conf *conffile.Interface, plan []Step) settings {
	s := settings{
		FileMTU: conf.MTU, FileMark: conf.FwMark != nil && *conf.FwMark != 0, FileKeys: fileKeys(conf),
		Hooks: hashOf(conf.PreUp, conf.PostUp), Lanes: conf.Lanes, Metrics: conf.Metrics,
	}
	for _, step := range plan {
		switch step := step.(type) {
		case addAddress:
			s.Addresses = append(s.Addresses, step.addr)
		case linkUp:
			s.MTU = step.mtu
		case addRoutes:
			s.Routes = append(s.Routes, step.routes...)
		case addRoute:
			s.Routes = append(s.Routes, tableRoute{step.dst, step.table, step.name})
		case setDNS:
			s.DNS = dnsEntry{step.servers, step.search}
		case addMarkRule:
			s.Policy, s.Mark = append(s.Policy, step.family), step.mark
		}
	}
	return s
}

// during returns the settings while Reload changes s to wanted.
func (s settings) during(wanted settings) settings {
	wanted.Addresses = without(slices.Concat(s.Addresses, wanted.Addresses), nil)
	wanted.Routes = routesWithout(slices.Concat(s.Routes, wanted.Routes), nil)
	wanted.Policy = without(slices.Concat(s.Policy, wanted.Policy), nil)
	wanted.FileKeys = without(slices.Concat(s.FileKeys, wanted.FileKeys), nil)
	wanted.FileMTU, wanted.FileMark = cmp.Or(wanted.FileMTU, s.FileMTU), s.FileMark || wanted.FileMark
	if len(wanted.DNS.Servers) == 0 {
		wanted.DNS = s.DNS
	}
	wanted.Interrupted = true
	wanted.Mark = cmp.Or(wanted.Mark, s.Mark)
	wanted.OldMarks = without(s.marks(), []uint32{wanted.Mark})
	wanted.Accepted = s.Accepted
	wanted.Hooks, wanted.Lanes, wanted.Metrics = s.Hooks, s.Lanes, s.Metrics
	return wanted
}

// marks returns the marks of policy routing.
func (s *settings) marks() []uint32 {
	return without(append([]uint32{s.Mark}, s.OldMarks...), []uint32{0})
}

// hashOf returns a hash of lists of commands, empty for none.
func hashOf(lists ...[]string) string {
	if len(slices.Concat(lists...)) == 0 {
		return ""
	}
	text, _ := json.Marshal(lists) // strings cannot fail
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
