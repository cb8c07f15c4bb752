// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/datapath"
	"github.com/ropewalk/ropewalk/pkg/datapath/hook"
)

const (
	// refreshEvery is how long a peer that roamed or is new may go unspread, while there is traffic. The kernel tells of
	// neither, so there is nothing to wait for.
	refreshEvery = 5 * time.Second
	// refreshLess is how much less often, at the least, a tunnel is looked at that nobody uses.
	refreshLess = 12
	// quiet is how many bytes a tunnel carries between two looks that nobody uses: keepalives and handshakes.
	quiet = 16 << 10
)

// settleLinks is how long a burst of link messages may last before it is acted on.
const settleLinks = 100 * time.Millisecond

// Watch attaches, and attaches again until ctx ends whatever comes off: when a device comes back, when somebody detached
// a program by force, when a peer has another endpoint, is new or is gone. It calls attached with the first Report and with
// each that tells of a change. It leaves all in place when ctx ends, and then returns nil. Its error is that of the first
// Attach; later ones are logged, each once, and tried again.
//
// It must stay in the network namespace in which it is called: where a process has several, on a locked thread.
func (h *Host) Watch(ctx context.Context, cfg Config, log *slog.Logger, attached func(Report)) error {
	return h.Follow(ctx, Course{Config: cfg, Log: log, Attached: attached})
}

// Course is what Follow keeps to.
type Course struct {
	// Config to begin with.
	Config Config
	// Changes bring other ones; nil: there are none. It is never closed. Nobody receives from it once Follow has returned: who sends
	// selects on that, too.
	Changes <-chan Change
	Log     *slog.Logger
	// Attached is called with the first Report and with each that tells of a change that nobody asked for.
	Attached func(Report)
}

// Change is another Config, with the Device, Port and Gap of the one before.
type Change struct {
	Config Config
	// Done is told what came of it: an error is that of Attach. After one that wraps ErrInvalid, the Config before is kept to; what
	// was refused otherwise is tried again as time goes on.
	Done func(Report, error)
}

// Follow is Watch where what is wanted may change meanwhile. A change writes to the programs' maps what is different, and
// leaves the programs alone.
func (h *Host) Follow(ctx context.Context, course Course) error {
	cfg, log := course.Config, course.Log
	done := make(chan struct{})
	updates := make(chan netlink.LinkUpdate, 64)
	err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{
		ErrorCallback: func(err error) { log.Debug("link messages were lost", "error", err) }, // the timer makes up for it
	})
	if err != nil {
		return fmt.Errorf("subscribing to link changes: %w", err)
	}
	defer func() {
		close(done)
		for range updates { // until the subscriber, which may be waiting to deliver, has left
		}
	}()
	w := &watcher{
		host: h, cfg: cfg, log: log, attached: course.Attached, changes: course.Changes,
		known: memory{ports: map[string]uint16{}, others: map[netip.Addr]bool{}, run: new(run)},
	}
	r, err := h.attach(ctx, cfg, w.known)
	if err != nil {
		return err
	}
	w.attached(r)
	w.run(ctx, updates)
	return nil
}

type watcher struct {
	host     *Host
	cfg      Config
	log      *slog.Logger
	attached func(Report)
	changes  <-chan Change
	known    memory
	trouble  string        // what was logged last
	every    time.Duration // how long to wait at first
	wait     time.Duration // until the next look
	deaf     bool          // there are no link messages any more
	traffic  int64         // of the tunnel, at the last look
}

func (w *watcher) run(ctx context.Context, updates <-chan netlink.LinkUpdate) {
	w.every = cmp.Or(w.host.refresh, refreshEvery)
	w.wait = w.every
	timer := time.NewTimer(w.wait)
	defer timer.Stop()
	var burst <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case u, ok := <-updates:
			switch {
			case !ok:
				updates, w.deaf, w.wait = nil, true, w.every
				timer.Reset(w.wait)
			case burst == nil && u.Attrs().Name == w.cfg.Device:
				burst = time.After(settleLinks)
			}
		case c := <-w.changes:
			if w.change(ctx, c) {
				timer.Reset(w.wait)
			}
		case <-burst:
			burst = nil
			w.look(ctx)
			timer.Reset(w.wait)
		case <-timer.C:
			w.look(ctx)
			timer.Reset(w.wait)
		}
	}
}

