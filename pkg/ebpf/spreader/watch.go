// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

const (
	// defaultPollInterval is the interval at which a tunnel in use is checked for new and moved peers. The kernel sends no
	// notifications of these.
	defaultPollInterval = 5 * time.Second
	// maxPollBackoff is the maximum factor by which the poll interval of an idle tunnel grows.
	maxPollBackoff = 12
	// idleBytes is the maximum traffic between two polls with which a tunnel counts as idle: keepalives and handshakes.
	idleBytes = 16 << 10
)

// linkDebounce and addressDebounce are the times for which updates are collected before they are acted on. On a node, each new container
// brings addresses.
const (
	linkDebounce    = 100 * time.Millisecond
	addressDebounce = time.Second
)

// Watch attaches, and repairs the attachment until ctx ends. It does so when the device returns,
// when a program was detached by force, and when a peer is new, gone or has another endpoint. It
// calls attached with the first Report and with each Report of a change. When ctx ends it returns
// nil and leaves everything attached. It returns the error of the first Attach. Later errors are
// logged once each, and retried.
//
// If a version of ropewalk with another layout of the maps attaches meanwhile, Watch ends with programs.ErrOtherLayout. The programs of that version
// know nothing of this tunnel until the process is restarted as that version, and only one version can be attached.
//
// It must stay in the network namespace in which it is called. A process with several needs a locked thread.
func (h *Host) Watch(ctx context.Context, cfg Config, log *slog.Logger, attached func(Report)) error {
	return h.Follow(ctx, FollowOptions{Config: cfg, Log: log, Attached: attached})
}

// FollowOptions configures Follow.
type FollowOptions struct {
	// Config is the initial configuration.
	Config Config
	// Changes delivers new configurations; nil: none. It is never closed. Follow does not receive from it after it has
	// returned, so senders must also wait for that.
	Changes <-chan Change
	Log     *slog.Logger
	// Attached is called with the first Report, and with each Report of a change that did not come from Changes.
	Attached func(Report)
}

// Change is another Config, with the Device, Port and Gap of the one before.
type Change struct {
	Config Config
	// Done is called with the result of the change; errors are as from Attach. After an error that
	// wraps ErrInvalid, the previous Config stays in use. After other errors the new one is
	// retried periodically.
	Done func(Report, error)
}

// Follow is Watch with a configuration that may change. A change writes only the differences to the programs' maps, and
// does not reload the programs.
func (h *Host) Follow(ctx context.Context, options FollowOptions) error {
	cfg, log := options.Config, options.Log
	subscription, stop := context.WithCancel(ctx)
	updates := make(chan netlink.LinkUpdate, 64)
	err := netlink.LinkSubscribeWithOptions(updates, subscription.Done(), netlink.LinkSubscribeOptions{
		ErrorCallback: func(err error) {
			if subscription.Err() == nil { // closing the socket is also an error
				log.Debug("receiving link events failed, checking the device's programs periodically instead", "device", cfg.Device, "error", err)
			}
		},
	})
	if err != nil {
		stop()
		return fmt.Errorf("subscribing to link updates: %w", err)
	}
	defer func() {
		stop()
		for range updates { // unblock the subscriber, until it closes the channel
		}
	}()
	w := &watcher{
		host: h, retries: map[string]func() error{}, filters: make(chan struct{}, 1), addresses: make(chan struct{}, 1), cfg: cfg, log: log, attached: options.Attached, changes: options.Changes,
		history: history{endpointPorts: map[string]uint16{}, sharedPorts: new(sharedPorts), probeKeys: probeKeys{}, proofs: proofs{}, stalls: stallWatch{}, unseen: unseenWatch{}, attempts: attempts{}},
	}
	if err := w.watchHost(subscription); err != nil {
		return err
	}
	r, devices, err := h.attach(ctx, cfg, w.history)
	if err != nil {
		return err
	}
	w.noteDevices(devices)
	w.attached(r)
	return w.run(ctx, updates)
}

