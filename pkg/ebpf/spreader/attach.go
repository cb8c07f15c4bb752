// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
)

// defaultRefusedPause is the time after which a device that refused the programs is tried again.
const defaultRefusedPause = 10 * time.Minute

// unknownName is the name of a tunnel of which only the port is known.
const unknownName = "?"

// Report is the result of an Attach.
type Report struct {
	Device string `json:"device"`
	// AlsoOn are the other devices on which the peers' packets may arrive. The programs are also
	// attached to them.
	AlsoOn []string `json:"also_on,omitempty"`
	// NotOn are the devices that refused the programs. With Watch they are tried again after ten
	// minutes.
	NotOn  []string `json:"not_on,omitempty"`
	Tunnel string   `json:"tunnel"` // its name, "?" if unknown
	Port   uint16   `json:"port"`
	// Lanes are the source ports over which flows are spread, in order.
	Lanes []uint16 `json:"lanes"`
	// Peers are the endpoints to which flows are spread.
	Peers []netip.AddrPort `json:"peers"`
	// GatherOnly are the endpoints from which packets are gathered, but to which none are spread.
	GatherOnly []netip.AddrPort `json:"gather_only,omitempty"`
	// Skipped are peers that are not configured. A later Attach, or Watch, may add them.
	Skipped []SkippedPeer `json:"skipped,omitempty"`
	// Spread and Gather are the kinds of the hooks, such as "tcx".
	Spread string `json:"spread"`
	Gather string `json:"gather"`
	// SpreadBehind and GatherBehind are the programs that run before these, and may end the processing of a packet.
	SpreadBehind []string `json:"spread_behind,omitempty"`
	GatherBehind []string `json:"gather_behind,omitempty"`
	Warnings     []string `json:"warnings,omitempty"`
}

// SkippedPeer is a peer that is neither spread to nor gathered from.
type SkippedPeer struct {
	Key    string `json:"key"` // public, base64
	Reason string `json:"reason"`
}

// Attach spreads a tunnel's packets on a device, and gathers its peers' packets there and on all
// other devices on which they may arrive. If the device is attached already, Attach updates ports
// and peers, replaces the programs in place, and repairs attachments that lost their device. If
// it fails, it restores the previous state. Exception: programs that it has already replaced stay
// if the process has no CAP_SYS_ADMIN.
//
// If another process holds the lock, Attach waits until ctx ends, at most some seconds. Status
// and Detach do the same. The error says how to proceed. It may wrap ErrInvalid, ErrNoDevice,
// ErrNoTunnel, hook.ErrNoBPFFS, a *hook.BusyError, ebpf.ErrNotSupported, programs.ErrFull or
// os.ErrPermission.
func (h *Host) Attach(ctx context.Context, cfg Config) (Report, error) {
	r, _, err := h.attach(ctx, cfg, history{})
	return r, err
}

// attach is Attach with the history of earlier calls. It also returns the devices.
func (h *Host) attach(ctx context.Context, cfg Config, known history) (Report, []device, error) {
	if _, err := h.mounted(); err != nil { // report an invalid Config before mounting anything
		if _, err := h.plan(pins{}, cfg, history{}); err != nil {
			return Report{}, nil, wrapError(cfg, err)
		}
	}
	p, unlock, err := h.open(ctx)
	if err != nil {
		return Report{}, nil, wrapError(cfg, err)
	}
	defer unlock()
	pl, err := h.plan(p, cfg, known)
	if err != nil {
		return Report{}, nil, wrapError(cfg, err)
	}
	c := &change{host: h, pins: p, plan: pl, attempts: known.attempts}
	if err := c.apply(); err != nil {
		return Report{}, nil, wrapError(cfg, errors.Join(err, c.rollBack()))
	}
	return pl.report, pl.devices, nil
}

func wrapError(cfg Config, err error) error {
	return fmt.Errorf("attaching spread for UDP port %d to %s: %w%s", cfg.Port, cfg.Device, err, explainRights(err))
}

// open locks the pins, and mounts a BPF file system if needed.
func (h *Host) open(ctx context.Context) (pins, func(), error) {
	root := h.FS
	if root == "" {
		var err error
		if root, err = hook.BPFFS(); err != nil {
			return pins{}, nil, err
		}
	}
	p, err := pinsIn(root)
	if err != nil {
		return pins{}, nil, err
	}
	unlock, err := h.lock(ctx, p, true)
	return p, unlock, err
}

// change applies a plan, and rolls it back if a step fails.
type change struct {
	host      *Host
	pins      pins
	plan      *plan
	attempts  attempts // of the history
	rollbacks []func() error
}

