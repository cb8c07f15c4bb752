// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/ropewalk/ropewalk/pkg/spread"
)

// tickShift makes the program's ticks of nanoseconds (bpf/include/lane.h).
const tickShift = 10

// SpreadOptions says for which kind of device a Spread is loaded, and where its state is kept.
type SpreadOptions struct {
	// L2 tells that the device's packets begin with an Ethernet header. Those of TUN, WireGuard and IP tunnels do not.
	L2 bool
	// Gap is how long a flow must have been silent before it may take another lane; zero means spread.DefaultGap. It must be
	// longer than the delays of two lanes can differ, or a flow that moves overtakes itself.
	Gap time.Duration
	// PinDir is a directory in a bpffs, made if it is not there, in which the state is pinned, so that it outlives the
	// process and the next one goes on with it. Empty: the state ends with the programs. State of another layout is
	// never touched: a version of ropewalk with another layout begins with empty maps beside it.
	PinDir string
}

// Spread is the programs that give data messages the source port of their flow's lane, and put the canonical port back
// on the other side, with the State that they work on. They do nothing until they are attached, and touch nothing but
// packets of configured tunnels.
type Spread struct {
	State
	egress, ingress, xdp *ebpf.Program
}

// LoadSpread loads the programs. It needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and before Linux 5.11
// CAP_SYS_RESOURCE where RLIMIT_MEMLOCK is low; their lack satisfies errors.Is(err, os.ErrPermission).
func LoadSpread(o SpreadOptions) (*Spread, error) {
	spec, err := spreadSpec(o)
	if err != nil {
		return nil, err
	}
	pins, err := makePinDir(o.PinDir)
	if err != nil {
		return nil, err
	}
	// A limit that cannot be lifted may still be high enough: the load tells.
	_ = rlimit.RemoveMemlock()
	var objects spreadObjects
	pinned := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: pins}}
	if err := loadXDP(spec, spreadProgGatherXdp, &objects, pinned); err != nil {
		return nil, explainLoad("spread", err)
	}
	return &Spread{State: newState(&objects.spreadMaps), egress: objects.Spread, ingress: objects.GatherTc, xdp: objects.GatherXdp}, nil
}

// spreadSpec returns the programs and maps with their configuration filled in.
func spreadSpec(o SpreadOptions) (*ebpf.CollectionSpec, error) {
	if o.Gap < 0 {
		return nil, fmt.Errorf("loading the eBPF program spread: gap of %v", o.Gap)
	}
	if o.Gap == 0 {
		o.Gap = spread.DefaultGap
	}
	spec, err := loadSpread()
	if err != nil {
		return nil, fmt.Errorf("reading the eBPF program spread: %w", err)
	}
	if err := errors.Join(spec.Variables["l2"].Set(o.L2), spec.Variables["gap"].Set(uint64(o.Gap)>>tickShift)); err != nil {
		return nil, fmt.Errorf("configuring the eBPF program spread: %w", err)
	}
	if o.PinDir != "" {
		for name := range stateSpecs(spec) {
			spec.Maps[name].Pinning = ebpf.PinByName
		}
	}
	return spec, nil
}

// Egress is the program for tc egress: tcx, or clsact in direct-action mode. It always lets the next program go on.
func (s *Spread) Egress() *ebpf.Program { return s.egress }

// Ingress is gather for tc ingress: tcx, or clsact in direct-action mode. It always lets the next program go on.
func (s *Spread) Ingress() *ebpf.Program { return s.ingress }

// XDP is gather for XDP, in place of Ingress. It passes every packet. It is for devices that check checksums
// themselves: one that only one end of has been summed up, as a veth carries, it cannot tell from a whole one.
func (s *Spread) XDP() *ebpf.Program { return s.xdp }

// Close gives programs and maps back. What is attached or pinned stays.
func (s *Spread) Close() error {
	return errors.Join(s.egress.Close(), s.ingress.Close(), s.xdp.Close(), s.State.Close())
}
