// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/xdp"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// mostPeers is how many peers' routes are looked up for a choice.
const mostPeers = 64

// Config says how to open a Port.
type Config struct {
	// UDP carries what does not go by AF_XDP. The Port owns it once opened.
	UDP underlay.Port
	// Mode is the way that is wanted.
	Mode config.UnderlayMode
	// Device is the network device whose queues AF_XDP uses; empty for the one that most peers are reached by.
	Device string
	// ReceiveCPUs are the processors over which the kernel is to spread what UDP sockets receive.
	ReceiveCPUs config.ReceiveCPUs
	// Mark is the SO_MARK that the UDP port has.
	Mark uint32
	// BusyPoll has lanes hold their processor while traffic flows (package linger).
	BusyPoll bool
	Log      *slog.Logger
}

// Port is an xdp.Port that chooses its device and way. Its methods may be called by any goroutine.
type Port struct {
	*xdp.Port
	*peerRegistry
	log    *slog.Logger
	device string
	port   uint16

	tally tally // of all programs that there were

	mu      sync.Mutex // guards all below
	mode    config.UnderlayMode
	want    config.ReceiveCPUs
	mark    uint32
	now     choice
	share   cpuSelection
	express bool        // AF_XDP was chosen once
	where   string      // the device that it is about
	wanted  xdp.Binding // without a program
	check   bool        // the program is to check receiver indices
	over    []int       // the processors that it is to spread over
	refused refusal     // of the program for wanted
	way     xdp.Binding // wanted with its program, or the zero Way
	program *program
}

// refusal is why there is no program, and until when none is tried again.
type refusal struct {
	err   error
	until time.Time
}

// again is how long it takes until a program that could not be had is tried again, if there is reason to choose.
const again = time.Minute

var (
	_ underlay.Port     = (*Port)(nil)
	_ underlay.Selector = (*Port)(nil)
	_ underlay.Guard    = (*Port)(nil)
	_ underlay.Switcher = (*Port)(nil)
)

// Open returns a port that goes by UDP until it is guarded (underlay.Guard), and from then on by the way that it chooses. It
// belongs to the calling thread's network namespace. Errors are xdp.Open's, after which Config.UDP is still the caller's.
func Open(c Config) (*Port, error) {
	p := &Port{log: c.Log, device: c.Device, port: c.UDP.LocalPort(), mode: c.Mode, want: c.ReceiveCPUs, mark: c.Mark}
	p.peerRegistry = newPeerRegistry(p.reconsider)
	x, err := xdp.Open(xdp.Config{UDP: c.UDP, Choose: p.choose, Changed: p.onLanesChanged, Mark: c.Mark, BusyPoll: c.BusyPoll})
	if err != nil {
		return nil, err
	}
	p.Port = x
	return p, nil
}

// reconsider has the choice made anew, soon.
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

// SetReceiveCPUs implements underlay.Switcher.
func (p *Port) SetReceiveCPUs(cpus config.ReceiveCPUs) {
	p.mu.Lock()
	p.want = cpus
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
	now, s, f, check := p.gatherFacts()
	next := xdp.Binding{Final: f.device == "" && f.noDevice == nil}
	switch {
	case now.xdp:
		next = xdp.Binding{Device: f.device, Mode: now.mode, FrameSize: frameSize(f.mtu)}
	case len(s.cpus) > 0:
		next = xdp.Binding{Device: f.device, NoSockets: true}
	}
	if next != p.wanted || check != p.check || !slices.Equal(s.cpus, p.over) {
		p.setClassifier(nil) // the xdp.Port closes the program
		p.wanted, p.check, p.over, p.refused = next, check, s.cpus, refusal{}
		p.way, p.program = next, nil
	}
	if next.Device != "" && p.program == nil {
		now, s = p.openProgram(now, s, leavesChecksums(f.driver))
	}
	p.express = p.express || now.xdp
	if now != p.now || f.device != p.where {
		p.now, p.where = now, f.device
		p.logChoice()
	}
	if s.news() != p.share.news() {
		p.logCPUs(&s)
	}
	p.share = s
	return p.way
}