func (c *change) rollBack() error {
	var errs []error
	for _, f := range slices.Backward(c.rollbacks) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

func (c *change) onFailure(f func() error) { c.rollbacks = append(c.rollbacks, f) }

// step is called before each step and lets tests make it fail.
func (c *change) step(name string) error {
	if c.host.beforeStep == nil {
		return nil
	}
	return c.host.beforeStep(name)
}

func (c *change) apply() error {
	if err := c.followNames(); err != nil {
		return err
	}
	if err := c.attachTo(c.plan.devices[0]); err != nil {
		return err
	}
	for _, d := range c.plan.devices[1:] {
		mark := len(c.rollbacks)
		if err := c.attachTo(d); err != nil {
			rest := change{rollbacks: c.rollbacks[mark:]}
			c.rollbacks = c.rollbacks[:mark]
			err = errors.Join(err, rest.rollBack())
			c.host.note(c.attempts, d, err)
			c.plan.report.AlsoOn = slices.DeleteFunc(c.plan.report.AlsoOn, func(name string) bool { return name == d.name })
			c.plan.refuse(d.name, err)
		}
	}
	for _, d := range c.plan.devices {
		if err := programs.RemoveOtherLayouts(c.pins.state(d.name)); err != nil {
			return err
		}
	}
	if err := c.pins.removeGone(c.plan.cfg.Device, c.plan.parts); err != nil {
		return err
	}
	c.host.syncFilters(c.pins, c.plan, c.attempts)
	return programs.RemoveOtherLayouts(c.pins.filterState())
}

// followNames gives the pins of renamed devices their new names. Two pairs of programs on a device would count and gather twice.
func (c *change) followNames() error {
	names, err := c.pins.devices()
	if err != nil {
		return err
	}
	for _, d := range c.plan.devices {
		for _, name := range names {
			if attached, _ := c.pins.isAttached(name, d.index); name == d.name || !attached { // unreadable: not attached
				continue
			}
			was, is := c.pins.device(name), c.pins.device(d.name)
			if err := errors.Join(c.pins.detachFrom(d.name), os.Rename(was, is)); err != nil {
				return err
			}
			c.onFailure(func() error { return os.Rename(is, was) })
		}
	}
	return nil
}

// keeps reports whether this process has given a device its programs, and they are still attached, in front. Then it fills in the report.
func (c *change) keeps(d device) bool {
	if a, tried := c.attempts[d.index]; !tried || a.err != nil {
		return false
	}
	s, err := programs.OpenState(c.pins.state(d.name))
	if err != nil {
		return false
	}
	s.Close()
	hooks := []hook.Hook{c.hook(d, hook.Egress), c.hook(d, hook.Ingress)}
	if d.gather == GatherXDP {
		hooks[1] = c.hook(d, hook.XDP)
	}
	for _, h := range hooks {
		if !runsInFront(h) {
			return false
		}
	}
	for _, h := range hooks {
		_, err = c.plan.reportHook(d, h)
	}
	return err == nil
}

// runsInFront reports whether a hook's program is attached, in front of all programs that it can precede.
func runsInFront(h hook.Hook) bool {
	st, err := h.Status()
	inFront, orderErr := h.InFront()
	return err == nil && orderErr == nil && st.State == hook.Attached && inFront
}

// note keeps the result of an attempt to give a device programs.
func (h *Host) note(known attempts, d device, err error) {
	if known != nil {
		known[d.index] = attempt{err, time.Now().Add(cmp.Or(h.refusedPause, defaultRefusedPause))}
	}
}

// configure writes the state to the maps that are pinned.
func (c *change) configure() error {
	s, err := programs.OpenState(c.pins.shared())
	if err != nil {
		return err
	}
	defer s.Close()
	return c.writeState(s)
}

// attachTo attaches the programs to a device. The configured device's come first, and write the
// state that all share. If they are loaded, all are loaded: the shared maps may be new.
func (c *change) attachTo(d device) error {
	first := d == c.plan.devices[0]
	switch kept := c.keeps(d); {
	case kept && first:
		return c.configure()
	case kept:
		return nil
	case first:
		clear(c.attempts)
	}
	dir := c.pins.device(d.name)
	c.onFailure(func() error { hook.RemoveEmpty(c.pins.fs, dir); return nil })
	if err := hook.MakePinDir(c.pins.fs, dir); err != nil {
		return err
	}
	s, err := c.load(d)
	if err != nil {
		return err
	}
	defer s.Close()
	if first {
		if err := c.writeState(&s.State); err != nil {
			return err
		}
	}
	err = c.attachPrograms(d, s)
	c.host.note(c.attempts, d, err)
	return err
}

// load loads the programs for a device with the pinned maps, or with new ones.
func (c *change) load(d device) (*programs.Spread, error) {
	if err := c.step("load"); err != nil {
		return nil, err
	}
	maps := c.pins.state(d.name)
	for _, dir := range []string{maps.Shared, maps.Device} {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			c.onFailure(func() error { return programs.RemoveState(dir) })
		}
	}
	return programs.LoadSpread(programs.SpreadOptions{L2: d.ethernet, Device: d.index, Pins: maps})
}

