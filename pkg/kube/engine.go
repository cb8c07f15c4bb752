// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"log/slog"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/daemon"
	"github.com/ropewalk/ropewalk/pkg/tun"
)

// Engine is a tunnel that runs.
type Engine interface {
	Configure(config.Device) error
	// Status tells, among others, the public key: another than the node's own is put right.
	Status() config.Status
	// Done is closed when it has ended, for whatever reason.
	Done() <-chan struct{}
	Close()
}

// OpenTunnel creates a tunnel's interface, down and without a key.
type OpenTunnel func(name string, mtu int, log *slog.Logger) (Engine, error)

// OpenEngine is the OpenTunnel of ropewalk's own engine, in this process, as `ropewalk run` has it. It serves the UAPI
// socket, too. Close deletes the interface.
func OpenEngine(name string, mtu int, log *slog.Logger) (Engine, error) {
	return open(daemon.Options{Name: name, MTU: mtu, Log: log})
}

// OpenPersistentEngine is OpenEngine with an interface that outlives the process: Close, or a crash, leaves it behind with its
// addresses and routes, and it is adopted if it is there already. What is sent to it meanwhile is dropped. RemoveTunnel
// deletes it.
func OpenPersistentEngine(name string, mtu int, log *slog.Logger) (Engine, error) {
	return open(daemon.Options{Name: name, MTU: mtu, Log: log, Persist: true})
}

// RemoveTunnel deletes an interface that OpenPersistentEngine has left behind. That there is none is no error.
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
			o.Log.Warn("the tunnel's control socket is no longer served", "interface", d.Name(), "error", err)
		}
	}()
	return e, nil
}

// servedDaemon is a Daemon whose control socket is served.
type servedDaemon struct {
	*daemon.Daemon
	cancel context.CancelFunc
	served chan struct{}
}

// Close ends the tunnel.
func (e *servedDaemon) Close() {
	e.cancel()
	<-e.served
	e.Daemon.Close()
}
