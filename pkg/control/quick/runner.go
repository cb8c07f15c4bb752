// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Runner brings interfaces up and down in the network namespace of the calling thread. It keeps its state in RunDir, not in
// memory. Its methods may be called concurrently, but for one interface the second call fails.
type Runner struct {
	// Stdin and Stdout are for hooks. Stderr is for hooks, commands echoed as wg-quick does, and warnings.
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	Tools   Tools
	Root    fs.FS    // the host's file system, os.DirFS("/")
	Sockets uapi.Dir // directory of the daemons' sockets
	RunDir  string   // directory for logs and state; created if it does not exist

	Resolve conffile.Resolver

	// Daemon returns the command, not started, that creates an interface and serves it in the foreground until the
	// interface is deleted or SIGTERM arrives. It runs in a session of its own. flags are flags of `ropewalk run`, for
	// the file's keys and from Interface.Arguments.
	Daemon func(name string, flags []string) *exec.Cmd
	// Timeout limits each of these: the daemon's start, the opening of its UDP port, its answer
	// before Down, and its exit, also after each signal. 0 is 15 s.
	Timeout time.Duration
}

// DefaultRunDir is the usual RunDir, which is empty after a boot.
const DefaultRunDir = "/run/ropewalk"

const defaultTimeout = 15 * time.Second

func (r *Runner) timeout() time.Duration {
	if r.Timeout == 0 {
		return defaultTimeout
	}
	return r.Timeout
}

func (r *Runner) echo(command string) {
	fmt.Fprintf(r.Stderr, "[#] %s\n", command)
}

func (r *Runner) warn(format string, args ...any) {
	fmt.Fprintf(r.Stderr, "Warning: "+format+"\n", args...)
}

// Up brings the interface up as its file describes. When a step fails, or ctx ends, Up undoes all
// steps. It first removes leftovers of a killed daemon. Errors: ErrExists, ErrNoResolvconf, and
// the errors of the steps.
func (r *Runner) Up(ctx context.Context, i Interface) (err error) {
	unlock, err := r.lock(i.Name)
	if err != nil {
		return err
	}
	defer unlock()
	j := &job{Runner: r, Interface: i}
	if err := j.checkUp(); err != nil {
		return err
	}
	if err := j.removeLeftovers(ctx); err != nil {
		return err
	}
	var done progress
	defer func() {
		if err != nil {
			err = errors.Join(err, done.undo(context.WithoutCancel(ctx), j))
		}
	}()
	return j.up(ctx, &done)
}

func (j *job) up(ctx context.Context, done *progress) error {
	if err := done.execute(ctx, j, hooks(j.Name, j.File.Interface.PreUp)); err != nil {
		return err
	}
	steps, err := j.plan(ctx)
	if err != nil {
		return err
	}
	return done.execute(ctx, j, steps)
}

// plan returns the steps after the PreUp hooks.
func (j *job) plan(ctx context.Context) ([]Step, error) {
	dev, err := j.File.Device(ctx, j.Resolve)
	if err != nil {
		return nil, err
	}
	facts, err := j.facts(dev)
	if err != nil {
		return nil, err
	}
	return Plan(j.Interface, dev, facts), nil
}

// PlanUp returns the steps of Up, hooks included, and changes nothing. Errors are Up's before its
// first step.
func (r *Runner) PlanUp(ctx context.Context, i Interface) ([]Step, error) {
	j := &job{Runner: r, Interface: i}
	if err := j.checkUp(); err != nil {
		return nil, err
	}
	steps, err := j.plan(ctx)
	if err != nil {
		return nil, err
	}
	return slices.Concat(hooks(i.Name, i.File.Interface.PreUp), steps), nil
}

// checkUp returns the errors that Up can see before its first step.
func (j *job) checkUp() error {
	if err := j.checkAbsent(); err != nil {
		return err
	}
	if len(j.File.Interface.DNS) > 0 && j.Tools.Resolvconf == "" {
		return ErrNoResolvconf
	}
	return nil
}

