// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// ClassifyOptions configures a Classify. They are fixed once it is loaded; TakeOver replaces it by another one.
type ClassifyOptions struct {
	// ListenPort is the tunnel's listen port.
	ListenPort uint16
	// LanePorts is a range that contains the tunnel's lane ports. Only initiations to these ports are handled, for their rate
	// limits. The range may contain ports of other sockets. Empty: none.
	LanePorts spread.Ports
	// MaxFrame is the longest frame that the AF_XDP sockets accept, in bytes from the Ethernet header on. Longer ones go up
	// the stack instead of being dropped at the socket. Zero: all frames of one buffer.
	MaxFrame int
	// MultiBuffer is set if the sockets accept frames of several buffers (XDP_USE_SG, Linux 6.6). Otherwise such frames go
	// up the stack.
	MultiBuffer bool
	// CheckIndices handles data messages and keepalives whose receiver index was not added apart: those from a peer's
	// endpoint are dropped (drop.RXUnknownIndex), and all others go up the stack, since netfilter may have to translate them
	// for another WireGuard behind this host (NAT).
	CheckIndices bool
	// SourceLimit limits the handshake initiations of one IPv4 address or IPv6 /64 (drop.HSXDPSourceLimit).
	SourceLimit RateLimit
	// TotalLimit limits the initiations of all other sources together, on each CPU (drop.HSXDPTotalLimit). Initiations with and
	// without mac2 have one such limit each, and so have those without mac2 whose source also sent one in the two preceding
	// intervals of 4 s. Sources added with AddPeerSource are exempt. Their initiations beyond SourceLimit share a fourth limit of
	// this size: otherwise a small spoofed flood could lock out a peer.
	TotalLimit RateLimit
}

// Classify is the XDP program in front of an engine's receiver, with its maps. It redirects data messages to the AF_XDP
// socket of their receive queue, drops packets beyond the configured limits, and passes all others up the stack.
// bpf/classify.bpf.c describes its checks, and bpf/include/ratelimit.h how peers complete handshakes during a flood.
// Until SetAddresses is called, all packets go up the stack. Until SetSocket is called, all data messages do. The
// attachment and all settings end with the process.
//
// In generic mode the kernel coalesces datagrams before the program runs, if the port's UDP socket enables UDP_GRO or if
// the other end of a veth sends trains. An AF_XDP socket cannot tell a train from a message. In this mode the UDP socket
// must not enable UDP_GRO, and MaxFrame should be the longest frame of the MTU.
//
// Attach, TakeOver, Detach and Close must not run concurrently. All other methods may be used concurrently.
type Classify struct {
	program *ebpf.Program
	maps    classifyMaps
	link    *hook.UnpinnedLink

	mu           sync.Mutex
	addresses    map[netip.Addr]struct{}
	sourceRefs   map[classifyAddress]int // how often each was added
	endpointRefs map[classifyEndpoint]int
}

// LoadClassify loads the program. It needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and before Linux 5.11
// CAP_SYS_RESOURCE if RLIMIT_MEMLOCK is low. Without them errors.Is(err, os.ErrPermission). If the kernel does not
// support an option, errors.Is(err, ebpf.ErrNotSupported).
func LoadClassify(o ClassifyOptions) (*Classify, error) {
	spec, err := classifySpec(o)
	if err != nil {
		return nil, fmt.Errorf("configuring the eBPF program classify: %w", err)
	}
	return loadClassifySpec(spec, o)
}

