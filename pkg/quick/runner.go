// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"time"

	"github.com/ropewalk/ropewalk/pkg/conffile"
	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// Runner brings interfaces up and down in the network namespace of the calling thread. It keeps no state in memory:
// what it has to remember is in RunDir. Its methods may be called concurrently; for one interface, the second fails.
type Runner struct {
	// Stdin and Stdout are for hooks. Stderr is for hooks, commands echoed as wg-quick does, and warnings.
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	Tools   Tools
	Root    fs.FS    // the host's file system, os.DirFS("/")
	Sockets uapi.Dir // where daemons serve their interfaces
	RunDir  string   // for logs and what is remembered; made if it does not exist

	Resolve conffile.Resolver

	// Daemon returns the command, not started, that makes an interface and serves it in the foreground until the
	// interface is deleted or SIGTERM comes. It is run in a session of its own. The flags are those of `ropewalk run`
	// that the file asks for.
	Daemon func(name string, flags []string) *exec.Cmd
	// Timeout bounds how long a daemon may take to serve its interface, to open its UDP port, to say what it is before it is taken
	// down, and to end, of itself and after each signal; 0 for 15 seconds each.
	Timeout time.Duration
}

// DefaultRunDir is for what does not outlive a boot.
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

// Up makes the interface as its file says. When that fails, or ctx ends, everything done so far is undone. What a killed
// daemon of the interface left behind is removed first. Errors: ErrExists, ErrNoResolvconf, and those of the steps.
func (r *Runner) Up(ctx context.Context, i Interface) (err error) {
	unlock, err := r.lock(i.Name)
	if err != nil {
		return err
	}
	defer unlock()
	j := &job{Runner: r, Interface: i}
	if err := j.checkAbsent(); err != nil {
		return err
	}
	if len(i.File.Interface.DNS) > 0 && r.Tools.Resolvconf == "" {
		return ErrNoResolvconf
	}
	if err := j.sweep(ctx); err != nil {
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
	if err := done.take(ctx, j, hooks(j.Name, j.File.Interface.PreUp)); err != nil {
		return err
	}
	dev, err := j.File.Device(ctx, j.Resolve)
	if err != nil {
		return err
	}
	facts, err := j.facts(dev)
	if err != nil {
		return err
	}
	return done.take(ctx, j, Plan(j.Interface, dev, facts))
}

// checkAbsent fails when the interface exists, or when a daemon serves one of its name in another namespace.
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
		return fmt.Errorf("`%s' %w in another network namespace: its daemon serves %s/%s.sock",
			j.Name, ErrExists, j.Sockets, j.Name)
	}
	if !uapi.IsRefused(err) {
		return err
	}
	return nil
}

// progress are the steps taken so far.
type progress []Step

// take takes the steps in order until one fails or ctx ends.
func (p *progress) take(ctx context.Context, j *job, steps []Step) error {
	for _, s := range steps {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("bringing %s up: %w", j.Name, context.Cause(ctx))
		}
		if err := j.take(ctx, s); err != nil {
			return err
		}
		*p = append(*p, s)
	}
	return nil
}

// undo takes back what was done, last first. An error does not stop it.
func (p *progress) undo(ctx context.Context, j *job) error {
	var errs []error
	for n := len(*p) - 1; n >= 0; n-- {
		if s := (*p)[n].undo(); s != nil {
			errs = append(errs, j.take(ctx, s))
		}
	}
	*p = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("undoing what was done: %w", err)
	}
	return j.forget()
}

func (j *job) take(ctx context.Context, s Step) error {
	if text := s.String(); text != "" {
		j.echo(text)
	}
	return s.run(ctx, j)
}

// takeAll takes all steps, whatever becomes of each.
func (j *job) takeAll(ctx context.Context, steps []Step) error {
	var errs []error
	for _, s := range steps {
		errs = append(errs, j.take(ctx, s))
	}
	return errors.Join(errs...)
}

// facts asks the host what the Plan has to know.
func (j *job) facts(dev config.Device) (Facts, error) {
	conf := &j.File.Interface
	f := Facts{Firewall: j.Tools.firewall(), DNSPrefix: j.dnsPrefix()}
	if conf.MTU == 0 {
		f.EndpointMTUs, f.DefaultMTU = pathMTUs(dev)
	}
	var err error
	switch {
	case conf.Table == tableOff:
	case !automatic(conf.Table):
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

// pathMTUs asks routing. An endpoint that it does not reach, or a missing default route, has no say.
func pathMTUs(dev config.Device) (endpoints []int, byDefault int) {
	for i := range dev.Peers {
		ep := dev.Peers[i].Endpoint
		if ep == nil {
			continue
		}
		if mtu, err := hostnet.PathMTU(ep.AddrPort.Addr().Unmap(), ep.Scope); err == nil {
			endpoints = append(endpoints, mtu)
		}
	}
	byDefault, err := hostnet.DefaultRouteMTU()
	if err != nil {
		byDefault = 0
	}
	return endpoints, byDefault
}

// firstTable is where wg-quick starts to look for a table for default routes.
const firstTable = 51820

// freeTable returns the first table from firstTable on that has no routes and that no rule looks at.
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
