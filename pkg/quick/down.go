// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// Down takes the interface down, whoever brought it up. A PreDown hook or, with SaveConfig, a save that fails leaves
// everything as it is; after that, a step that fails does not keep the others from being taken. Of an interface whose
// daemon was killed, it removes what is left; a daemon of Up's that does not answer within Timeout is ended, and nothing is saved
// (one that does not even let it in ends with its interface, or Down says that it does not).
// When there is neither the error is ErrNotWireGuard.
func (r *Runner) Down(ctx context.Context, i Interface) error {
	unlock, err := r.lock(i.Name)
	if err != nil {
		return err
	}
	defer unlock()
	j := &job{Runner: r, Interface: i}
	table, err := j.prepareDown(ctx)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // half of it down is worse than an interruption ignored
	err = j.takeAll(ctx, PlanDown(i, table, r.dnsPrefix()))
	if err == nil {
		err = j.forget()
	}
	return errors.Join(err, j.takeAll(ctx, hooks(i.Name, i.File.Interface.PostDown)))
}

// prepareDown does what comes before the interface is touched and returns the table of its default routes, if any.
func (j *job) prepareDown(ctx context.Context) (table uint32, err error) {
	conf := &j.File.Interface
	preDown := hooks(j.Name, conf.PreDown)
	st, known := j.recall()
	status, err := j.status()
	if what := fateOf(err); what != "" && known && !j.replaced(st) {
		j.warn("the daemon of %s %s", j.Name, what)
		if err := j.takeAll(ctx, preDown); err != nil {
			j.warn("%v", err)
		}
		return st.Table, nil
	}
	if err != nil {
		return 0, err
	}
	var done progress // PreDown hooks have nothing to undo
	if err := done.take(ctx, j, preDown); err != nil {
		return 0, err
	}
	if conf.SaveConfig {
		if err := j.save(ctx); err != nil {
			return 0, err
		}
	}
	if known && st.Table != 0 {
		return st.Table, nil
	}
	return defaultRouteTable(conf.Table, status), nil
}

// fateOf tells from the error of status what has become of a daemon that will not answer, and what is done about that; empty if it
// may be none of that.
func fateOf(err error) string {
	switch {
	case errors.Is(err, ErrNotWireGuard):
		return "is gone; removing what it left"
	case errors.Is(err, errSilent):
		return "does not answer; taking its interface away"
	}
	return ""
}

// replaced reports whether an interface of that name exists that is not the one remembered.
func (j *job) replaced(st state) bool {
	link, err := hostnet.FindLink(j.Name)
	return err == nil && link.Index != st.Link
}

// defaultRouteTable tells, as wg-quick does, from the device where its default routes would be: 0 for nowhere.
func defaultRouteTable(table string, st config.Status) uint32 {
	if !automatic(table) {
		return 0
	}
	for i := range st.Peers {
		for _, prefix := range st.Peers[i].AllowedIPs {
			if prefix.Bits() == 0 {
				return st.FwMark
			}
		}
	}
	return 0
}

// errSilent says that a daemon took longer than the timeout to answer, or lets nobody in.
var errSilent = errors.New("its daemon does not answer")

// status asks the interface's daemon. ErrNotWireGuard says that there is no such interface or daemon here, errSilent that it hangs.
func (j *job) status() (config.Status, error) {
	_, err := hostnet.FindLink(j.Name)
	if errors.Is(err, hostnet.ErrNoLink) {
		return config.Status{}, fmt.Errorf("`%s' %w", j.Name, ErrNotWireGuard)
	}
	if err != nil {
		return config.Status{}, err
	}
	c, err := j.Sockets.Dial(j.Name)
	switch {
	case uapi.IsSilent(err):
		return config.Status{}, fmt.Errorf("asking for the status of %s: %w: %w", j.Name, errSilent, err)
	case err != nil:
		return config.Status{}, fmt.Errorf("`%s' %w: %w", j.Name, ErrNotWireGuard, err)
	}
	defer c.Close()
	late := time.AfterFunc(j.timeout(), func() { _ = c.Close() })
	defer late.Stop()
	st, err := c.Status()
	if errors.Is(err, net.ErrClosed) || uapi.IsSilent(err) {
		err = fmt.Errorf("reading the status of %s: %w", j.Name, errSilent)
	}
	return st, err
}

// sweep removes what a killed daemon of the interface left behind.
func (j *job) sweep(ctx context.Context) error {
	st, known := j.recall()
	if !known {
		return nil
	}
	var steps []Step
	if st.Table != 0 {
		steps = append(steps, removeRules{hostnet.IPv4, st.Table}, removeRules{hostnet.IPv6, st.Table},
			removeFirewall{j.Name})
	}
	if st.DNS {
		steps = append(steps, unsetDNS{j.dnsPrefix() + j.Name})
	}
	if err := j.takeAll(ctx, steps); err != nil {
		return fmt.Errorf("removing what an earlier %s left: %w", j.Name, err)
	}
	j.removeStaleSocket()
	return j.forget()
}