// change makes another Config the one to keep to, and mends what is not as that says, unless the Config is refused.
func (w *watcher) change(ctx context.Context, c Change) (looked bool) {
	now := &w.cfg
	if c.Config.Device != now.Device || c.Config.Port != now.Port || c.Config.Gap != now.Gap {
		c.Done(Report{}, invalid("another device, port or gap is no change of what is followed"))
		return false
	}
	if _, err := c.Config.withDefaults(); err != nil { // it would be refused each time, and nothing mended any more
		c.Done(Report{}, describe(c.Config, err))
		return false
	}
	w.cfg = c.Config
	named := map[netip.Addr]bool{}
	for _, e := range w.cfg.named() {
		named[e.Addr()] = true
	}
	maps.DeleteFunc(w.known.others, func(a netip.Addr, _ bool) bool { return !named[a] })
	found, err := w.host.mend(ctx, w.cfg, w.known)
	w.wait, w.traffic = w.every, found.traffic
	c.Done(found.report, err)
	return true
}

// look mends what is not as it should be.
func (w *watcher) look(ctx context.Context) {
	found, err := w.host.mend(ctx, w.cfg, w.known)
	w.pace(found.traffic, found.changed || err != nil)
	switch {
	case ctx.Err() != nil:
	case err != nil && err.Error() != w.trouble:
		w.trouble = err.Error()
		w.log.Warn("not spreading as wanted; trying again", "error", err)
	case err == nil:
		if w.trouble != "" {
			w.log.Info("spreading as wanted again", "device", w.cfg.Device, "port", w.cfg.Port)
		}
		w.trouble = ""
		if found.changed {
			w.attached(found.report)
		}
	}
}

// pace chooses when to look next: less and less often while nobody uses the tunnel and nothing is to be mended. What then
// goes unspread for longer is the beginning of what comes next.
func (w *watcher) pace(traffic int64, busy bool) {
	used := traffic-w.traffic < 0 || traffic-w.traffic > quiet
	w.traffic = traffic
	if busy || used || w.deaf {
		w.wait = w.every
		return
	}
	w.wait = min(2*w.wait, refreshLess*w.every)
}

// findings are what a look found and did.
type findings struct {
	report  Report
	changed bool
	traffic int64 // Tunnel.Traffic, 0 if unknown
}

// mend is Attach where the programs stay if they are as they should be.
func (h *Host) mend(ctx context.Context, cfg Config, known memory) (findings, error) {
	found, err := h.settleState(ctx, cfg, known)
	if errors.Is(err, errAttach) {
		report, err := h.attach(ctx, cfg, known)
		return findings{report: report, changed: true}, err
	}
	return found, err
}

// errAttach says that settling the state is not enough.
var errAttach = errors.New("the programs are not attached")

// settleState changes what the programs work on, without loading any.
func (h *Host) settleState(ctx context.Context, cfg Config, known memory) (findings, error) {
	p, unlock, err := h.open(ctx)
	if err != nil {
		return findings{}, describe(cfg, err)
	}
	defer unlock()
	if len(cfg.named()) == 0 {
		known.at = p.canonicalPorts(cfg)
	}
	pl, err := h.plan(p, cfg, known)
	if err != nil {
		return findings{}, describe(cfg, err)
	}
	if err := pl.hooked(p); err != nil {
		return findings{}, err
	}
	s, err := datapath.OpenState(p.state(cfg.Device))
	if err != nil {
		return findings{}, fmt.Errorf("%w: %w", errAttach, err)
	}
	defer s.Close()
	changed, err := settle(s, pl.tunnel, pl.peers)
	if err != nil {
		err = describe(cfg, err)
	}
	return findings{pl.report, changed, pl.traffic}, err
}

// hooked returns errAttach unless all hooks that there should be are attached, and fills in the report.
func (pl *plan) hooked(p pins) error {
	gather := hook.Ingress
	if pl.cfg.Gather == GatherXDP {
		gather = hook.XDP
	}
	spread, err := p.hook(pl.cfg.Device, pl.index, hook.Egress, hook.Best).Status()
	if err != nil {
		return err
	}
	gathers, err := p.hook(pl.cfg.Device, pl.index, gather, hook.Best).Status()
	if err != nil {
		return err
	}
	pl.report.Spread, pl.report.Gather = spread.Kind.String(), gathers.Kind.String()
	if pl.cfg.Gather == GatherNone {
		pl.report.Gather = "none"
	}
	if spread.State != hook.Attached || (gathers.State != hook.Attached && pl.cfg.Gather != GatherNone) {
		return errAttach
	}
	return nil
}
