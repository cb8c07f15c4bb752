// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/datapath/hook"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// ClassifyOptions says what a Classify looks for. It is fixed once loaded; see TakeOver.
type ClassifyOptions struct {
	// Port is the tunnel's listen port, the canonical one.
	Port uint16
	// Lanes holds the tunnel's other ports, if it has any, and perhaps ports of others: only initiations to them are looked
	// at, and those only for their budget.
	Lanes spread.Ports
	// MaxFrame is the longest frame that the AF_XDP sockets take, in bytes from the Ethernet header on. Longer ones go up the
	// stack, where a socket would drop them. Zero: all frames of one buffer.
	MaxFrame int
	// MultiBuffer tells that the sockets take frames of several buffers (XDP_USE_SG, Linux 6.6). If not, those go up the stack.
	MultiBuffer bool
	// CheckIndices drops data messages and keepalives whose receiver index was not added (drop.RXUnknownIndex).
	CheckIndices bool
	// Source limits the handshake initiations of one IPv4 address or IPv6 /64 (drop.HSSourceBudget).
	Source Budget
	// Total limits those of all sources together, on each CPU, except of the sources that were added (drop.HSTotalBudget): so
	// many without a cookie, and again so many with what may be one. Sources that were added share a third such budget for
	// what is beyond their own, or whoever sends in a peer's name could lock it out with a trickle.
	Total Budget
	// CPUs take data messages up the stack whose receive queue has no socket, each outer flow on one of them, by its source
	// address and port. For devices that receive on fewer queues than there are CPUs. Not for XDPGeneric, beside which the
	// kernel's own RPS does the same. What does not fit a CPU's queue is lost, and counted by the kernel
	// (xdp:xdp_cpumap_enqueue) alone. None: messages stay on the CPU that received them.
	CPUs []int
	// Unsummed tells that checksums may have been left to the device, as a veth's other end does (unless ethtool -K tx off). A CPU
	// would find them wrong, and drop what has them: such messages stay where they are, and so does one in 65,536 of the others,
	// which may be overtaken by its flow.
	Unsummed bool
}

// Classify is the XDP program in front of an engine's receiver, with its state. It gives data messages to the AF_XDP
// socket of their receive queue, lets everything else go up the stack, and drops what its guards find; bpf/classify.bpf.c
// says what is checked and why that is enough, bpf/include/guard.h how peers get through a flood. Until addresses are
// set, all goes up the stack; until sockets are, all data messages do. What is attached or set ends with the process.
//
// In generic mode the kernel coalesces datagrams before they get here (UDP_GRO) when the port's ordinary socket asks for
// it, or when a veth's other end sends trains, and a socket cannot tell a train from a message: there the ordinary socket
// must not ask, and MaxFrame should be what the MTU allows.
//
// Attach, TakeOver, Detach and Close are for one goroutine at a time; all other methods may be used concurrently.
type Classify struct {
	program *ebpf.Program
	maps    classifyMaps
	spreads bool // over CPUs
	held    *hook.Held

	mu        sync.Mutex
	addresses map[netip.Addr]struct{}
	sources   map[classifyAddress]int // how often each was added
}

// LoadClassify loads the program. It needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and before Linux 5.11
// CAP_SYS_RESOURCE where RLIMIT_MEMLOCK is low; their lack satisfies errors.Is(err, os.ErrPermission). What this kernel
// cannot do satisfies errors.Is(err, ebpf.ErrNotSupported).
func LoadClassify(o ClassifyOptions) (*Classify, error) {
	spec, err := classifySpec(o)
	if err != nil {
		return nil, fmt.Errorf("configuring the eBPF program classify: %w", err)
	}
	// A limit that cannot be lifted may still be high enough: the load tells.
	_ = rlimit.RemoveMemlock()
	var objects classifyObjects
	if err := loadXDP(spec, classifyProgClassify, &objects, nil); err != nil {
		// What the verifier says of a helper that it does not know; what it says of a lack of rights is EACCES.
		if o.MultiBuffer && errors.As(err, new(*ebpf.VerifierError)) && errors.Is(err, unix.EINVAL) {
			return nil, fmt.Errorf("loading the eBPF program classify: %w: frames of several buffers need Linux 5.18", ebpf.ErrNotSupported)
		}
		return nil, explainLoad("classify", err)
	}
	c := &Classify{
		program: objects.Classify, maps: objects.classifyMaps, spreads: len(o.CPUs) > 0,
		addresses: map[netip.Addr]struct{}{}, sources: map[classifyAddress]int{},
	}
	if err := c.addCPUs(o.CPUs); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
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
	sourceInterval, sourceTolerance, sourceErr := o.Source.words()
	totalInterval, totalTolerance, totalErr := o.Total.words()
	if err := errors.Join(sourceErr, totalErr); err != nil {
		return nil, err
	}
	values := map[string]any{
		classifyVarPort: o.Port, classifyVarFrags: o.MultiBuffer, classifyVarCheckIndices: o.CheckIndices, classifyVarUnsummed: o.Unsummed,
		classifyVarSourceInterval: sourceInterval, classifyVarSourceTolerance: sourceTolerance,
		classifyVarTotalInterval: totalInterval, classifyVarTotalTolerance: totalTolerance,
	}
	if o.Lanes.Len() > 0 {
		values[classifyVarFirstLane], values[classifyVarLastLane] = o.Lanes.First, o.Lanes.Last
	}
	if o.MaxFrame > 0 {
		values[classifyVarMaxFrame] = uint32(o.MaxFrame)
	}
	if len(o.CPUs) > 0 {
		values[classifyVarPlaces], values[classifyVarCpuAt] = uint32(len(o.CPUs)), places(o.CPUs)
		spec.Maps[classifyMapCpus].MaxEntries = uint32(slices.Max(o.CPUs)) + 1
	}
	for name, value := range values {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("setting %s: %w", name, err)
		}
	}
	return spec, nil
}