type watcher struct {
	host          *Host
	cfg           Config
	log           *slog.Logger
	attached      func(Report)
	changes       <-chan Change
	filters       chan struct{}         // gets a token when a filter of a device has changed
	addresses     chan struct{}         // gets one when an address of the host has changed
	indices       atomic.Pointer[[]int] // of the devices, as of the last change or poll
	history       history
	retries       map[string]func() error // of restarts that failed, by the peer's key
	lastError     string                  // the last logged error
	interval      time.Duration           // the minimum time between two polls
	wait          time.Duration           // until the next poll
	noLinkUpdates bool                    // the link subscription ended
	traffic       uint64                  // of the tunnel, at the last poll
	ended         error                   // another version has attached
}

// run ends with ctx, or with programs.ErrOtherLayout.
func (w *watcher) run(ctx context.Context, updates <-chan netlink.LinkUpdate) error {
	w.interval = cmp.Or(w.host.pollInterval, defaultPollInterval)
	w.wait = w.interval
	timer := time.NewTimer(w.wait)
	defer timer.Stop()
	var burst <-chan time.Time
	for w.ended == nil {
		select {
		case <-ctx.Done():
			return nil
		case u, ok := <-updates:
			switch {
			case !ok:
				updates, w.noLinkUpdates, w.wait = nil, true, w.interval
				timer.Reset(w.wait)
			case burst == nil && (u.Attrs().Name == w.cfg.Device || slices.Contains(*w.indices.Load(), u.Attrs().Index)):
				burst = time.After(linkDebounce)
			}
		case <-w.addresses: // so a new device also has one
			if burst == nil {
				burst = time.After(addressDebounce)
			}
		case <-w.filters:
			w.reconcile(ctx)
			timer.Reset(w.wait)
		case c := <-w.changes:
			if w.change(ctx, c) {
				timer.Reset(w.wait)
			}
		case <-burst:
			burst = nil
			w.reconcile(ctx)
			timer.Reset(w.wait)
		case <-timer.C:
			w.reconcile(ctx)
			timer.Reset(w.wait)
		}
	}
	return w.ended
}

// watchHost reports changes of the device's filters, and of the host's addresses. Other programs remove the filters of ropewalk (Cilium's
// agent, all of a direction when it starts), or add theirs in front.
func (w *watcher) watchHost(ctx context.Context) error {
	w.indices.Store(new([]int))
	if err := hostnet.WatchAddresses(ctx, func() { notify(w.addresses) }); err != nil {
		return err
	}
	return hostnet.WatchFilters(ctx, func(index int) bool { return slices.Contains(*w.indices.Load(), index) }, func() { notify(w.filters) })
}

func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// change replaces the Config unless it is invalid, and reconciles with it.
func (w *watcher) change(ctx context.Context, c Change) (looked bool) {
	now := &w.cfg
	if c.Config.Device != now.Device || c.Config.Port != now.Port || c.Config.Gap != now.Gap {
		c.Done(Report{}, invalid("device, port and gap cannot be changed while watching"))
		return false
	}
	if _, err := c.Config.withDefaults(); err != nil { // otherwise each later reconcile would fail
		c.Done(Report{}, wrapError(c.Config, err))
		return false
	}
	w.cfg = c.Config
	found, err := w.restore(ctx)
	w.wait, w.traffic = w.interval, found.tunnel.traffic()
	w.watchPeers(found.tunnel)
	c.Done(found.report, err)
	return true
}

// restore restores the configured state, unless another version has attached.
func (w *watcher) restore(ctx context.Context) (reconcileResult, error) {
	found, err := w.host.reconcile(ctx, w.cfg, w.history)
	w.noteDevices(found.devices)
	if errors.Is(err, programs.ErrOtherLayout) {
		w.ended = err
	}
	return found, err
}

