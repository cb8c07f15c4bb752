// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"

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
	Close()
}

// OpenTunnel creates a tunnel's interface. It is down, and the engine has no key yet.
type OpenTunnel func(name string, mtu int, log *slog.Logger) (Engine, error)

// OpenEngine is an OpenTunnel that runs ropewalk's engine in this process, as `ropewalk run` does. It serves the UAPI socket as
// well. Close deletes the interface.
func OpenEngine(name string, mtu int, log *slog.Logger) (Engine, error) {
	return open(daemon.Options{Name: name, MTU: mtu, Log: log})
}

// OpenPersistentEngine is OpenEngine with an interface that outlives the process. Close, or a crash, leaves the interface with
// its addresses and routes, and packets to it are dropped. The next call adopts it. RemoveTunnel deletes it.
func OpenPersistentEngine(name string, mtu int, log *slog.Logger) (Engine, error) {
	return open(daemon.Options{Name: name, MTU: mtu, Log: log, Persist: true})
}

// RemoveTunnel deletes an interface that OpenPersistentEngine left. It succeeds if there is none.
func RemoveTunnel(name string) error { return tun.Remove(name) }

func open(o daemon.Options) (Engine, error) {
	o.Workers, o.Nice = daemon.AutoWorkers, daemon.LaneNice
	d, err := daemon.Open(o)
	if err != nil {
		return nil, err
	}
	e := &servedDaemon{Daemon: d, served: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	go func() {
		defer close(e.served)
		if err := d.Serve(ctx); err != nil {
			o.Log.Warn("serving the tunnel's UAPI socket failed", "interface", d.Name(), "error", err)
		}
	}()
	return e, nil
}

// servedDaemon is a Daemon with a goroutine that serves its UAPI socket.
type servedDaemon struct {
	*daemon.Daemon
	cancel context.CancelFunc
	served chan struct{}
}

// Close stops the engine.
func (e *servedDaemon) Close() {
	e.cancel()
	<-e.served
	e.Daemon.Close()
}