// loadClassifySpec loads the program and its maps.
func loadClassifySpec(spec *ebpf.CollectionSpec, o ClassifyOptions) (*Classify, error) {
	// If the limit cannot be raised, it may still be high enough. Otherwise the load fails.
	_ = rlimit.RemoveMemlock()
	var objects classifyObjects
	if err := loadXDP(spec, classifyProgClassify, &objects, nil); err != nil {
		// The verifier returns EINVAL for an unknown helper, and EACCES for missing capabilities.
		if o.MultiBuffer && errors.As(err, new(*ebpf.VerifierError)) && errors.Is(err, unix.EINVAL) {
			return nil, fmt.Errorf("loading the eBPF program classify: %w: multi-buffer frames need Linux 5.18", ebpf.ErrNotSupported)
		}
		return nil, explainLoadError("classify", err)
	}
	return &Classify{
		program: objects.Classify, maps: objects.classifyMaps,
		addresses: map[netip.Addr]struct{}{}, sourceRefs: map[classifyAddress]int{}, endpointRefs: map[classifyEndpoint]int{},
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
		classifyVarListenPort: o.ListenPort, classifyVarMultiBuffer: o.MultiBuffer, classifyVarCheckIndices: o.CheckIndices,
		classifyVarSourceInterval: sourceInterval, classifyVarSourceTolerance: sourceTolerance,
		classifyVarTotalInterval: totalInterval, classifyVarTotalTolerance: totalTolerance,
	}
	if totalInterval > 0 {
		maps.Copy(values, defaultSenders().configure(spec))
	}
	if o.LanePorts.Len() > 0 {
		values[classifyVarFirstLanePort], values[classifyVarLastLanePort] = o.LanePorts.First, o.LanePorts.Last
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

// lruEntriesPerCPU is eight times the number of free entries that each CPU takes out of an LRU map in advance (LOCAL_FREE_TARGET of
// Linux): with fewer, CPUs evict each other's entries long before the map is full.
const lruEntriesPerCPU = 1024

// lruEntries returns the size of the LRU map of sources.
func lruEntries(cpus int) uint32 { return uint32(max(ClassifySources, lruEntriesPerCPU*cpus)) }

func (o ClassifyOptions) check() error {
	switch {
	case o.ListenPort == 0:
		return errors.New("no listen port")
	case o.MaxFrame < 0:
		return fmt.Errorf("invalid maximum frame length %d", o.MaxFrame)
	case o.LanePorts.Len() == 0 && o.LanePorts != spread.Ports{}:
		return fmt.Errorf("invalid range of lane ports %v", o.LanePorts)
	case o.LanePorts.Contains(o.ListenPort):
		return fmt.Errorf("the lane ports %v contain the listen port %d", o.LanePorts, o.ListenPort)
	}
	return nil
}

// Attach attaches the program to a device: with hook.XDPNative, or with hook.XDPGeneric if the driver does not support XDP.
// The device's packets must begin with an Ethernet header. The program stays attached until Detach, Close or the end of
// the process. Errors are those of hook.Hook.Attach: a *hook.BusyError reports another program, which stays attached.
func (c *Classify) Attach(device int, kind hook.Kind) error {
	if c.link != nil {
		return errors.New("attaching the XDP program classify: already attached")
	}
	held, err := hook.Hook{Device: device, AttachPoint: hook.XDP, Kind: kind}.AttachUnpinned(c.program)
	if err != nil {
		return err // it names the hook
	}
	c.link = held
	return nil
}

// TakeOver atomically replaces another, attached Classify: every packet is handled by exactly one of them. Set sockets,
// addresses, indices and sources before, so that no packet is misclassified.
func (c *Classify) TakeOver(other *Classify) error {
	if c.link != nil || other.link == nil {
		return errors.New("replacing the XDP program classify: the other must be attached, and this one must not")
	}
	if err := other.link.Replace(c.program); err != nil {
		return fmt.Errorf("replacing the XDP program classify: %w", err)
	}
	c.link, other.link = other.link, nil
	return nil
}

// Status reports whether and how the program is attached. The state is hook.Defunct if the device is gone.
func (c *Classify) Status() (hook.Status, error) {
	if c.link == nil {
		return hook.Status{}, nil
	}
	return c.link.Status()
}

// Detach detaches the program. It returns nil if it is not attached.
func (c *Classify) Detach() error {
	if c.link == nil {
		return nil
	}
	held := c.link
	c.link = nil
	return held.Close()
}

// Close detaches the program and closes it and its maps.
func (c *Classify) Close() error {
	return errors.Join(c.Detach(), c.program.Close(), c.maps.Close())
}