// reconcile restores the configured state, and reports changes and failures.
func (w *watcher) reconcile(ctx context.Context) {
	found, err := w.restore(ctx)
	w.schedule(found.tunnel.traffic(), found.changed || err != nil)
	w.watchPeers(found.tunnel)
	switch {
	case ctx.Err() != nil, w.ended != nil:
	case err != nil && err.Error() != w.lastError:
		w.lastError = err.Error()
		w.log.Warn("restoring the spread and gather programs on a device failed, retrying: packets from spread peers may be lost meanwhile", "device", w.cfg.Device, "port", w.cfg.Port, "error", err)
	case err == nil:
		if w.lastError != "" {
			w.log.Info("spread and gather programs on a device restored after failures", "device", w.cfg.Device, "port", w.cfg.Port)
		}
		w.lastError = ""
		if found.changed {
			w.attached(found.report)
		}
	}
}

// watchPeers takes a sample of the peers' counters. It reports peers that have stalled, and restarts them if the Config says so.
func (w *watcher) watchPeers(t *Tunnel) {
	w.retryRestarts()
	if t == nil || t.Userspace {
		return
	}
	now := time.Now()
	stalled, recovered := w.history.stalls.update(now, t.Peers)
	for _, key := range stalled {
		log := w.log.With("interface", t.Name, "peer", key)
		if w.history.stalls[key].restarted.IsZero() {
			log.Warn("WireGuard receives nothing but handshakes from a peer: the path may drop its data, or the kernel's receive queue of the peer has stopped")
		} else {
			log.Warn("a peer has stalled again since it was to be restarted: the path may drop its data, or the interface has to be restarted")
		}
	}
	for _, key := range recovered {
		w.log.Info("WireGuard receives from a peer again", "interface", t.Name, "peer", key)
	}
	if !w.cfg.RestartStalledPeers {
		return
	}
	for _, key := range w.history.stalls.takeRestarts(now) {
		retry, err := w.host.finder().RestartPeer(t.Name, key)
		switch {
		case err == nil:
			w.log.Warn("restarted a stalled peer of WireGuard: it was removed and added again", "interface", t.Name, "peer", key)
		case retry == nil:
			w.log.Error("restarting a stalled peer failed, and changed nothing", "interface", t.Name, "peer", key, "error", err)
		default:
			w.log.Error("restarting a stalled peer failed, retrying what is missing of it", "interface", t.Name, "peer", key, "error", err)
			w.retries[key] = retry
		}
	}
}

// retryRestarts adds peers that were removed and could not be added. Nothing else has their configuration.
func (w *watcher) retryRestarts() {
	for key, retry := range w.retries {
		if retry() == nil {
			delete(w.retries, key)
			w.log.Info("a stalled peer was added again after failures", "peer", key)
		}
	}
}

// noteDevices makes changes of the devices' filters cause a reconcile.
func (w *watcher) noteDevices(all []device) {
	if all == nil {
		return
	}
	indices := make([]int, 0, len(all))
	for _, d := range all {
		indices = append(indices, d.index)
	}
	w.indices.Store(&indices)
}

// schedule sets the time of the next poll. It backs off while the tunnel is idle and there is nothing to repair. So a
// peer that is new or has moved after a pause is noticed later, and packets to it are not spread until then.
func (w *watcher) schedule(traffic uint64, busy bool) {
	used := traffic < w.traffic || traffic-w.traffic > idleBytes
	w.traffic = traffic
	if busy || used || w.noLinkUpdates {
		w.wait = w.interval
		return
	}
	w.wait = min(2*w.wait, maxPollBackoff*w.interval)
}

// reconcileResult is the result of a reconcile.
type reconcileResult struct {
	report  Report
	devices []device // nil: unchanged
	changed bool
	tunnel  *Tunnel // nil: not known
}