// checkAbsent fails when the interface exists, or when a daemon serves an interface of that name in another network namespace.
func (j *job) checkAbsent() error {
	_, err := hostnet.FindLink(j.Name)
	if err == nil {
		return fmt.Errorf("`%s' %w", j.Name, ErrExists)
	}
	if !errors.Is(err, hostnet.ErrNoLink) {
		return err
	}
	c, err := j.Sockets.Dial(j.Name)
	if err == nil {
		c.Close()
		return fmt.Errorf("`%s' %w in another network namespace: its daemon serves %s/%s.sock. Choose another name",
			j.Name, ErrExists, j.Sockets, j.Name)
	}
	if !uapi.IsNotRunning(err) {
		return err
	}
	return nil
}

// progress is the list of completed steps.
type progress []Step

// execute executes the steps in order until one fails or ctx ends.
func (p *progress) execute(ctx context.Context, j *job, steps []Step) error {
	for _, s := range steps {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("bringing %s up: %w", j.Name, context.Cause(ctx))
		}
		if err := j.execute(ctx, s); err != nil {
			return err
		}
		*p = append(*p, s)
	}
	return nil
}

// undo undoes the completed steps and removes the saved state. It continues after an error.
func (p *progress) undo(ctx context.Context, j *job) error {
	if err := p.revert(ctx, j); err != nil {
		return err
	}
	return j.removeState()
}

// revert undoes the completed steps, last first. It continues after an error.
func (p *progress) revert(ctx context.Context, j *job) error {
	var errs []error
	for n := len(*p) - 1; n >= 0; n-- {
		if s := inverse((*p)[n]); s != nil {
			errs = append(errs, j.execute(ctx, s))
		}
	}
	*p = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("undoing completed steps: %w", err)
	}
	return nil
}

func (j *job) execute(ctx context.Context, s Step) error {
	if text := echo(s); text != "" {
		j.echo(text)
	}
	return s.run(ctx, j)
}

// executeAll executes all steps, even if some fail.
func (j *job) executeAll(ctx context.Context, steps []Step) error {
	var errs []error
	for _, s := range steps {
		errs = append(errs, j.execute(ctx, s))
	}
	return errors.Join(errs...)
}

// facts reads the Facts of the host.
func (j *job) facts(dev config.Device) (Facts, error) {
	conf := &j.File.Interface
	f := Facts{Firewalls: j.Tools.firewalls(), DNSPrefix: j.dnsPrefix()}
	if conf.MTU == 0 {
		f.EndpointMTUs, f.DefaultMTU = pathMTUs(dev, func(to netip.Addr, scope uint32) (int, error) { return hostnet.PathMTU(to, scope, 0) })
	}
	var err error
	switch {
	case conf.Table == tableOff:
	case !isAuto(conf.Table):
		f.Table, err = hostnet.TableNumber(j.Root, conf.Table)
	default:
		if f.SrcValidMark, err = hostnet.SrcValidMark(); errors.Is(err, os.ErrNotExist) {
			err = nil // a host without IPv4
		}
		if err == nil {
			f.FreeTable, err = freeTable()
		}
	}
	return f, err
}

// pathMTUs returns the path MTUs of the endpoints that have a route, and the path MTU of the
// default route, 0 without one.
func pathMTUs(dev config.Device, lookup func(to netip.Addr, scope uint32) (int, error)) (endpoints []int, defaultRoute int) {
	for i := range dev.Peers {
		ep := dev.Peers[i].Endpoint
		if ep == nil {
			continue
		}
		if mtu, err := lookup(ep.AddrPort.Addr().Unmap(), ep.Scope); err == nil {
			endpoints = append(endpoints, mtu)
		}
	}
	defaultRoute, err := hostnet.DefaultRouteMTU()
	if err != nil {
		defaultRoute = 0
	}
	return endpoints, defaultRoute
}

// firstTable is the first table that wg-quick tries for default routes.
const firstTable = 51820

// freeTable returns the first table from firstTable on without routes and rules.
func freeTable() (uint32, error) {
	used := map[uint32]bool{}
	for _, family := range hostnet.Families() {
		rules, err := hostnet.Rules(family)
		if err != nil {
			return 0, err
		}
		for _, rule := range rules {
			used[rule.Table] = true
		}
	}
	for table := uint32(firstTable); ; table++ {
		empty, err := hostnet.TableEmpty(table)
		if err != nil || empty && !used[table] {
			return table, err
		}
	}
}
