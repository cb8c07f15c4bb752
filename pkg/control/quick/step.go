// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Step is one change to the host. It is a value: nothing happens until a Runner executes it.
type Step interface {
	// run makes the change. If it fails, it undoes its own part.
	run(ctx context.Context, j *job) error
}

// echo returns the equivalent command, as wg-quick echoes it. It is empty for a step that echoes
// itself, or that is not echoed.
func echo(s Step) string {
	if s, ok := s.(fmt.Stringer); ok {
		return s.String()
	}
	return ""
}

// inverse returns the step that reverts a change, or nil if deleting the interface reverts it.
func inverse(s Step) Step {
	if s, ok := s.(interface{ undo() Step }); ok {
		return s.undo()
	}
	return nil
}

// job is a Runner with the interface that it works on.
type job struct {
	*Runner
	Interface
	netNS hostnet.Namespace // of an interface that was moved there, 0 for the caller's
}

type addAddress struct {
	link string
	addr netip.Prefix
}

func (s addAddress) String() string { return s.command("add") }

// command returns the command of ip(8) that adds or deletes the address.
func (s addAddress) command(verb string) string {
	return fmt.Sprintf("ip %s address %s %s dev %s", flag(s.addr.Addr()), verb, s.addr, s.link)
}

func (s addAddress) run(context.Context, *job) error { return hostnet.AddAddress(s.link, s.addr) }

type linkUp struct {
	link string
	mtu  int // bytes
}

func (s linkUp) String() string { return fmt.Sprintf("ip link set mtu %d up dev %s", s.mtu, s.link) }

func (s linkUp) run(ctx context.Context, j *job) error {
	// This fails on a host without IPv6, which has no link-local addresses to omit.
	_ = hostnet.DisableLinkLocal(s.link)
	if err := hostnet.SetLinkUp(s.link, s.mtu); err != nil {
		return err
	}
	return j.waitForPort(ctx)
}

type addRoute struct {
	link  string
	dst   netip.Prefix
	table uint32 // 0 for the main table
	name  string // of the table, as the file has it; empty for the main table

	beside bool // the kernel's own route to the same prefix
}

func (s addRoute) String() string {
	if s.beside {
		return s.command("append")
	}
	return s.command("add")
}

// command returns the command of ip(8) that adds or deletes the route.
func (s addRoute) command(verb string) string {
	text := fmt.Sprintf("ip %s route %s %s dev %s", flag(s.dst.Addr()), verb, s.dst, s.link)
	if s.name != "" {
		text += " table " + s.name
	}
	return text
}

func (s addRoute) run(context.Context, *job) error {
	route := hostnet.Route{Dst: s.dst, Link: s.link, Table: s.table}
	if s.beside {
		return hostnet.AppendRoute(route)
	}
	return hostnet.AddRoute(route)
}

// addRoutes adds the routes that are needed and that the interface lacks.
type addRoutes struct {
	link   string
	routes []tableRoute
}

func (s addRoutes) run(ctx context.Context, j *job) error {
	now, err := j.present()
	if err != nil {
		return err
	}
	missing := now.missing(s.routes)
	for i, r := range missing {
		step := r.step(s.link)
		step.beside = slices.Contains(now.Connected, r.Dst) && r.table() == hostnet.MainTable
		if err := j.execute(ctx, step); err != nil {
			return errors.Join(err, removeRoutes{link: s.link, routes: missing[:i]}.run(ctx, j))
		}
	}
	return nil
}

// commands returns the commands as far as they are known before the interface has its addresses.
func (s addRoutes) commands() (lines []string) {
	for _, r := range s.routes {
		line := r.step(s.link).String()
		if r.Table == 0 {
			line += " # unless a route of an address covers it"
		}
		lines = append(lines, line)
	}
	return lines
}

// configure gives the device its keys and peers.
type configure struct {
	link string
	path string
	dev  config.Device
}

func (s configure) String() string {
	return fmt.Sprintf("wg setconf %s <(ropewalk strip %s)", s.link, s.path)
}

func (s configure) run(_ context.Context, j *job) error {
	if err := j.configure(s.dev); err != nil {
		return fmt.Errorf("%w%s", err, portHint(err))
	}
	return nil
}

type setFwMark struct {
	link string
	mark uint32
}

func (s setFwMark) String() string { return fmt.Sprintf("wg set %s fwmark %d", s.link, s.mark) }

func (s setFwMark) run(_ context.Context, j *job) error {
	return j.configure(config.Device{FwMark: &s.mark})
}

// flag returns the option of ip(8) for an address's family.
func flag(addr netip.Addr) string { return familyFlag(hostnet.FamilyOf(addr)) }

func familyFlag(f hostnet.Family) string {
	if f == hostnet.IPv4 {
		return "-4"
	}
	return "-6"
}

func decimal(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// configure applies a change over the interface's socket.
func (j *job) configure(dev config.Device) error {
	c, err := j.Sockets.Dial(j.Name)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Configure(dev)
}
