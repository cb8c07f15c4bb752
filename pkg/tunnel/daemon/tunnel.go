// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"runtime"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/toobig"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/daemon/handover"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// tunnel is the part of a Daemon that a handover moves to another process.
type tunnel struct {
	*device.Device
	tun   tun.Device
	ports *ports
}

// newTunnel makes a device over t, and owns t. Its first UDP port uses the sockets, if they are not nil.
func (d *Daemon) newTunnel(t tun.Device, sockets *udp.Sockets) *tunnel {
	p := &ports{log: d.log, device: d.o.UnderlayDevice, inherited: sockets}
	finder := &loopFinder{dir: uapi.DefaultDir, done: d.done, changed: func() { d.current().RoutesChanged() }}
	plans := &planner{log: d.log, logged: map[string]bool{}}
	return &tunnel{tun: t, ports: p, Device: device.New(device.Config{
		TUN: t, OpenPort: p.open, ReservePort: p.reserve, Plan: plans.plan, Log: d.log, Clock: engine.BootClock(), OnLoopStart: ownThread(d.log, d.o.Nice),
		Pool: d.pool, GiveBack: true, OwnError: func(m *toobig.Message) bool { return isOwnError(t, m) },
		Route: route, Loops: func(to *underlay.Endpoint, port uint16, mark uint32) (bool, error) {
			return finder.loops(t, to, port, mark)
		},
		Resolve: resolve, Recall: d.endpoints.recall, OnSession: d.endpoints.note,
	})}
}

// isOwnError implements device.Config.OwnError. The tunnel answers packets that are too big for it in the name of their destination.
func isOwnError(t tun.Device, m *toobig.Message) bool {
	return m.Link != 0 && m.Link == indexOf(t) || hostnet.IsLocal(m.By)
}

// indexOf returns the index of the tunnel's interface, 0 if it is not in this network namespace.
func indexOf(t tun.Device) int {
	if i, ok := t.(tun.Indexed); ok {
		return i.Index()
	}
	return 0
}

// route implements device.Config.Route.
func route(to *underlay.Endpoint, mark uint32) device.Route {
	p, _ := hostnet.RouteFrom(to.Src, to.Dst.Addr(), to.Scope, mark) // the zero Path if it is unknown
	r := device.Route{MTU: p.MTU, Hops: p.Hops}
	if p.HasSource {
		r.Links = p.Links
	}
	return r
}

// configure applies Options.Initial to a new device, and warns if the kernel also uses the spread ports.
func (d *Daemon) configure() error {
	if err := d.tunnel.Configure(d.o.Initial); err != nil {
		return fmt.Errorf("configuring the device: %w", err)
	}
	if st := d.tunnel.Status(); st.Spread != config.SpreadOff {
		warnOfLocalPorts(d.log, st.SpreadPorts)
	}
	return nil
}

// restoreTunnel makes a tunnel from a stopped one, or from a snapshot: then its sockets may follow before the first port is
// opened. It starts nothing. After an error the caller owns the descriptors that stopped still has.
func (d *Daemon) restoreTunnel(stopped *handover.Tunnel) (*tunnel, error) {
	t, err := tun.OpenFromFDs(stopped.QueueFDs, stopped.Steered, tun.Config{Name: stopped.Name, BusyPoll: true, Log: d.o.Log, Persist: d.o.Persist})
	if err != nil {
		return nil, err
	}
	tunnel := d.newTunnel(t, &stopped.Sockets)
	if err := tunnel.Resume(stopped.Device); err != nil {
		tunnel.Close()
		stopped.QueueFDs = nil // closed
		return nil, err
	}
	return tunnel, nil
}

// raiseGOMAXPROCS makes room for threads that block a P in system calls. There are two busy-polling
// threads for each lane, one for each worker, and two for everything else.
func raiseGOMAXPROCS(lanes, workers int) {
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 2*lanes+workers+2))
}
