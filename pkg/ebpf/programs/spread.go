// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// SpreadOptions configures a Spread for one device.
type SpreadOptions struct {
	// L2 is set if the device's packets begin with an Ethernet header. Packets of TUN, WireGuard and IP tunnels do not.
	L2 bool
	// Device is the device's index: the zone of link-local addresses.
	Device int
	// Pins are where the maps are pinned. Zero: the maps end with the programs.
	Pins Pins
}

// Spread holds the program that gives data messages the source port of their flow's lane. It also
// holds the programs that restore the ports on the receiving side, and their State. They do
// nothing until they are attached, and change only packets of configured tunnels.
type Spread struct {
	State
	egress, ingress, xdp *ebpf.Program
}

// LoadSpread loads the programs. It needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and before Linux 5.11
// CAP_SYS_RESOURCE if RLIMIT_MEMLOCK is low. Without them errors.Is(err, os.ErrPermission).
func LoadSpread(o SpreadOptions) (*Spread, error) {
	spec, pinned, done, err := o.open()
	if err != nil {
		return nil, err
	}
	defer done()
	var objects struct { // without the error filter
		spreadMaps
		Spread    *ebpf.Program `ebpf:"spread"`
		GatherTC  *ebpf.Program `ebpf:"gather_tc"`
		GatherXDP *ebpf.Program `ebpf:"gather_xdp"`
	}
	if err := loadXDP(spec, spreadProgGatherXdp, &objects, pinned); err != nil {
		return nil, explainLoadError("spread", err)
	}
	s := &Spread{State: newState(&objects.spreadMaps), egress: objects.Spread, ingress: objects.GatherTC, xdp: objects.GatherXDP}
	if err := s.setDefaultGap(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// LoadErrorFilter loads the program that drops forged ICMP errors on devices without a gather program, for tc ingress. It has the maps of a Spread
// with these Pins. It returns TCX_NEXT or TCX_DROP. The errors are as of LoadSpread. The caller closes the program.
func LoadErrorFilter(o SpreadOptions) (*ebpf.Program, error) {
	spec, pinned, done, err := o.open()
	if err != nil {
		return nil, err
	}
	defer done()
	var objects struct {
		Filter *ebpf.Program `ebpf:"filter_errors"`
	}
	if err := spec.LoadAndAssign(&objects, pinned); err != nil {
		return nil, explainLoadError("spread", err)
	}
	return objects.Filter, nil
}

// open returns the programs and maps, and the pinned maps that they share. done ends the use of the latter.
func (o SpreadOptions) open() (spec *ebpf.CollectionSpec, pinned *ebpf.CollectionOptions, done func(), err error) {
	if spec, err = spreadSpec(o); err != nil {
		return nil, nil, nil, err
	}
	pinned, done, err = o.Pins.open(spec)
	return spec, pinned, done, err
}

// spreadSpec returns the programs and maps with their configuration filled in.
func spreadSpec(o SpreadOptions) (*ebpf.CollectionSpec, error) {
	spec, err := loadSpread()
	if err != nil {
		return nil, fmt.Errorf("reading the eBPF program spread: %w", err)
	}
	if err := errors.Join(spec.Variables[spreadVarL2].Set(o.L2), spec.Variables[spreadVarDevice].Set(uint32(o.Device))); err != nil {
		return nil, fmt.Errorf("configuring the eBPF program spread: %w", err)
	}
	if o.Pins != (Pins{}) {
		for _, m := range stateSpecs(spec) {
			m.Pinning = ebpf.PinByName
		}
	}
	return spec, nil
}

// Egress is the spread program for tc egress: tcx, or clsact in direct-action mode. It returns TCX_NEXT, and drops a clone that cannot become a probe.
func (s *Spread) Egress() *ebpf.Program { return s.egress }

// Ingress is the gather program for tc ingress: tcx, or clsact in direct-action mode. It returns TCX_NEXT, and takes
// probes and answers: it drops them, or redirects its answers. It also drops forged ICMP errors.
func (s *Spread) Ingress() *ebpf.Program { return s.ingress }

// XDP is the gather program for XDP, to be used instead of Ingress. It returns XDP_PASS, XDP_TX
// for its answers to probes, and XDP_DROP for the packets that Ingress drops. It needs a device
// whose packets have complete checksums: it cannot recognize a partial one (CHECKSUM_PARTIAL), as
// a veth carries.
func (s *Spread) XDP() *ebpf.Program { return s.xdp }

// Close closes programs and maps. Attached programs and pinned maps stay.
func (s *Spread) Close() error {
	return errors.Join(s.egress.Close(), s.ingress.Close(), s.xdp.Close(), s.State.Close())
}