// openProgram gives the way its program, or gives it up. The caller holds mu.
func (p *Port) openProgram(now choice, s cpuSelection, unsummed bool) (choice, cpuSelection) {
	if r := &p.refused; r.err == nil || !time.Now().Before(r.until) {
		program, err := load(&programs.ClassifyOptions{
			ListenPort: p.port, MaxFrame: xdp.MaxFrame(p.wanted.FrameSize), CheckIndices: p.check, CPUs: p.over, ChecksumPartial: unsummed,
		}, &p.tally)
		if err == nil {
			p.setClassifier(program)
			p.program, p.way = program, p.wanted
			p.way.Program = program
			return now, s
		}
		p.refused = refusal{err, time.Now().Add(again)}
	}
	p.way = xdp.Binding{}
	if p.wanted.NoSockets {
		return now, cpuSelection{reason: p.refused.err.Error()}
	}
	if s.reason != "" { // it said that AF_XDP has the messages
		s = cpuSelection{reason: p.refused.err.Error()}
	}
	return choice{reason: p.refused.err.Error()}, s
}

// notYet is why a port begins with UDP.
const notYet = "the port was opened just now"

// gatherFacts chooses. The caller holds mu.
func (p *Port) gatherFacts() (now choice, s cpuSelection, f facts, check bool) {
	most, spreads := mostPeers, p.want.On()
	if p.mode == config.UnderlayUDP && !spreads {
		most = 0
	}
	ready, check, peers := p.state(most)
	switch {
	case most == 0:
		return choice{reason: asConfigured}, s, f, check
	case !ready:
		return choice{reason: notYet}, cpuSelection{reason: notYet}, f, check
	}
	f = gather(&query{device: p.device, now: p.way.Device, peers: peers, mark: p.mark, cpus: spreads})
	now = choose(p.mode, &f)
	if spreads {
		s = chooseCPUs(p.want, &f, now)
	}
	return now, s, f, check
}

// onLanesChanged implements xdp.Config.Changed: it logs what became of the choice.
func (p *Port) onLanesChanged(ready int, why error) {
	p.mu.Lock()
	alone, over := p.way.NoSockets, p.over
	p.mu.Unlock()
	switch {
	case alone && why != nil:
		p.log.Warn(notSpread, "reason", why)
		return
	case alone:
		p.log.Info("the kernel's part of receiving is spread over processors", "cpus", config.FormatCPUs(over))
		return
	case ready == 0:
		p.log.Warn("AF_XDP is not to be had: data messages go by UDP", "reason", why)
		return
	}
	args := []any{"lanes", ready}
	if why != nil {
		args = append(args, "others", why)
	}
	p.log.Info("data messages go by AF_XDP", args...)
}

// logChoice logs the choice. The caller holds mu.
func (p *Port) logChoice() {
	way, level := config.UnderlayUDP, slog.LevelDebug
	switch {
	case p.now.xdp:
		way, level = config.UnderlayXDP, slog.LevelInfo
	case p.mode == config.UnderlayXDP && (p.where != "" || p.device != "" && p.now.reason != notYet):
		level = slog.LevelWarn
	}
	p.log.Log(context.Background(), level, "underlay path selected", "path", way, "device", p.where, "reason", p.now.reason)
}

const notSpread = "the kernel's part of receiving is not spread over processors"

// logCPUs logs why nothing is spread. What is spread, became says.
func (p *Port) logCPUs(s *cpuSelection) {
	switch {
	case s.reason == "" || s.reason == notYet:
	case p.want.Auto:
		p.log.Info(notSpread, "reason", s.news())
	default:
		p.log.Warn(notSpread, "reason", s.news())
	}
}
