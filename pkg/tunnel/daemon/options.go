// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Options configure a Daemon.
type Options struct {
	Name    string // of the interface; one %d in it is replaced by the lowest free number
	MTU     int    // of the new interface in bytes; 0 is tun.DefaultMTU, or the MTU of a reused interface
	Lanes   int    // 0 is one for each CPU that the process may use
	Workers int    // of the worker pool; AutoWorkers derives the number from the CPUs
	Nice    int    // added to the nice value of the lanes' threads, -20 to 19

	UnderlayDevice string // the network device for AF_XDP; if empty, the device towards most peers
	// Initial is applied before the tunnel starts. With a listen port in it, a reused interface that is up gets no other port first.
	// ReceiveHandover ignores it.
	Initial config.Device

	// TUNFD is a queue of an interface that another program has created (tun.Adopt). The daemon serves that, with one lane, instead of one
	// called Name. ControlFD is a listening socket at the path of the interface's control socket. 0 is none. Open owns TUNFD once it has
	// adopted it, and then ControlFD; after an earlier error the caller still owns them.
	TUNFD, ControlFD int

	// Persist keeps the interface with its addresses and routes when the daemon closes or dies, and reuses such an interface. See
	// tun.Config.
	Persist bool

	// Reflect is the UDP port of a reflector that is bound to the interface (package netio/reflector); 0: none.
	Reflect uint16

	// KeepSocket creates the control socket again when its file was removed. Otherwise the removal ends Serve, as it ends wireguard-go: programs
	// stop tunnels so. A tunnel for which somebody else is responsible, such as a service manager, must not end by a cleaned directory.
	KeepSocket bool

	// StateDir is the directory for the endpoints of peers with a session, with which the process
	// after a killed one renews the sessions. After an orderly end it says which peers had
	// post-quantum keys. It is created if it does not exist. Empty: nothing is kept.
	StateDir string

	Version string // of the program, for clients of the control socket; empty: unknown

	Log   *slog.Logger
	Level *slog.LevelVar // of Log, for the control socket; nil if it cannot be changed
	// StartSuccessor starts the program at path as the daemon's successor, for the interface called name. The program must call
	// ReceiveHandover. nil: upgrade requests on the control socket are refused.
	StartSuccessor func(path, name string) (*Successor, error)
	// OnHandover, if set, is called once after a handover, with the successor's process ID (0: unknown). The client that requested the
	// upgrade gets its answer, and Serve returns, only after OnHandover has returned.
	OnHandover func(name string, pid int)
}

// LaneNice is the usual value of Options.Nice (docs/dev/measurements.md).
const LaneNice = -10

// usableCPUs returns how many CPUs the process may use, by its affinity and its cgroup's quota. It must be called before the first
// raiseGOMAXPROCS, which changes the result of runtime.GOMAXPROCS: a process may open several tunnels.
var usableCPUs = sync.OnceValue(func() int { return runtime.GOMAXPROCS(0) })

// complete returns o with its defaults filled in.
func (o Options) complete() Options {
	cpus := usableCPUs()
	switch {
	case o.TUNFD != 0:
		o.Lanes = 1
	case o.Lanes == 0:
		o.Lanes = min(cpus, config.MaxLanes)
	}
	o.Workers = workers(o.Workers, cpus)
	return o
}

// Check returns an error for invalid Options.
func (o *Options) Check() error {
	switch {
	case o.Lanes < 0 || o.Lanes > config.MaxLanes:
		return fmt.Errorf("%d lanes: want 1 to %d, or 0 for one for each CPU", o.Lanes, config.MaxLanes)
	case o.TUNFD != 0 && o.Lanes > 1:
		return fmt.Errorf("%d lanes for the one queue of an interface that another program has created: want 1", o.Lanes)
	case o.TUNFD != 0 && o.Persist:
		return errors.New("an interface that another program has created stays or vanishes as that program has set: it cannot be made persistent")
	case o.Nice < -20 || o.Nice > 19:
		return fmt.Errorf("a nice value of %d: want -20 to 19", o.Nice)
	}
	return tun.CheckName(o.Name)
}
