// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/measurement"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/xdp"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// maxLookups is the number of peers whose routes are looked up for a choice.
const maxLookups = 64

// Config configures a Port.
type Config struct {
	// UDP carries everything that does not use AF_XDP. The Port owns it after a successful Open.
	UDP underlay.Port
	// Mode is the configured mode.
	Mode config.UnderlayMode
	// Device is the network device whose queues AF_XDP uses. If it is empty, the Port chooses the device that reaches
	// most peers.
	Device string
	// Measurements is the directory of the measurements by which auto chooses (package measurement).
	Measurements string
	// Mark is the SO_MARK of the UDP port.
	Mark uint32
	// BusyPoll makes lanes keep their CPU while traffic flows (package busypoll).
	BusyPoll bool
	Log      *slog.Logger
}

// Port is an xdp.Port that chooses its device and mode. Any goroutine may call its methods.
type Port struct {
	*xdp.Port
	config Config

	counters    programCounters // sums over the current program and all earlier ones
	searching   atomic.Bool     // no peer has led to a device, so another one may
	manyIndices atomic.Bool     // there were more indices than a program checks
	bound       bound           // belongs to the goroutine that chooses

	mu       sync.Mutex // guards the fields below; nothing else is called with it
	settings settings
	choice   choice
	everXDP  bool     // AF_XDP was chosen at least once
	program  *program // of the choice
}

// settings are set by others.
type settings struct {
	mode  config.UnderlayMode
	mark  uint32
	peers underlay.Peers // nil until the device has restored all sessions
}

// bound is the effect of the last choice.
type bound struct {
	wanted       xdp.Binding // without its program
	checkIndices bool        // the program checks receiver indices
	program      *program    // nil for none
}

var (
	_ underlay.Port     = (*Port)(nil)
	_ underlay.Selector = (*Port)(nil)
	_ underlay.Switcher = (*Port)(nil)
)

// Open returns a port that uses UDP until SetPeers, and the chosen path from then on. It belongs to
// the calling thread's network namespace. Errors are from xdp.Open; after an error the caller still
// owns Config.UDP.
func Open(c Config) (*Port, error) {
	p := &Port{config: c, settings: settings{mode: c.Mode, mark: c.Mark}}
	x, err := xdp.Open(xdp.Config{
		UDP: c.UDP, Choose: p.choose, Changed: p.onLanesChanged, MayWait: mayWait, Mark: c.Mark, BusyPoll: c.BusyPoll,
	})
	if err != nil {
		return nil, err
	}
	p.Port = x
	return p, nil
}

// mayWait reports whether a datagram is no data message, so that a flood of its kind should not wake lanes.
func mayWait(datagram []byte) bool {
	kind, reason := wire.Classify(datagram)
	return kind != wire.TypeData || reason != drop.None
}

// set changes the settings, and requests a new choice soon.
func (p *Port) set(change func(*settings)) {
	p.mu.Lock()
	change(&p.settings)
	p.mu.Unlock()
	p.Reconsider()
}

// SetMode implements underlay.Switcher.
func (p *Port) SetMode(mode config.UnderlayMode) { p.set(func(s *settings) { s.mode = mode }) }

// SetPeers implements underlay.Switcher.
func (p *Port) SetPeers(peers underlay.Peers) { p.set(func(s *settings) { s.peers = peers }) }

// EndpointAdded implements underlay.Switcher.
func (p *Port) EndpointAdded(config.Endpoint) {
	if p.searching.Load() {
		p.Reconsider()
	}
}

// SetMark implements underlay.Port.
func (p *Port) SetMark(mark uint32) error {
	if err := p.Port.SetMark(mark); err != nil {
		return err
	}
	p.set(func(s *settings) { s.mark = mark })
	return nil
}

// choose implements xdp.Config.Choose.
func (p *Port) choose() xdp.Binding {
	p.mu.Lock()
	s, before := p.settings, p.choice
	p.mu.Unlock()
	now, next := p.decide(&s)
	if err := p.bind(&next, s.peers); err != nil {
		now.xdp, now.reason = false, err.Error()
	}
	p.mu.Lock()
	p.choice, p.program, p.everXDP = now, p.bound.program, p.everXDP || now.xdp
	p.mu.Unlock()
	if now != before {
		p.logChoice(&now, s.mode)
	}
	return next
}

