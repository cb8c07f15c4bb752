// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
)

// ClassifyOptions configures a Classify. They are fixed once it is loaded.
type ClassifyOptions struct {
	// ListenPort is the tunnel's listen port.
	ListenPort uint16
	// MaxFrame is the longest frame that the AF_XDP sockets accept, in bytes from the Ethernet header on. Longer ones go up
	// the stack instead of being dropped at the socket, as do frames of several buffers. Zero: no limit.
	MaxFrame int
	// CheckIndices handles data messages and keepalives whose receiver index was not added apart.
	// Messages from a peer's endpoint are dropped (drop.RXUnknownIndex). All others go up the
	// stack, since netfilter may have to translate them for another WireGuard behind this host
	// (NAT).
	CheckIndices bool
	// SourceLimit limits the handshake initiations of one IPv4 address or IPv6 /64 (drop.HSXDPSourceLimit).
	SourceLimit RateLimit
	// TotalLimit limits the initiations of all other sources together, on each CPU
	// (drop.HSXDPTotalLimit). Initiations with and without mac2 have one such limit each. A third
	// one is for initiations without mac2 whose source also sent one in the two preceding
	// intervals of 4 s. Sources added with AddPeerSource are exempt. Their initiations beyond
	// SourceLimit share a fourth limit of this size: otherwise a small spoofed flood could lock
	// out a peer.
	TotalLimit RateLimit
}

// Classify is the XDP program in front of an engine's receiver, with its maps. It redirects data messages to the AF_XDP
// socket of their receive queue, drops packets beyond the configured limits, and passes all others up the stack.
// bpf/classify.bpf.c describes its checks, and bpf/include/ratelimit.h how peers complete handshakes during a flood.
// Until SetAddresses is called, all packets go up the stack. Until SetSocket is called, all data messages do. The
// attachment and all settings end with the process.
//
// Attach, Detach and Close must not run concurrently. All other methods may be used concurrently.
type Classify struct {
	program *ebpf.Program
	maps    classifyMaps
	link    link.Link // nil: not attached

	mu           sync.Mutex
	sourceRefs   map[classifyAddress]int // how often each was added
	endpointRefs map[classifyEndpoint]int
}

// LoadClassify loads the program. It needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and before Linux 5.11
// CAP_SYS_RESOURCE if RLIMIT_MEMLOCK is low. Without them errors.Is(err, os.ErrPermission).
func LoadClassify(o ClassifyOptions) (*Classify, error) {
	spec, err := classifySpec(o)
	if err != nil {
		return nil, fmt.Errorf("configuring the eBPF program classify: %w", err)
	}
	return loadClassifySpec(spec)
}

// loadClassifySpec loads the program and its maps.
func loadClassifySpec(spec *ebpf.CollectionSpec) (*Classify, error) {
	// If the limit cannot be raised, it may still be high enough. Otherwise the load fails.
	_ = rlimit.RemoveMemlock()
	var objects classifyObjects
	if err := loadXDP(spec, classifyProgClassify, &objects, nil); err != nil {
		return nil, explainLoadError("classify", err)
	}
	return &Classify{
		program: objects.Classify, maps: objects.classifyMaps,
		sourceRefs: map[classifyAddress]int{}, endpointRefs: map[classifyEndpoint]int{},
	}, nil
}

// classifySpec returns the program and its maps with their configuration filled in.
func classifySpec(o ClassifyOptions) (*ebpf.CollectionSpec, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	spec, err := loadClassify()
	if err != nil {
		return nil, err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("counting CPUs: %w", err)
	}
	spec.Maps[classifyMapSources].MaxEntries = lruEntries(cpus)
	sourceInterval, sourceTolerance, sourceErr := o.SourceLimit.gcra()
	totalInterval, totalTolerance, totalErr := o.TotalLimit.gcra()
	if err := errors.Join(sourceErr, totalErr); err != nil {
		return nil, err
	}
	values := map[string]any{
		classifyVarListenPort: o.ListenPort, classifyVarCheckIndices: o.CheckIndices,
		classifyVarSourceInterval: sourceInterval, classifyVarSourceTolerance: sourceTolerance,
		classifyVarTotalInterval: totalInterval, classifyVarTotalTolerance: totalTolerance,
	}
	if totalInterval > 0 {
		maps.Copy(values, defaultSenders().configure(spec))
	}
	if o.MaxFrame > 0 {
		values[classifyVarMaxFrame] = uint32(o.MaxFrame)
	}
	for name, value := range values {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("setting the constant %s of the eBPF program classify: %w", name, err)
		}
	}
	return spec, nil
}

// lruEntriesPerCPU is eight times the number of free entries that each CPU takes out of an LRU
// map in advance (LOCAL_FREE_TARGET of Linux). With fewer, CPUs evict each other's entries long
// before the map is full.
const lruEntriesPerCPU = 1024

// lruEntries returns the size of the LRU map of sources.
func lruEntries(cpus int) uint32 { return uint32(max(ClassifySources, lruEntriesPerCPU*cpus)) }

func (o ClassifyOptions) check() error {
	switch {
	case o.ListenPort == 0:
		return errors.New("no listen port")
	case o.MaxFrame < 0:
		return fmt.Errorf("invalid maximum frame length %d", o.MaxFrame)
	}
	return nil
}

// Attach attaches the program to a device, natively. The device's packets must begin with an
// Ethernet header. The program stays attached until Detach, Close or the end of the process.
// Errors are as from hook.Hook.Attach: a *hook.BusyError reports another program, which stays
// attached.
func (c *Classify) Attach(device int) error {
	if c.link != nil {
		return errors.New("attaching the XDP program classify: already attached")
	}
	held, err := hook.AttachXDP(device, c.program)
	if err != nil {
		return err // it names the hook
	}
	c.link = held
	return nil
}

// Detach detaches the program, which is off when it returns. It returns nil if it is not attached.
func (c *Classify) Detach() error {
	if c.link == nil {
		return nil
	}
	held := c.link
	c.link = nil
	_ = held.Detach() // fails with one of several errors if the program is off already, for example because the device is gone
	if err := held.Close(); err != nil {
		return fmt.Errorf("detaching from the XDP hook: %w", err)
	}
	return nil
}

// Close detaches the program and closes it and its maps.
func (c *Classify) Close() error {
	return errors.Join(c.Detach(), c.program.Close(), c.maps.Close())
}
