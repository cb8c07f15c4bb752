// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
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

func (r reversible) String() string { return echo(r.Step) }

func (r reversible) undo() Step { return r.inverse }

// sequence executes steps in order.
type sequence []Step

func (s sequence) run(ctx context.Context, j *job) error { return j.executeAll(ctx, s) }

type removeAddress addAddress

func (s removeAddress) String() string { return addAddress(s).command("delete") }

func (s removeAddress) run(context.Context, *job) error { return hostnet.RemoveAddress(s.link, s.addr) }

// promoteSecondaries keeps the addresses of a subnet when another one of it is removed.
type promoteSecondaries struct{ link string }

func (s promoteSecondaries) String() string {
	return "sysctl -q net.ipv4.conf." + strings.ReplaceAll(s.link, ".", "/") + ".promote_secondaries=1" // sysctl(8)
}

func (s promoteSecondaries) run(context.Context, *job) error {
	return hostnet.PromoteSecondaries(s.link)
}

type setMTU struct {
	link string
	mtu  int // bytes
}

func (s setMTU) String() string { return fmt.Sprintf("ip link set mtu %d dev %s", s.mtu, s.link) }

func (s setMTU) run(context.Context, *job) error { return hostnet.SetMTU(s.link, s.mtu) }

type removeRoute addRoute

func (s removeRoute) String() string { return addRoute(s).command("delete") }

func (s removeRoute) run(context.Context, *job) error {
	return hostnet.RemoveRoute(hostnet.Route{Dst: s.dst, Link: s.link, Table: s.table})
}

// removeRoutes removes routes as far as the interface has them, except routes of keep that are
// needed.
type removeRoutes struct {
	link         string
	routes, keep []tableRoute
}

func (s removeRoutes) run(ctx context.Context, j *job) error {
	now, err := j.present()
	if err != nil {
		return err
	}
	has, steps := setOf(now.Routes), []Step{}
	for _, r := range routesWithout(s.routes, now.needed(s.keep)) {
		if has[r.key()] {
			steps = append(steps, removeRoute(r.step(s.link)))
		}
	}
	return j.executeAll(ctx, steps)
}

// commands returns the commands as far as they are known before the interface has its addresses.
func (s removeRoutes) commands() (lines []string) {
	needless := setOf(routesWithout(s.routes, s.keep))
	for _, r := range s.routes {
		line := removeRoute(r.step(s.link)).String()
		if !needless[r] {
			line += " # if a route of an address covers it"
		}
		lines = append(lines, line)
	}
	return lines
}

// restoreAddresses adds the addresses that the interface does not have.
type restoreAddresses struct {
	link  string
	addrs []netip.Prefix
}

func (s restoreAddresses) run(ctx context.Context, j *job) error {
	now, err := j.present()
	if err != nil {
		return err
	}
	var steps []Step
	for _, a := range now.absent(s.addrs) {
		steps = append(steps, addAddress{s.link, a})
	}
	return j.executeAll(ctx, steps)
}

// restoreRoutes is addRoutes for routes that the interface has before Reload: nothing is printed in
// advance.
type restoreRoutes addRoutes

func (s restoreRoutes) run(ctx context.Context, j *job) error { return addRoutes(s).run(ctx, j) }
