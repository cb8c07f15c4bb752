// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/xdp"
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
	// Mark is the SO_MARK of the UDP port.
	Mark uint32
	// BusyPoll makes lanes keep their CPU while traffic flows (package busypoll).
	BusyPoll bool
	Log      *slog.Logger
}

// Port is an xdp.Port that chooses its device and mode. Any goroutine may call its methods.
type Port struct {
	*xdp.Port
	*peerRegistry
	log    *slog.Logger
	device string
	port   uint16
	lanes  int

	counters programCounters // sums over the current program and all earlier ones

	mu           sync.Mutex // guards the fields below
	mode         config.UnderlayMode
	mark         uint32
	choice       choice
	everXDP      bool        // AF_XDP was chosen at least once
	chosenDevice string      // device of the choice
	wanted       xdp.Binding // the wanted binding, without its program
	checkIndices bool        // the program checks receiver indices
	loadFailure  loadFailure // of the wanted binding's program
	binding      xdp.Binding // wanted with its program, or the zero Binding
	program      *program
}

// loadFailure is the reason why there is no program, and the time of the next attempt.
type loadFailure struct {
	err     error
	retryAt time.Time
}

// loadRetry is the time until a program that failed to load may be loaded again, at the next choice.
const loadRetry = time.Minute

var (
	_ underlay.Port     = (*Port)(nil)
	_ underlay.Selector = (*Port)(nil)
	_ underlay.Guard    = (*Port)(nil)
	_ underlay.Switcher = (*Port)(nil)
)

// Open returns a port that uses UDP until it is guarded (underlay.Guard), and the chosen path from then on. It belongs
// to the calling thread's network namespace. Errors are those of xdp.Open; after them the caller still owns Config.UDP.
func Open(c Config) (*Port, error) {
	p := &Port{log: c.Log, device: c.Device, port: c.UDP.LocalPort(), lanes: c.UDP.Lanes(), mode: c.Mode, mark: c.Mark}
	p.peerRegistry = newPeerRegistry(p.reconsider)
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

// reconsider requests a new choice soon.
func (p *Port) reconsider() {
	if p.Port != nil {
		p.Reconsider()
	}
}

// SetMode implements underlay.Switcher.
func (p *Port) SetMode(mode config.UnderlayMode) {
	p.mu.Lock()
	p.mode = mode
	p.mu.Unlock()
	p.reconsider()
}

// SetMark implements underlay.Port.
func (p *Port) SetMark(mark uint32) error {
	if err := p.Port.SetMark(mark); err != nil {
		return err
	}
	p.mu.Lock()
	p.mark = mark
	p.mu.Unlock()
	p.reconsider()
	return nil
}

// choose implements xdp.Config.Choose.
func (p *Port) choose() xdp.Binding {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, f, check := p.decide()
	next := xdp.Binding{Final: f.device == "" && f.deviceErr == nil}
	if now.xdp {
		next = xdp.Binding{Device: f.device, Mode: now.mode, FrameSize: frameSize(f.mtu)}
	}
	if next != p.wanted || check != p.checkIndices {
		p.setClassifier(nil) // the xdp.Port closes the former program
		p.wanted, p.checkIndices, p.loadFailure = next, check, loadFailure{}
		p.binding, p.program = next, nil
	}
	if now.xdp && p.program == nil {
		now = p.openProgram(now)
	}
	p.everXDP = p.everXDP || now.xdp
	if now != p.choice || f.device != p.chosenDevice {
		p.choice, p.chosenDevice = now, f.device
		p.logChoice()
	}
	return p.binding
}

// openProgram loads the program of the wanted binding. If this fails, the choice falls back to UDP. The caller holds
// mu.
func (p *Port) openProgram(now choice) choice {
	if r := &p.loadFailure; r.err == nil || !time.Now().Before(r.retryAt) {
		program, err := load(&programs.ClassifyOptions{
			ListenPort: p.port, MaxFrame: xdp.MaxFrame(p.wanted.FrameSize), CheckIndices: p.checkIndices,
		}, &p.counters)
		if err == nil {
			p.setClassifier(program)
			p.program, p.binding = program, p.wanted
			p.binding.Program = program
			return now
		}
		p.loadFailure = loadFailure{err, time.Now().Add(loadRetry)}
	}
	p.binding = xdp.Binding{}
	return choice{reason: p.loadFailure.err.Error()}
}

// notYet is the reason for UDP in a new port.
const notYet = "the port was opened just now"

// decide makes the choice. The caller holds mu.
func (p *Port) decide() (now choice, f facts, check bool) {
	most := maxLookups
	if p.mode == config.UnderlayUDP {
		most = 0
	}
	ready, check, peers := p.state(most)
	switch {
	case most == 0:
		return choice{reason: asConfigured}, f, check
	case !ready:
		return choice{reason: notYet}, f, check
	}
	f = gatherFacts(&query{device: p.device, currentDevice: p.binding.Device, peers: peers, mark: p.mark})
	return choose(p.mode, &f), f, check
}

// onLanesChanged implements xdp.Config.Changed. It logs the effect of the choice.
func (p *Port) onLanesChanged(ready int, why error) {
	p.mu.Lock()
	device := p.binding.Device
	p.mu.Unlock()
	switch {
	case ready == 0:
		p.log.Warn("AF_XDP unavailable, using UDP sockets until a retry succeeds", "device", device, "reason", why)
	case why != nil:
		p.log.Warn("AF_XDP opened for some lanes only, the others use UDP sockets until a retry succeeds", "device", device, "xdp_lanes", ready, "lanes", p.lanes, "reason", why)
	default:
		p.log.Info("data messages use AF_XDP", "device", device, "lanes", ready)
	}
}

// logChoice logs the choice. The caller holds mu.
func (p *Port) logChoice() {
	path, level := config.UnderlayUDP, slog.LevelDebug
	switch {
	case p.choice.xdp:
		path, level = config.UnderlayXDP, slog.LevelInfo
	case p.mode == config.UnderlayXDP && (p.chosenDevice != "" || p.device != "" && p.choice.reason != notYet):
		level = slog.LevelWarn
	}
	p.log.Log(context.Background(), level, "underlay path selected", "path", path, "device", p.chosenDevice, "reason", p.choice.reason)
}
