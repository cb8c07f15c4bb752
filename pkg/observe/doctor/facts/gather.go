// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/chachapoly"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Options select what Gather reads.
type Options struct {
	// Root is the file system with proc, sys and dev; nil for the host's.
	Root fs.FS
	// Pre ignores running tunnels.
	Pre bool
	// Port is the listen port of a future tunnel; 0 for none.
	Port uint16
	// Tunnels are the names of the tunnels to examine; empty for all.
	Tunnels []string
	// Devices are the NICs to examine; empty for the NICs of the default route and of the routes
	// to peers.
	Devices []string
	// Dir is the directory of the daemons' control sockets.
	Dir uapi.Dir
	// Saved returns the saved state of a tunnel; nil for none.
	Saved func(name string) (Saved, error)
	// Now is the wall clock.
	Now func() time.Time
}

// Gather reads the state of the host in the network namespace of the calling thread. It takes at most a second, longer only
// if a daemon does not answer. Errors: ErrNoTunnel and hostnet.ErrNoLink for a tunnel or device in Options that does not
// exist. Any other value that cannot be read is a Result with an error.
func Gather(ctx context.Context, o Options) (*Facts, error) {
	s := source{o.Root}
	if s.root == nil {
		s.root = os.DirFS("/")
	}
	f := &Facts{
		Pre: o.Pre, Port: o.Port,
		Cipher: chachapoly.Implementation(), Fallback: chachapoly.Generic, CipherFailed: chachapoly.FailedSelfTest(),
		CipherChoices: chachapoly.Choices(),
	}
	var err error
	if !o.Pre {
		if f.Tunnels, f.OtherTunnels, err = tunnels(ctx, o.Dir, o.Tunnels); err != nil {
			return nil, err
		}
		for i := range f.Tunnels {
			if t := &f.Tunnels[i]; o.Saved != nil {
				t.Saved = result(o.Saved(t.Name))
			}
		}
		s.readThreaded(f.Tunnels)
		readReplaced(f.Tunnels)
	}
	devices := underlayDevices(f.Tunnels)
	if len(o.Devices) > 0 {
		devices = nil
		for _, name := range o.Devices {
			devices = append(devices, candidate{device: name, reason: "given by --device", named: true})
		}
	}
	for _, c := range devices {
		f.Underlay = append(f.Underlay, c.device)
	}
	if f.NICs, err = s.nics(devices); err != nil {
		return nil, err
	}
	f.Kernel, f.Process, f.CPU, f.Clock = s.kernel(), s.process(), s.cpu(), s.clock(o.Now())
	f.Irqbalance = result(s.isRunning("irqbalance"))
	f.BigTCP = result(hostnet.BigTCPDevices())
	f.SpreadPorts, f.LocalPorts = spread.DefaultPorts, result(hostnet.ReadLocalPorts())
	f.Plugins = result(s.plugins(ctx))
	s.readNetwork(f)
	return f, nil
}

// readNetwork reads sysctls, and the UDP sockets on tunnels' ports.
func (s source) readNetwork(f *Facts) {
	f.Sysctls = map[string]Result[string]{}
	for _, key := range sysctls(f) {
		f.Sysctls[key] = result(s.text("proc/sys/" + key))
	}
	list, err := sockets()
	s.setOwners(list, func(k Socket) bool { return slices.Contains(ports(f), k.Addr.Port()) })
	f.Sockets = result(list, err)
}

// ports returns the listen ports of all tunnels.
func ports(f *Facts) []uint16 {
	list := []uint16{f.Port}
	for _, t := range f.Tunnels {
		list = append(list, t.Port)
	}
	return list
}

// Sysctls that Gather reads, by path below /proc/sys.
const (
	BPFJIT          = "net/core/bpf_jit_enable"
	Backlog         = "net/core/netdev_max_backlog"
	RmemMax         = "net/core/rmem_max"
	WmemMax         = "net/core/wmem_max"
	Forward4        = "net/ipv4/ip_forward"
	Forward6        = "net/ipv6/conf/all/forwarding"
	SrcValidMark    = "net/ipv4/conf/all/src_valid_mark"
	ReservedPorts   = "net/ipv4/ip_local_reserved_ports"
	ConntrackCount  = "net/netfilter/nf_conntrack_count"
	ConntrackMax    = "net/netfilter/nf_conntrack_max"
	allDevices      = "all"
	rpFilterPattern = "net/ipv4/conf/*/rp_filter"
)

// RPFilter returns the path of a device's rp_filter.
func RPFilter(device string) string { return strings.Replace(rpFilterPattern, "*", device, 1) }

// RPFilterAll returns the path of the rp_filter for all devices. The kernel uses the greater of both values.
func RPFilterAll() string { return RPFilter(allDevices) }

func sysctls(f *Facts) []string {
	keys := []string{
		BPFJIT, Backlog, RmemMax, WmemMax, Forward4, Forward6, SrcValidMark, ReservedPorts, ConntrackCount, ConntrackMax,
		RPFilterAll(),
	}
	for _, device := range f.Underlay {
		keys = append(keys, RPFilter(device))
	}
	for _, t := range f.Tunnels {
		keys = append(keys, RPFilter(t.Name))
	}
	return keys
}
