// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/ropewalk/ropewalk/pkg/datapath"
	"github.com/ropewalk/ropewalk/pkg/datapath/hook"
)

// unknown is the name of a tunnel of which nothing but its port is known.
const unknown = "?"

// Report is what an Attach came to.
type Report struct {
	Device string `json:"device"`
	Tunnel string `json:"tunnel"` // its name, "?" if unknown
	Port   uint16 `json:"port"`
	// Lanes are the ports that flows are spread over, in order.
	Lanes []uint16 `json:"lanes"`
	// Peers are the endpoints of those that flows are spread towards.
	Peers []netip.AddrPort `json:"peers"`
	// Quiet are the endpoints of those that are gathered from only.
	Quiet []netip.AddrPort `json:"quiet,omitempty"`
	// Skipped are peers that are not, until a later Attach, or Watch, finds them otherwise.
	Skipped []Skipped `json:"skipped,omitempty"`
	// Spread and Gather say by what kind of hook ("tcx"); Gather is "none" where there is none.
	Spread   string   `json:"spread"`
	Gather   string   `json:"gather"`
	Warnings []string `json:"warnings,omitempty"`
}

// Skipped is a peer that is left alone.
type Skipped struct {
	Key string `json:"key"` // public, base64
	Why string `json:"why"`
}

// Attach spreads a tunnel's packets on a device and gathers those of its peers. On one where that is done already it
// changes ports and peers, replaces the programs in place, and attaches again what lost its device. When it fails,
// everything is as it was before, but for programs already replaced, where the process has no CAP_SYS_ADMIN to hold on to the
// old ones.
//
// Where another process is at work, it waits until that has ended, and gives up with ctx, or after some seconds; so do
// Status and Detach. The error says what to do. It may wrap ErrInvalid, ErrNoDevice, ErrNoTunnel, hook.ErrNoFS, a *hook.BusyError,
// ebpf.ErrNotSupported, datapath.ErrFull or os.ErrPermission.
func (h *Host) Attach(ctx context.Context, cfg Config) (Report, error) {
	return h.attach(ctx, cfg, memory{})
}

// attach is Attach for a caller who keeps what is known from before.
func (h *Host) attach(ctx context.Context, cfg Config, known memory) (Report, error) {
	if _, err := h.mounted(); err != nil { // what is refused is refused before anything is mounted
		if _, err := h.plan(pins{}, cfg, memory{}); err != nil {
			return Report{}, describe(cfg, err)
		}
	}
	p, unlock, err := h.open(ctx)
	if err != nil {
		return Report{}, describe(cfg, err)
	}
	defer unlock()
	if len(cfg.named()) == 0 {
		known.at = p.canonicalPorts(cfg)
	}
	pl, err := h.plan(p, cfg, known)
	if err != nil {
		return Report{}, describe(cfg, err)
	}
	c := &change{host: h, pins: p, plan: pl}
	if err := c.do(); err != nil {
		return Report{}, describe(cfg, errors.Join(err, c.undo()))
	}
	return pl.report, nil
}

func describe(cfg Config, err error) error {
	return fmt.Errorf("spreading UDP port %d on %s: %w", cfg.Port, cfg.Device, err)
}