// writeState writes the plan's tunnel and peers to the maps.
func (c *change) writeState(s *programs.State) error {
	if err := c.step("configure"); err != nil {
		return err
	}
	maps := c.pins.shared()
	before, peers, err := readTunnel(s, c.plan.cfg.Port)
	if err != nil {
		return err
	}
	gap, err := s.Gap()
	if err != nil {
		return err
	}
	c.onFailure(func() error { // opens the state again, since s may be closed by then
		s, err := programs.OpenState(maps)
		if err != nil {
			return err
		}
		defer s.Close()
		err = s.SetGap(gap)
		if before == nil {
			return errors.Join(err, s.RemoveTunnel(c.plan.cfg.Port))
		}
		_, refused, syncErr := syncTunnel(s, *before, peers)
		if len(refused) > 0 {
			syncErr = refused
		}
		return errors.Join(err, syncErr)
	})
	if c.plan.cfg.Gap != 0 {
		if err := s.SetGap(c.plan.cfg.Gap); err != nil {
			return err
		}
	}
	if err := s.SetAddresses(c.plan.addresses); err != nil { // they are the host's, so a rollback keeps them
		return err
	}
	_, refused, err := syncTunnel(s, c.plan.tunnel, c.plan.peers)
	c.plan.warnRefused(refused)
	return err
}

// warnRefused reports peers that could not be set. They are no reason to leave out the others.
func (pl *plan) warnRefused(refused programs.PeerErrors) {
	for _, r := range refused {
		at := pl.zones.named(r.Endpoint)
		pl.report.Peers = slices.DeleteFunc(pl.report.Peers, func(e netip.AddrPort) bool { return e == at })
		pl.report.GatherOnly = slices.DeleteFunc(pl.report.GatherOnly, func(e netip.AddrPort) bool { return e == at })
		pl.warn("the peer at %s is neither spread to nor gathered from: %v", at, r.Err)
	}
}

// readTunnel returns a tunnel, or nil if there is none, and its peers.
func readTunnel(s *programs.State, port uint16) (*programs.Tunnel, []programs.Peer, error) {
	tunnels, err := s.Tunnels()
	if err != nil {
		return nil, nil, err
	}
	peers, err := s.Peers()
	if err != nil {
		return nil, nil, err
	}
	peers = peersOf(port, peers)
	for i := range tunnels {
		if tunnels[i].Port == port {
			return &tunnels[i], peers, nil
		}
	}
	return nil, peers, nil
}

// peersOf returns the peers of one tunnel.
func peersOf(port uint16, all []programs.Peer) (peers []programs.Peer) {
	for _, p := range all {
		if p.Tunnel == port {
			peers = append(peers, p)
		}
	}
	return peers
}

// byEndpoint indexes the peers of one tunnel.
func byEndpoint(peers []programs.Peer) map[netip.AddrPort]*programs.Peer {
	all := make(map[netip.AddrPort]*programs.Peer, len(peers))
	for i := range peers {
		all[peers[i].Endpoint] = &peers[i]
	}
	return all
}