// notYet is the reason for UDP in a new port.
const notYet = "the port was opened just now"

// decide makes the choice, and returns the binding for it without its program.
func (p *Port) decide(s *settings) (choice, xdp.Binding) {
	p.searching.Store(false)
	q := query{device: p.config.Device, currentDevice: p.bound.wanted.Device, mark: s.mark}
	switch {
	case s.mode == config.UnderlayUDP:
		return choice{reason: asConfigured}, xdp.Binding{Final: true}
	case s.peers == nil:
		return choice{reason: notYet}, xdp.Binding{Final: true}
	case s.mode == config.UnderlayAuto && !measurement.Exists(p.config.Measurements):
		return choice{reason: measurement.ErrNone.Error()}, xdp.Binding{Final: true} // `ropewalk set` makes a new choice
	case s.mode == config.UnderlayAuto:
		q.measurements = p.config.Measurements
	}
	p.searching.Store(q.device == "") // before the peers are read, so that none is missed
	q.peers = s.peers.Endpoints(maxLookups)
	f := gatherFacts(&q)
	p.searching.Store(f.device.Name == "" && q.device == "")
	now := choose(s.mode, &f)
	if !now.xdp {
		return now, xdp.Binding{}
	}
	return now, xdp.Binding{Device: f.device.Name, Mode: now.mode, FrameSize: xsk.FrameSizeFor(f.device.MTU)}
}

// bind adds the program to a binding with a device: the present one, or a new one if the binding has changed. If that fails, the
// binding becomes a final one without a device, until the settings change.
func (p *Port) bind(next *xdp.Binding, peers underlay.Peers) error {
	b, check := &p.bound, !p.manyIndices.Load()
	if *next != b.wanted || check != b.checkIndices {
		if b.program != nil {
			peers.Guard(nil) // the xdp.Port closes the former program
		}
		*b = bound{wanted: *next, checkIndices: check}
	}
	if next.Device == "" {
		return nil
	}
	if b.program == nil {
		program, err := load(&programs.ClassifyOptions{
			ListenPort: p.config.UDP.LocalPort(), MaxFrame: xdp.MaxFrame(next.FrameSize), CheckIndices: check,
		}, p.onManyIndices, &p.counters)
		if err != nil {
			*next = xdp.Binding{Final: true}
			return err
		}
		b.program = program
		peers.Guard(program)
	}
	next.Program = b.program
	return nil
}

// onManyIndices requests a program that does not check indices.
func (p *Port) onManyIndices() {
	if !p.manyIndices.Swap(true) {
		p.Reconsider()
	}
}

// onLanesChanged implements xdp.Config.Changed. It logs the effect of the choice.
func (p *Port) onLanesChanged(ready int, why error) {
	device, lanes := p.bound.wanted.Device, p.config.UDP.Lanes()
	switch {
	case ready == 0:
		p.config.Log.Warn("AF_XDP unavailable, using UDP sockets until a retry succeeds", "device", device, "reason", why)
	case why != nil:
		p.config.Log.Warn("AF_XDP opened for some lanes only, the others use UDP sockets until a retry succeeds", "device", device, "xdp_lanes", ready, "lanes", lanes, "reason", why)
	default:
		p.config.Log.Info("data messages use AF_XDP", "device", device, "lanes", ready)
	}
}

// logChoice logs the choice that was made for a mode.
func (p *Port) logChoice(c *choice, mode config.UnderlayMode) {
	path, level := config.UnderlayUDP, slog.LevelDebug
	switch {
	case c.xdp:
		path, level = config.UnderlayXDP, slog.LevelInfo
	case mode == config.UnderlayXDP && (c.device != "" || p.config.Device != "" && c.reason != notYet):
		level = slog.LevelWarn
	case mode == config.UnderlayAuto && c.device != "":
		level = slog.LevelInfo
	}
	p.config.Log.Log(context.Background(), level, "underlay path selected", "path", path, "device", c.device, "reason", c.reason)
}