// open returns the pins, locked.
func (h *Host) open(ctx context.Context) (pins, func(), error) {
	root := h.FS
	if root == "" {
		var err error
		if root, err = hook.FS(); err != nil {
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

// change carries out a plan, and undoes what it did when a step fails.
type change struct {
	host  *Host
	pins  pins
	plan  *plan
	undos []func() error
}

func (c *change) undo() error {
	var errs []error
	for _, f := range slices.Backward(c.undos) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

func (c *change) onFailure(f func() error) { c.undos = append(c.undos, f) }

// step lets tests fail before a step.
func (c *change) step(name string) error {
	if c.host.between == nil {
		return nil
	}
	return c.host.between(name)
}

func (c *change) do() error {
	dir := c.pins.device(c.plan.cfg.Device)
	c.onFailure(func() error { hook.RemoveEmpty(c.pins.fs, dir); return nil })
	if err := hook.MakeOwn(c.pins.fs, dir); err != nil {
		return err
	}
	s, err := c.load()
	if err != nil {
		return err
	}
	defer s.Close()
	if err := c.configure(&s.State); err != nil {
		return err
	}
	return c.hookUp(s)
}

// load loads the programs with the device's state, old or new.
func (c *change) load() (*datapath.Spread, error) {
	if err := c.step("load"); err != nil {
		return nil, err
	}
	dir := c.pins.state(c.plan.cfg.Device)
	_, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		c.onFailure(func() error { return datapath.RemoveState(dir) })
	}
	return datapath.LoadSpread(datapath.SpreadOptions{L2: c.plan.ethernet, Gap: c.plan.cfg.Gap, PinDir: dir})
}

// configure makes the state say what the plan says of the tunnel.
func (c *change) configure(s *datapath.State) error {
	if err := c.step("configure"); err != nil {
		return err
	}
	dir := c.pins.state(c.plan.cfg.Device)
	before, peers, err := read(s, c.plan.cfg.Port)
	if err != nil {
		return err
	}
	c.onFailure(func() error { // s may be closed by then
		s, err := datapath.OpenState(dir)
		if err != nil {
			return err
		}
		defer s.Close()
		if before == nil {
			return s.RemoveTunnel(c.plan.cfg.Port)
		}
		_, err = settle(s, *before, peers)
		return err
	})
	_, err = settle(s, c.plan.tunnel, c.plan.peers)
	return err
}

// read returns a tunnel, or nil, and its peers.
func read(s *datapath.State, port uint16) (*datapath.Tunnel, []datapath.Peer, error) {
	tunnels, err := s.Tunnels()
	if err != nil {
		return nil, nil, err
	}
	peers, err := s.Peers()
	if err != nil {
		return nil, nil, err
	}
	peers = slices.DeleteFunc(peers, func(p datapath.Peer) bool { return p.Tunnel != port })
	for i := range tunnels {
		if tunnels[i].Port == port {
			return &tunnels[i], peers, nil
		}
	}
	return nil, peers, nil
}

// byEndpoint are the peers of one tunnel.
func byEndpoint(peers []datapath.Peer) map[netip.AddrPort]*datapath.Peer {
	all := make(map[netip.AddrPort]*datapath.Peer, len(peers))
	for i := range peers {
		all[peers[i].Endpoint] = &peers[i]
	}
	return all
}

// settle makes a tunnel and its peers be as given, and tells whether they were not. What is right already is left alone.
func settle(s *datapath.State, tunnel datapath.Tunnel, peers []datapath.Peer) (changed bool, err error) {
	now, present, err := read(s, tunnel.Port)
	if err != nil {
		return false, err
	}
	wanted, there := byEndpoint(peers), byEndpoint(present)
	// The old go first: one that moved may have the address of another that did.
	for _, p := range present {
		if wanted[p.Endpoint] == nil {
			changed = true
			if err := s.DeletePeer(tunnel.Port, p.Endpoint); err != nil {
				return true, err
			}
		}
	}
	wide := tunnel
	if now != nil { // its peers may not lose their lanes before they have others
		wide.Lanes = slices.Compact(slices.Sorted(slices.Values(slices.Concat(now.Lanes, tunnel.Lanes))))
	}
	if now == nil || !sameTunnel(*now, wide) {
		changed = true
		if err := s.SetTunnel(wide); err != nil {
			return true, err
		}
	}
	if others := unlike(peers, there); len(others) > 0 {
		changed = true
		if err := s.SetPeers(others); err != nil {
			return true, err
		}
	}
	if sameTunnel(wide, tunnel) {
		return changed, nil
	}
	return true, s.SetTunnel(tunnel)
}

// unlike are the peers that are not there like that, the new ones last: where there is no room for all, the others need none.
func unlike(peers []datapath.Peer, there map[netip.AddrPort]*datapath.Peer) (others []datapath.Peer) {
	var fresh []datapath.Peer
	for _, p := range peers {
		was := there[p.Endpoint]
		switch {
		case p.First != 0:
		case was != nil:
			p.First = was.First
		default:
			p.First = rand.Uint32() // hosts shall differ in it
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

// sameTunnel compares tunnels whose lanes are in ascending order.
func sameTunnel(a, b datapath.Tunnel) bool {
	return a.Port == b.Port && a.MarkMask == b.MarkMask && slices.Equal(a.Lanes, b.Lanes)
}

func samePeer(a, b datapath.Peer) bool {
	return a.Endpoint == b.Endpoint && a.Gather == b.Gather && slices.Equal(a.Lanes, b.Lanes)
}

// hookUp attaches gather before spread, so that answers to lane ports are understood when the first is used.
func (c *change) hookUp(s *datapath.Spread) error {
	type part struct {
		place   hook.Place
		program *ebpf.Program
	}
	var on []part
	off := []hook.Place{hook.Ingress, hook.XDP}
	switch c.plan.cfg.Gather {
	case GatherXDP:
		on, off = append(on, part{hook.XDP, s.XDP()}), off[:1]
	case GatherNone:
	default:
		on, off = append(on, part{hook.Ingress, s.Ingress()}), off[1:]
	}
	on = append(on, part{hook.Egress, s.Egress()})
	for _, p := range on {
		if err := c.step(p.place.String()); err != nil {
			return err
		}
		kind, err := c.attach(p.place, p.program)
		if err != nil {
			return err
		}
		if p.place == hook.Egress {
			c.plan.report.Spread = kind
		} else {
			c.plan.report.Gather = kind
		}
	}
	c.plan.report.Gather = orNone(c.plan.report.Gather)
	if err := c.step("detach"); err != nil {
		return err
	}
	for _, place := range off {
		if err := c.hook(place).Detach(); err != nil {
			return err
		}
	}
	return nil
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func (c *change) hook(place hook.Place) hook.Hook {
	return c.pins.hook(c.plan.cfg.Device, c.plan.index, place, c.host.kind)
}

// attach attaches one program; undone, what was there before is there again.
func (c *change) attach(place hook.Place, p *ebpf.Program) (kind string, err error) {
	h := c.hook(place)
	before, err := h.Status()
	if err != nil {
		return "", err
	}
	var old *ebpf.Program
	if before.State == hook.Attached {
		// Nothing else holds the old one once it is replaced; without it, it cannot come back. Without CAP_SYS_ADMIN nobody gets
		// hold of it: the new one then stays when a later step fails, and does what the old one did, by the same maps.
		if old, err = ebpf.NewProgramFromID(before.Program); err != nil && !errors.Is(err, os.ErrPermission) {
			return "", fmt.Errorf("holding on to the present program: %w", err)
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
		if place == hook.XDP {
			return "", fmt.Errorf("%w; gather by tc instead: --gather tc", err)
		}
		return "", err
	}
	now, err := h.Status()
	return now.Kind.String(), err
}