// reconcile updates the maps, and calls attach only if a program is not attached.
func (h *Host) reconcile(ctx context.Context, cfg Config, known history) (reconcileResult, error) {
	found, err := h.reconcileState(ctx, cfg, known)
	if errors.Is(err, errNotAttached) {
		report, devices, err := h.attach(ctx, cfg, known)
		return reconcileResult{report: report, devices: devices, changed: true}, err
	}
	return found, err
}

// errNotAttached means that updating the maps is not enough.
var errNotAttached = errors.New("the programs are not attached")

// reconcileState updates the maps without loading any program.
func (h *Host) reconcileState(ctx context.Context, cfg Config, known history) (reconcileResult, error) {
	p, unlock, err := h.open(ctx)
	if err != nil {
		return reconcileResult{}, wrapError(cfg, err)
	}
	defer unlock()
	s, err := programs.OpenState(p.shared())
	if errors.Is(err, programs.ErrOtherLayout) {
		return reconcileResult{}, fmt.Errorf("the programs on %s no longer know the tunnel on port %d, restart this process as the present version: %w",
			cfg.Device, cfg.Port, programs.ErrOtherLayout)
	}
	if err != nil {
		return reconcileResult{}, fmt.Errorf("%w: %w", errNotAttached, err)
	}
	defer s.Close()
	began := time.Now()
	pl, err := h.plan(p, cfg, known)
	if err != nil {
		return reconcileResult{}, wrapError(cfg, err)
	}
	if err := pl.checkAttached(p); err != nil {
		return reconcileResult{}, err
	}
	changed, refused, err := syncTunnel(s, pl.tunnel, pl.peers)
	pl.warnRefused(refused)
	if err = errors.Join(err, s.SetAddresses(pl.addresses), known.unseen.update(began, pl, s)); err != nil {
		err = wrapError(cfg, err)
	}
	h.syncFilters(p, pl, known.attempts)
	return reconcileResult{pl.report, pl.devices, changed, pl.found}, err
}

// checkAttached returns errNotAttached unless all hooks are attached, in front of all programs that they can precede. It fills in the report.
func (pl *plan) checkAttached(p pins) error {
	for _, d := range pl.devices {
		gather := hook.Ingress
		if d.gather == GatherXDP {
			gather = hook.XDP
		}
		for _, point := range []hook.AttachPoint{hook.Egress, gather} {
			h := p.hook(d.name, d.index, point, hook.Best)
			state, err := pl.reportHook(d, h)
			if err != nil {
				return err
			}
			inFront, err := h.InFront()
			if err != nil {
				return err
			}
			if state != hook.Attached || !inFront {
				return errNotAttached
			}
		}
	}
	return p.removeGone(pl.cfg.Device, pl.parts)
}

// reportHook adds a hook to the report.
func (pl *plan) reportHook(d device, h hook.Hook) (hook.State, error) {
	st, err := h.Status()
	if err != nil {
		return st.State, err
	}
	before, _, err := h.Order()
	if err != nil {
		return st.State, err
	}
	behind := neighbourNames(before)
	switch {
	case d != pl.devices[0]:
	case h.AttachPoint == hook.Egress:
		pl.report.Spread, pl.report.SpreadBehind = st.Kind.String(), behind
	default:
		pl.report.Gather, pl.report.GatherBehind = st.Kind.String(), behind
	}
	if len(behind) > 0 {
		pl.warn("%s: %s", d.name, behindText(h.AttachPoint, behind))
	}
	return st.State, nil
}

func neighbourNames(list []hook.Neighbour) (names []string) {
	for _, n := range list {
		names = append(names, n.String())
	}
	return names
}

// behindText describes the effect of programs that run before ropewalk's at an attach point.
func behindText(point hook.AttachPoint, behind []string) string {
	effect := "the packets that it accepts are not spread"
	if point != hook.Egress {
		effect = "the packets that it accepts are not gathered"
	}
	return fmt.Sprintf("%s runs first at %s and cannot be preceded: if it ends the processing (TC_ACT_OK), %s", strings.Join(behind, ", "), point, effect)
}
