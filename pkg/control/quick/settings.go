// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// settings are what a plan makes of the host: Reload changes it by the difference of two settings.
type settings struct {
	Addresses []netip.Prefix   `json:"addresses"`
	FileMTU   int              `json:"file_mtu"` // MTU= of the file, 0 without
	MTU       int              `json:"mtu"`
	Routes    []tableRoute     `json:"routes"`
	DNS       dnsEntry         `json:"dns"`
	Policy    []hostnet.Family `json:"policy"` // families with a default route by policy routing
	Mark      uint32           `json:"mark"`   // of policy routing, 0 without
	FileMark  bool             `json:"file_mark"`

	// Of these Reload only reports changes. Hooks is a hash: commands may have secrets.
	Hooks   string `json:"hooks"`
	Lanes   int    `json:"lanes"`
	Metrics string `json:"metrics"`
}

// tableRoute is a route over the interface.
type tableRoute struct {
	Dst   netip.Prefix `json:"dst"`
	Table uint32       `json:"table"` // 0 for the main table
	Name  string       `json:"name"`  // of the table, as the file has it
}

// dnsEntry is an entry of resolvconf.
type dnsEntry struct {
	Servers []netip.Addr `json:"servers"`
	Search  []string     `json:"search"`
}

func (d *dnsEntry) equal(o dnsEntry) bool {
	return slices.Equal(d.Servers, o.Servers) && slices.Equal(d.Search, o.Search)
}

// settingsOf returns the settings that the steps of a plan make.
func settingsOf(conf *conffile.Interface, plan []Step) settings {
	s := settings{
		FileMTU: conf.MTU, FileMark: conf.FwMark != nil,
		Hooks: hashOf(conf.PreUp, conf.PostUp), Lanes: conf.Lanes, Metrics: conf.Metrics,
	}
	for _, step := range plan {
		switch step := step.(type) {
		case addAddress:
			s.Addresses = append(s.Addresses, step.addr)
		case linkUp:
			s.MTU = step.mtu
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

// hashOf returns a hash of lists of commands, empty for none.
func hashOf(lists ...[]string) string {
	if len(slices.Concat(lists...)) == 0 {
		return ""
	}
	text, _ := json.Marshal(lists) // strings cannot fail
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// recordSettings saves the settings.
type recordSettings struct{ settings settings }

func (recordSettings) String() string { return "" }

func (recordSettings) undo() Step { return nil }

func (r recordSettings) run(_ context.Context, j *job) error {
	return j.updateState(func(st *state) { st.Settings, st.Table = &r.settings, r.settings.Mark })
}

// reversible is a step of Reload. Up needs no inverse for most steps: it deletes the interface.
type reversible struct {
	Step
	inverse Step
}

func (r reversible) undo() Step { return r.inverse }

// sequence executes steps in order.
type sequence []Step

func (sequence) String() string { return "" }

func (sequence) undo() Step { return nil }

func (s sequence) run(ctx context.Context, j *job) error { return j.executeAll(ctx, s) }

type removeAddress struct {
	link string
	addr netip.Prefix
}

func (s removeAddress) String() string {
	return fmt.Sprintf("ip %s address delete %s dev %s", flag(s.addr.Addr()), s.addr, s.link)
}

func (s removeAddress) run(context.Context, *job) error { return hostnet.RemoveAddress(s.link, s.addr) }

func (removeAddress) undo() Step { return nil }

// promoteSecondaries keeps the addresses of a subnet when another one of it is removed.
type promoteSecondaries struct{ link string }

func (s promoteSecondaries) String() string {
	return "sysctl -q net.ipv4.conf." + s.link + ".promote_secondaries=1"
}

func (s promoteSecondaries) run(context.Context, *job) error {
	return hostnet.PromoteSecondaries(s.link)
}

func (promoteSecondaries) undo() Step { return nil }

type setMTU struct {
	link string
	mtu  int // bytes
}

func (s setMTU) String() string { return fmt.Sprintf("ip link set mtu %d dev %s", s.mtu, s.link) }

func (s setMTU) run(context.Context, *job) error { return hostnet.SetMTU(s.link, s.mtu) }

func (setMTU) undo() Step { return nil }

type removeRoute addRoute

func (s removeRoute) String() string {
	text := fmt.Sprintf("ip %s route delete %s dev %s", flag(s.dst.Addr()), s.dst, s.link)
	if s.name != "" {
		text += " table " + s.name
	}
	return text
}

func (s removeRoute) run(context.Context, *job) error {
	return hostnet.RemoveRoute(hostnet.Route{Dst: s.dst, Link: s.link, Table: s.table})
}

func (removeRoute) undo() Step { return nil }

// restoreAddresses adds the addresses that the interface does not have.
type restoreAddresses struct {
	link  string
	addrs []netip.Prefix
}

func (restoreAddresses) String() string { return "" }

func (restoreAddresses) undo() Step { return nil }

func (s restoreAddresses) run(ctx context.Context, j *job) error {
	now, err := j.present()
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range without(s.addrs, now.Addresses) {
		errs = append(errs, j.execute(ctx, addAddress{s.link, a}))
	}
	return errors.Join(errs...)
}

// restoreRoutes adds the routes that the interface does not have.
type restoreRoutes struct {
	link   string
	routes []tableRoute
}

func (restoreRoutes) String() string { return "" }

func (restoreRoutes) undo() Step { return nil }

func (s restoreRoutes) run(ctx context.Context, j *job) error {
	now, err := j.present()
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range without(s.routes, now.Routes) {
		errs = append(errs, j.execute(ctx, addRoute{s.link, r.Dst, r.Table, r.Name}))
	}
	return errors.Join(errs...)
}
