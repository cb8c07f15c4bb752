// SPDX-License-Identifier: Apache-2.0

package meshmode

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/cluster/proof"
	"github.com/ropewalk/ropewalk/pkg/ebpf/guard"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
)

// Programs are the methods of an open guard.Guard.
type Programs interface {
	SetPrefixes(classes map[netip.Prefix]programs.GuardClass) error
	SetStrict(strict bool) error
	Attach(tunnel string) ([]guard.Attached, error)
	Counts() (beside, tunneled programs.GuardCounts, err error)
	Close() error
}

// GuardHost is where the guard is.
type GuardHost interface {
	Open() (Programs, error)
	// Remove detaches the guard, and removes what it has pinned. It returns nil if there is none.
	Remove() error
}

// BPFFS is the GuardHost of the process's network namespace: a BPF file system; "": the system's.
type BPFFS string

// Open implements GuardHost.
func (fs BPFFS) Open() (Programs, error) { return guard.Open(string(fs)) }

// Remove implements GuardHost.
func (fs BPFFS) Remove() error { return guard.Remove(string(fs)) }

// Guard keeps the guard at all devices by which packets leave the node. Where it cannot be, the
// node works without it, and Facts say why. It is safe for concurrent use.
type Guard struct {
	Host   GuardHost
	Tunnel string
	Log    *slog.Logger

	mu       sync.Mutex
	programs Programs // nil: not open
	setting  error    // the last After failed so, or a Before since
	attached error    // the last attachment failed so
	behind   []string
	names    map[int]string // of devices, by index
	applied  map[netip.Prefix]programs.GuardClass
}

// GuardState is the guard's desired state. Its methods do not change it.
type GuardState struct {
	Classes map[netip.Prefix]programs.GuardClass
	Strict  bool
}

// Call Before before the routes change to a state, and After when they have. A packet is never
// taken for one beside the tunnel because its route is about to change. In the strict state, a
// prefix is dropped before its route exists, and the state ends before routes go.
func (g *Guard) Before(s GuardState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	classes := s.Classes
	if !s.Strict {
		classes = g.withoutNewRemote(classes)
	}
	err := g.set(func(p Programs) error {
		err := p.SetPrefixes(classes)
		if err == nil {
			g.applied = classes
		}
		if !s.Strict {
			err = errors.Join(err, p.SetStrict(false))
		}
		return err
	})
	if err != nil { // only After heals a fault: it sets all
		g.note(&g.setting, err)
	}
}

// withoutNewRemote returns classes in which a prefix is not remote yet that was not so before.
func (g *Guard) withoutNewRemote(classes map[netip.Prefix]programs.GuardClass) map[netip.Prefix]programs.GuardClass {
	soon := make(map[netip.Prefix]programs.GuardClass, len(classes))
	for p, class := range classes {
		if class == programs.GuardClassRemote && g.applied[p] != programs.GuardClassRemote {
			class = programs.GuardClassUnknown
		}
		soon[p] = class
	}
	return soon
}

// After completes Before, and attaches the guard to devices that are new.
func (g *Guard) After(s GuardState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.note(&g.setting, g.set(func(p Programs) error {
		err := p.SetPrefixes(s.Classes)
		if err == nil {
			g.applied = s.Classes
		}
		return errors.Join(err, p.SetStrict(s.Strict))
	}))
	g.attach()
}

// Attach attaches the guard to devices that are new, and comes to the front again where another
// program was attached since.
func (g *Guard) Attach() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.applied != nil { // else it may be an earlier agent's, with prefixes that this one does not know
		g.attach()
	}
}

func (g *Guard) attach() {
	if g.programs == nil {
		return
	}
	attached, err := g.programs.Attach(g.Tunnel)
	if g.note(&g.attached, err); err != nil {
		return
	}
	g.behind, g.names = nil, make(map[int]string, len(attached))
	for _, a := range attached {
		g.names[a.Index] = a.Name
		for _, name := range a.Behind {
			g.behind = append(g.behind, fmt.Sprintf("%s at %s", name, a.Name))
		}
	}
}

// set calls a function with the programs, which it opens first.
func (g *Guard) set(f func(Programs) error) error {
	if g.programs == nil {
		p, err := g.Host.Open()
		if err != nil {
			return err
		}
		g.programs = p
	}
	return f(g.programs)
}

// note keeps an error until it is healed, and logs it once.
func (g *Guard) note(fault *error, err error) {
	if err != nil && *fault == nil {
		g.Log.Warn("watching what leaves this node failed, retrying: nobody knows whether packets to other nodes' pods leave unencrypted", "error", err)
	}
	*fault = err
}

// Facts returns what the guard has seen, and its counts.
func (g *Guard) Facts() (f proof.GuardFacts, counts GuardCounts) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.Behind = g.behind
	if fault := cmp.Or(g.setting, g.attached); fault != nil {
		f.Fault = fault.Error()
	}
	if g.programs == nil || g.applied == nil {
		if f.Fault == "" {
			f.Fault = "the guard does not run yet"
		}
		return f, counts
	}
	var err error
	if counts.Beside, counts.Tunneled, err = g.programs.Counts(); err != nil {
		f.Fault = err.Error()
		return f, counts
	}
	counts.Known = true
	f.Beside = g.packet(counts.Beside[programs.GuardClassRemote].Last)
	f.Clear = g.packet(counts.Beside[programs.GuardClassUnknown].Last)
	f.Tunneled = counts.Tunneled[programs.GuardClassLocal].Last.Time
	return f, counts
}

// GuardCounts are the packets that the guard has counted, by class.
type GuardCounts struct {
	Known            bool
	InFront          bool // the guard is at all devices, and in front of other programs; set by Prover.Seen
	Beside, Tunneled programs.GuardCounts
}

func (g *Guard) packet(p programs.GuardPacket) proof.Packet {
	if p.Time.IsZero() {
		return proof.Packet{}
	}
	name, known := g.names[p.Device]
	if !known {
		name = fmt.Sprint("a device that is gone, of index ", p.Device)
	}
	return proof.Packet{Time: p.Time, Device: name, Address: p.Address.String()}
}

// Close closes the programs. The guard stays in force.
func (g *Guard) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.programs != nil {
		_ = g.programs.Close() // of file descriptors
	}
	g.programs, g.applied, g.setting, g.attached = nil, nil, nil, nil
}

// Remove removes the guard from the node.
func (g *Guard) Remove() error {
	g.Close()
	if err := g.Host.Remove(); err != nil {
		return fmt.Errorf("removing the guard from the devices of this node: %w", err)
	}
	return nil
}