func (o ClassifyOptions) check() error {
	switch {
	case o.Port == 0:
		return errors.New("port 0 is none")
	case o.MaxFrame < 0:
		return fmt.Errorf("frames of %d bytes", o.MaxFrame)
	case o.Lanes.Len() == 0 && o.Lanes != spread.Ports{}:
		return fmt.Errorf("no such ports: %v", o.Lanes)
	case o.Lanes.Contains(o.Port):
		return fmt.Errorf("the ports %v of lanes contain the listen port", o.Lanes)
	case len(o.CPUs) > maxPlaces:
		return fmt.Errorf("%d CPUs, at most %d are possible", len(o.CPUs), maxPlaces)
	}
	return checkCPUs(o.CPUs)
}

func checkCPUs(cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	all, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("counting CPUs: %w", err)
	}
	for _, cpu := range cpus {
		if cpu < 0 || cpu >= all {
			return fmt.Errorf("no such CPU: %d", cpu)
		}
	}
	return nil
}

// maxPlaces is CLASSIFY_PLACES.
const maxPlaces = 256

func places(cpus []int) (at [maxPlaces]uint16) {
	for i, cpu := range cpus {
		at[i] = uint16(cpu)
	}
	return at
}

// cpuQueue is how many frames wait for a CPU at most: four milliseconds' worth where it takes half a million a second. What does not fit is
// counted by nobody here, so it is long enough for the socket behind it to be the bound, which counts.
const cpuQueue uint32 = 2048

// addCPUs makes the threads that take frames up the stack.
func (c *Classify) addCPUs(cpus []int) error {
	for _, cpu := range cpus {
		if err := c.maps.Cpus.Put(uint32(cpu), cpuQueue); err != nil {
			return fmt.Errorf("spreading over CPU %d: %w", cpu, err)
		}
	}
	return nil
}

// Attach puts the program in front of a device's receiver: hook.XDPNative, or hook.XDPGeneric where the driver has no
// XDP. The device's packets begin with an Ethernet header. It stays until Detach or Close, and at the longest until the process ends, when packets go up the stack again.
// Errors are those of hook.Hook.Attach: programs of others are named (*hook.BusyError) and stay where they are.
func (c *Classify) Attach(device int, kind hook.Kind) error {
	if c.held != nil {
		return errors.New("attaching classify: it is attached already")
	}
	if err := c.checkKind(kind); err != nil {
		return fmt.Errorf("attaching classify: %w", err)
	}
	held, err := hook.Hook{Device: device, Place: hook.XDP, Kind: kind}.Hold(c.program)
	if err != nil {
		return err // it says what was attached where
	}
	c.held = held
	return nil
}

// checkKind refuses to spread in generic mode: what is to go to a CPU is lost there, before Linux 5.15 always, and from a
// veth on 6.18 too.
func (c *Classify) checkKind(kind hook.Kind) error {
	if c.spreads && kind == hook.XDPGeneric {
		return fmt.Errorf("%w: spreading over CPUs in generic mode; use RPS (/sys/class/net/*/queues/rx-*/rps_cpus)", ebpf.ErrNotSupported)
	}
	return nil
}

// TakeOver attaches the program in the place of another one, which is not attached any more then: no packet meets none
// or both. Sockets, addresses, indices and sources must have been set before, so that none is missed.
func (c *Classify) TakeOver(other *Classify) error {
	if c.held != nil || other.held == nil {
		return errors.New("taking over from another classify: only what is attached can be taken over, by what is not")
	}
	if err := c.checkKind(other.held.Kind()); err != nil {
		return fmt.Errorf("taking over from another classify: %w", err)
	}
	if err := other.held.Replace(c.program); err != nil {
		return fmt.Errorf("taking over from another classify: %w", err)
	}
	c.held, other.held = other.held, nil
	return nil
}

// Status tells whether and how the program is attached: hook.Defunct when its device is gone.
func (c *Classify) Status() (hook.Status, error) {
	if c.held == nil {
		return hook.Status{}, nil
	}
	return c.held.Status()
}

// Detach takes the program off. No error if it is not attached.
func (c *Classify) Detach() error {
	if c.held == nil {
		return nil
	}
	held := c.held
	c.held = nil
	return held.Close()
}

// Close takes the program off, and gives it and its maps back.
func (c *Classify) Close() error {
	return errors.Join(c.Detach(), c.program.Close(), c.maps.Close())
}
