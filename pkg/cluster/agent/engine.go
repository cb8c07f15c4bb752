// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/daemon"
)

// Engine is a running tunnel.
type Engine interface {
	Configure(config.Device) error
	// Status returns, among others, the public key. A key that is not the node's is reconfigured.
	Status() config.Status
	// Done is closed when the engine has exited, for any reason.
	Done() <-chan struct{}
	// HandedOver reports, after Done, whether the engine exited because another process has taken the tunnel over.
	HandedOver() bool
	Close()
}

// TunnelOptions are fixed while a tunnel's engine runs.
type TunnelOptions struct {
	Name string
	MTU  int // of a new interface
	// Lanes is the number of lanes; 0: one for each CPU. An engine that is taken over from another process keeps its number.
	Lanes   int
	Workers int // of the worker pool; daemon.AutoWorkers derives the number from the CPUs
	Nice    int // added to the nice value of the lanes' threads
	// Initial is the configuration with which the engine starts. An engine that is taken over from another process keeps its own.
	Initial config.Device
}

// OpenTunnel opens a tunnel's interface. A new interface is down.
type OpenTunnel func(o TunnelOptions, log *slog.Logger) (Engine, error)

// OpenPersistentEngine is an OpenTunnel that runs ropewalk's engine in this process, as `ropewalk run` does. It serves the UAPI socket as
// well. Its interface outlives the process: Close, or a crash, leaves it with its addresses and routes, and packets to it are dropped. The
// next call adopts it. RemoveTunnel deletes it. If another agent serves the tunnel, OpenPersistentEngine takes it over while it runs.
func OpenPersistentEngine(t TunnelOptions, log *slog.Logger) (Engine, error) {
	e, err := takeOverEngine(t, log)
	if err == nil || errors.Is(err, errServedElsewhere) {
		return e, err
	}
	d, err := daemon.Open(daemonOptions(t, log))
	if err != nil {
		return nil, err
	}
	return serveDaemon(d, log), nil
}

// takeOverEngine is an OpenTunnel that takes the tunnel over from the agent that serves it. If none does, its error satisfies
// uapi.IsNotRunning. If the agent keeps the tunnel, the error is errServedElsewhere.
func takeOverEngine(t TunnelOptions, log *slog.Logger) (Engine, error) {
	d, err := daemon.ReceiveHandover(context.Background(), daemonOptions(t, log))
	switch {
	case err == nil:
		log.Info("tunnel taken over from another agent without interruption", "interface", t.Name)
		return serveDaemon(d, log), nil
	case uapi.IsNotRunning(err):
		return nil, fmt.Errorf("taking the tunnel %s over: %w", t.Name, err)
	default:
		return nil, fmt.Errorf("%w: %w", errServedElsewhere, err)
	}
}

// RemoveTunnel deletes an interface that OpenPersistentEngine left, and the saved endpoints of its peers. It succeeds if there is none.
func RemoveTunnel(name string) error {
	return errors.Join(tun.Remove(name), daemon.RemoveEndpoints(endpointsDir, name))
}

// endpointsDir has the endpoints of peers for the agent that follows a killed one. They are beside the tunnel's control socket: on the host, and
// empty after a boot.
const endpointsDir = string(uapi.DefaultDir)

func daemonOptions(t TunnelOptions, log *slog.Logger) daemon.Options {
	return daemon.Options{
		Name: t.Name, MTU: t.MTU, Log: log, Lanes: t.Lanes, Workers: t.Workers, Nice: t.Nice, Persist: true, KeepSocket: true, StateDir: endpointsDir,
		Initial: t.Initial,
	}
}

// serveDaemon answers the clients of the daemon's UAPI socket.
func serveDaemon(d *daemon.Daemon, log *slog.Logger) Engine {
	e := &servedDaemon{Daemon: d, served: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	go func() {
		defer close(e.served)
		e.err = d.Serve(ctx)
		if e.err != nil && !errors.Is(e.err, daemon.ErrHandedOver) {
			log.Warn("serving the tunnel's control socket failed, restarting the tunnel: its packets are dropped until it is open again", "interface", d.Name(), "error", e.err)
		}
	}()
	return e
}

// servedDaemon is a Daemon with a goroutine that serves its UAPI socket.
type servedDaemon struct {
	*daemon.Daemon
	cancel context.CancelFunc
	served chan struct{}
	err    error // of Serve, once served is closed
}

// HandedOver implements Engine.
func (e *servedDaemon) HandedOver() bool {
	<-e.served
	return errors.Is(e.err, daemon.ErrHandedOver)
}

// Close stops the engine.
func (e *servedDaemon) Close() {
	e.cancel()
	<-e.served
	e.Daemon.Close()
}
