// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/chachapoly"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/spread"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// Options say what to look at.
type Options struct {
	// Root is the file system with proc, sys and dev; nil for this host's.
	Root fs.FS
	// Pre leaves running tunnels out.
	Pre bool
	// Port is that of the tunnel to come; 0 for none.
	Port uint16
	// Tunnels are those to look at; none for all.
	Tunnels []string
	// Devices are the NICs to look at; none for those of the default route and of the routes to peers.
	Devices []string
	// Dir is where daemons have their sockets.
	Dir uapi.Dir
	// Now is the wall clock.
	Now func() time.Time
}

// Gather looks at the host, in the network namespace of the calling thread. It takes a second at most, longer only when
// a daemon does not answer. Errors: ErrNotServed for a tunnel and hostnet.ErrNoLink for a device that was named and is
// not there; all else that cannot be read is an Answer with an error.
func Gather(ctx context.Context, o Options) (*Facts, error) {
	s := source{o.Root}
	if s.root == nil {
		s.root = os.DirFS("/")
	}
	f := &Facts{Pre: o.Pre, Port: o.Port, Cipher: chachapoly.Implementation(), Fallback: chachapoly.Generic}
	var err error
	if !o.Pre {
		if f.Tunnels, err = tunnels(ctx, o.Dir, o.Tunnels); err != nil {
			return nil, err
		}
	}
	devices := s.underlayDevices(f.Tunnels)
	if len(o.Devices) > 0 {
		devices = nil
		for _, name := range o.Devices {
			devices = append(devices, wanted{name, "asked for", true})
		}
	}
	if f.NICs, err = s.nics(devices); err != nil {
		return nil, err
	}
	f.Kernel, f.Process, f.CPU, f.Clock = s.kernel(), s.process(), s.cpu(), s.clock(o.Now())
	f.Irqbalance = answer(s.runs("irqbalance"))
	f.SpreadPorts, f.LocalPorts = spread.DefaultPorts, answer(hostnet.ReadLocalPorts())
	f.Plugins = answer(s.plugins(ctx))
	s.network(f)
	return f, nil
}

// network reads sysctls, and sockets that are in a tunnel's way.
func (s source) network(f *Facts) {
	f.Sysctls = map[string]Answer[string]{}
	for _, key := range sysctls(f) {
		f.Sysctls[key] = answer(s.text("proc/sys/" + key))
	}
	list, err := s.sockets()
	s.name(list, func(k Socket) bool { return slices.Contains(ports(f), k.Addr.Port()) })
	f.Sockets = answer(list, err)
}

// ports are those that tunnels listen on.
func ports(f *Facts) []uint16 {
	list := []uint16{f.Port}
	for _, t := range f.Tunnels {
		list = append(list, t.Port)
	}
	return list
}

// Sysctls that are looked at, by their path below /proc/sys.
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

// RPFilter is the reverse path filter of a device.
func RPFilter(device string) string { return strings.Replace(rpFilterPattern, "*", device, 1) }

// RPFilterAll is the one that counts for all devices, if it is the greater.
func RPFilterAll() string { return RPFilter(allDevices) }

func sysctls(f *Facts) []string {
	keys := []string{
		BPFJIT, Backlog, RmemMax, WmemMax, Forward4, Forward6, SrcValidMark, ReservedPorts, ConntrackCount, ConntrackMax,
		RPFilterAll(),
	}
	for _, n := range f.NICs {
		keys = append(keys, RPFilter(n.Name))
	}
	for _, t := range f.Tunnels {
		keys = append(keys, RPFilter(t.Name))
	}
	return keys
}
