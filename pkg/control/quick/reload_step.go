// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

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

type removeAddress addAddress

func (s removeAddress) String() string { return addAddress(s).command("delete") }

func (s removeAddress) run(context.Context, *job) error { return hostnet.RemoveAddress(s.link, s.addr) }

func (removeAddress) undo() Step { return nil }

// promoteSecondaries keeps the addresses of a subnet when another one of it is removed.
type promoteSecondaries struct{ link string }

func (s promoteSecondaries) String() string {
	return "sysctl -q net.ipv4.conf." + strings.ReplaceAll(s.link, ".", "/") + ".promote_secondaries=1" // sysctl(8)
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

func (s removeRoute) String() string { return addRoute(s).command("delete") }

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
		errs = append(errs, j.execute(ctx, addRoute{link: s.link, dst: r.Dst, table: r.Table, name: r.Name}))
	}
	return errors.Join(errs...)
}