// syncTunnel writes the differences to the wanted tunnel and peers, and reports whether there were any. It goes on after the refused peers.
func syncTunnel(s *programs.State, tunnel programs.Tunnel, peers []programs.Peer) (changed bool, refused programs.PeerErrors, err error) {
	current, present, err := readTunnel(s, tunnel.Port)
	if err != nil {
		return false, nil, err
	}
	wanted, existing := byEndpoint(peers), byEndpoint(present)
	// Remove old peers first: a new peer may have the address of a removed one.
	for _, p := range present {
		if wanted[p.Endpoint] == nil {
			changed = true
			if err := s.DeletePeer(tunnel.Port, p.Endpoint); err != nil {
				return true, nil, err
			}
		}
	}
	wide := tunnel
	if current != nil { // keep the old lanes until all peers have new ones
		wide.Lanes = slices.Compact(slices.Sorted(slices.Values(slices.Concat(current.Lanes, tunnel.Lanes))))
	}
	if current == nil || !sameTunnel(*current, wide) {
		changed = true
		if err := s.SetTunnel(wide); err != nil {
			return true, nil, err
		}
	}
	others := changedPeers(peers, existing)
	if err := s.SetPeers(others); err != nil && !errors.As(err, &refused) {
		return true, nil, err
	}
	changed = changed || len(others) > len(refused) // a peer that is refused again and again is no change
	for _, r := range refused {
		if existing[r.Endpoint] == nil {
			continue
		}
		changed = true // its entry may have ports that the tunnel gives up
		if err := s.DeletePeer(tunnel.Port, r.Endpoint); err != nil {
			return true, nil, err
		}
	}
	if sameTunnel(wide, tunnel) {
		return changed, refused, nil
	}
	return true, refused, s.SetTunnel(tunnel)
}

// changedPeers returns the peers that must be written: first the existing ones, which always fit,
// then new ones.
func changedPeers(peers []programs.Peer, existing map[netip.AddrPort]*programs.Peer) (others []programs.Peer) {
	var fresh []programs.Peer
	for _, p := range peers {
		was := existing[p.Endpoint]
		switch {
		case p.First != 0:
		case was != nil:
			p.First = was.First
		default:
			p.First = rand.Uint32() // see programs.Peer.First
		}
		switch {
		case was == nil:
			fresh = append(fresh, p)
		case !samePeer(p, *was):
			others = append(others, p)
		}
	}
	return append(others, fresh...)
}

// sameTunnel compares tunnels with sorted lanes.
func sameTunnel(a, b programs.Tunnel) bool {
	return a.Port == b.Port && slices.Equal(a.Lanes, b.Lanes)
}

// samePeer ignores the order of the lanes: ports that a peer had before keep their places.
func samePeer(a, b programs.Peer) bool {
	return a.Endpoint == b.Endpoint && a.ProbeKeys == b.ProbeKeys && a.Gather == b.Gather && a.Stalled == b.Stalled && a.Unseen == b.Unseen &&
		slices.Equal(slices.Sorted(slices.Values(a.Lanes)), slices.Sorted(slices.Values(b.Lanes)))
}

// attachPrograms attaches gather before spread, so that answers to lane ports are understood from the first packet on.
func (c *change) attachPrograms(d device, s *programs.Spread) error {
	type part struct {
		point   hook.AttachPoint
		program *ebpf.Program
	}
	var on []part
	off := []hook.AttachPoint{hook.Ingress, hook.XDP}
	switch d.gather {
	case GatherXDP:
		on, off = append(on, part{hook.XDP, s.XDP()}), off[:1]
	default:
		on, off = append(on, part{hook.Ingress, s.Ingress()}), off[1:]
	}
	on = append(on, part{hook.Egress, s.Egress()})
	for _, p := range on {
		if err := c.step(p.point.String()); err != nil {
			return err
		}
		if err := c.attach(d, p.point, p.program); err != nil {
			return err
		}
	}
	if err := c.step("detach"); err != nil {
		return err
	}
	for _, point := range off {
		if err := c.hook(d, point).Detach(); err != nil {
			return err
		}
	}
	return nil
}

func (c *change) hook(d device, point hook.AttachPoint) hook.Hook {
	return c.pins.hook(d.name, d.index, point, c.host.kind)
}

// attach attaches one program. Its rollback restores the previous one.
func (c *change) attach(d device, point hook.AttachPoint, p *ebpf.Program) error {
	h := c.hook(d, point)
	before, err := h.Status()
	if err != nil {
		return err
	}
	var old *ebpf.Program
	if before.State == hook.Attached {
		// The old program is freed once it is replaced, unless this process opens it, which needs CAP_SYS_ADMIN. Without that
		// the new program stays if a later step fails. It does the same as the old one, with the same maps.
		if old, err = ebpf.NewProgramFromID(before.Program); err != nil && !errors.Is(err, os.ErrPermission) {
			return fmt.Errorf("opening the attached program: %w", err)
		}
	}
	c.onFailure(func() error {
		switch {
		case old != nil:
			defer old.Close()
			return h.Attach(old)
		case before.State == hook.Attached:
			return nil
		default:
			return h.Detach()
		}
	})
	if err := h.Attach(p); err != nil {
		if point == hook.XDP {
			return fmt.Errorf("%w; to gather with tc instead, use --gather tc", err)
		}
		return err
	}
	_, err = c.plan.reportHook(d, h)
	return err
}
