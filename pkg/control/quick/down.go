// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Down takes the interface down, also if wg-quick brought it up. If a PreDown hook fails, or with SaveConfig the save, Down changes
// nothing. After that, it executes all steps even if one fails.
//
// If the daemon was killed, Down removes its leftovers. If a daemon started by Up does not answer within Timeout, Down kills it and
// saves nothing. A daemon with a full listen queue is not killed: it exits when its interface is deleted, or Down returns an error.
// The error is ErrNotWireGuard when there is neither an interface nor leftovers.
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
	ctx = context.WithoutCancel(ctx) // ignoring an interruption is better than an interface that is half down
	st, _ := j.loadState()
	steps := PlanDown(i, table, r.dnsPrefix(), st.DNS)
	for _, table := range without(st.tables(), []uint32{table}) { // of an interrupted Reload
		steps = slices.Insert(steps, 0, Step(removeRules{hostnet.IPv4, table}), Step(removeRules{hostnet.IPv6, table}))
	}
	err = j.executeAll(ctx, steps)
	if err == nil {
		err = j.removeState()
	}
	postDown := j.executeAll(ctx, hooks(i.Name, i.File.Interface.PostDown))
	if err == nil {
		err = j.removeFiles()
	}
	return errors.Join(err, postDown)
}

// prepareDown runs the hooks and the save that precede all changes, and returns the table of the interface's default routes, or 0.
func (j *job) prepareDown(ctx context.Context) (table uint32, err error) {
	conf := &j.File.Interface
	preDown := hooks(j.Name, conf.PreDown)
	st, known := j.loadState()
	status, err := j.status()
	if problem := daemonProblem(err); problem != "" && known && !j.interfaceReplaced(st) {
		if name := j.presentName(); name != j.Name {
			problem = "serves an interface that is named " + name + " now; deleting it"
		}
		j.warn("the daemon of %s %s", j.Name, problem)
		if err := j.executeAll(ctx, preDown); err != nil {
			j.warn("%v", err)
		}
		return st.Table, nil
	}
	if err != nil {
		return 0, err
	}
	var done progress // PreDown hooks have nothing to undo
	if err := done.execute(ctx, j, preDown); err != nil {
		return 0, err
	}
	if conf.SaveConfig {
		if err := j.save(ctx); err != nil {
			return 0, fmt.Errorf("saving the configuration failed, so %s stays up (SaveConfig = false in its file lets it go down unsaved): %w", j.Name, err)
		}
	}
	if known && st.Table != 0 {
		return st.Table, nil
	}
	return defaultRouteTable(conf.Table, status), nil
}

// daemonProblem returns a warning for the error of status: the daemon is not running or hangs, and how Down continues. It returns "" for
// any other error.
func daemonProblem(err error) string {
	switch {
	case errors.Is(err, ErrNotWireGuard):
		return "is not running; removing its leftovers"
	case errors.Is(err, ErrUnresponsive):
		return "does not answer; deleting its interface"
	}
	return ""
}

// interfaceReplaced reports whether another interface has the name of the one in the saved state.
func (j *job) interfaceReplaced(st state) bool {
	link, err := hostnet.FindLink(j.Name)
	return err == nil && link.Index != st.Link
}

// presentName returns the name of the interface that Up created: another than j.Name if it was renamed. Of an interface that is gone or
// unknown it returns j.Name.
func (j *job) presentName() string {
	st, known := j.loadState()
	links, err := hostnet.Links()
	if !known || err != nil {
		return j.Name
	}
	i := slices.IndexFunc(links, func(l hostnet.Link) bool { return l.Index == st.Link && l.Kind == "tuntap" })
	if i < 0 {
		return j.Name
	}
	return links[i].Name
}

// defaultRouteTable derives the table of the default routes from the device's status, as wg-quick does; 0 for none.
func defaultRouteTable(table string, st config.Status) uint32 {
	if !isAuto(table) {
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

// status requests the status from the interface's daemon. Errors: ErrNotWireGuard without such an interface or daemon, ErrUnresponsive
// for a daemon that hangs.
func (j *job) status() (config.Status, error) {
	_, err := hostnet.FindLink(j.Name)
	if name := j.presentName(); name != j.Name && errors.Is(err, hostnet.ErrNoLink) {
		return config.Status{}, fmt.Errorf("`%s' %w: it is named %s now; rename it back, or take it down", j.Name, ErrNotWireGuard, name)
	}
	if errors.Is(err, hostnet.ErrNoLink) {
		err = j.findMoved()
	}
	if err != nil {
		return config.Status{}, err
	}
	c, err := j.Sockets.Dial(j.Name)
	switch err := j.unlessHanging(err); {
	case errors.Is(err, ErrUnresponsive):
		return config.Status{}, err
	case err != nil:
		return config.Status{}, fmt.Errorf("`%s' %w: %w", j.Name, ErrNotWireGuard, err)
	}
	defer c.Close()
	timeout := time.AfterFunc(j.timeout(), func() { _ = c.Close() })
	defer timeout.Stop()
	st, err := c.Status()
	return st, j.unlessHanging(err)
}

// unlessHanging returns ErrUnresponsive instead of an error that only a daemon that hangs causes. A timer closes the connection to that.
func (j *job) unlessHanging(err error) error {
	if errors.Is(err, net.ErrClosed) || uapi.IsUnresponsive(err) {
		return fmt.Errorf("asking about %s: %w: %w", j.Name, ErrUnresponsive, err)
	}
	return err
}

// removeLeftovers removes rules, firewall, DNS entry and socket of the interface's earlier daemon, if that was killed.
func (j *job) removeLeftovers(ctx context.Context) error {
	st, known := j.loadState()
	if !known {
		return nil
	}
	var steps []Step
	for _, table := range st.tables() {
		steps = append(steps, removeRules{hostnet.IPv4, table}, removeRules{hostnet.IPv6, table}, removeFirewall{j.Name})
	}
	if st.DNS {
		steps = append(steps, unsetDNS{j.dnsPrefix() + j.Name})
	}
	if err := j.executeAll(ctx, steps); err != nil {
		return fmt.Errorf("removing leftovers of an earlier %s: %w", j.Name, err)
	}
	j.removeStaleSocket()
	return j.removeState()
}
