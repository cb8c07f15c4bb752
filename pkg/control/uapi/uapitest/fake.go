// SPDX-License-Identifier: Apache-2.0

package uapitest

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Device is a uapi.Handler that returns a status set by the test, and records changes. Its zero value is ready. It is safe for
// concurrent use.
type Device struct {
	mu      sync.Mutex
	status  config.Status
	stats   any
	refusal error
	changes []config.Device
}

// Status implements uapi.Handler.
func (d *Device) Status() config.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status
}

// Configure implements uapi.Handler.
func (d *Device) Configure(dev config.Device) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refusal == nil {
		d.changes = append(d.changes, dev)
	}
	return d.refusal
}

// Stats implements uapi.Handler.
func (d *Device) Stats() any {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stats
}

// SetStatus sets the status that the device returns.
func (d *Device) SetStatus(st config.Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status = st
}

// SetStats sets the statistics that the device returns.
func (d *Device) SetStats(stats any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats = stats
}

// Refuse makes Configure return err; nil makes it accept again.
func (d *Device) Refuse(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refusal = err
}

// TakeChanges returns the changes accepted since the last call.
func (d *Device) TakeChanges() []config.Device {
	d.mu.Lock()
	defer d.mu.Unlock()
	taken := slices.Clone(d.changes)
	d.changes = nil
	return taken
}

// NewDir returns an empty directory with a path short enough for sockets. It is removed when the test ends.
func NewDir(tb testing.TB) uapi.Dir {
	tb.Helper()
	// Not TempDir: its path holds the test's name and may exceed the 108 bytes of a socket address.
	dir, err := os.MkdirTemp("/tmp", "uapi") //nolint:usetesting // see above
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return uapi.Dir(dir)
}

// FillListenQueue listens on a device's socket in dir, accepts no client, and fills the listen queue (unix(7)), until the test ends.
func FillListenQueue(tb testing.TB, dir uapi.Dir, name string) {
	tb.Helper()
	l, err := dir.Listen(name)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	raw, err := l.SyscallConn()
	if err != nil {
		tb.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.Listen(int(fd), 0) }); err != nil || failed != nil {
		tb.Fatal(err, failed)
	}
	waiting, err := dir.Dial(name)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { waiting.Close() })
}

// Serve serves a device's socket in dir until the test ends.
func Serve(tb testing.TB, dir uapi.Dir, name string, h uapi.Handler) {
	tb.Helper()
	RunServer(tb, dir, name, &uapi.Server{Handler: h, Log: slog.New(slog.DiscardHandler)})
}

// RunServer is Serve for a server that has more than a handler.
func RunServer(tb testing.TB, dir uapi.Dir, name string, server *uapi.Server) {
	tb.Helper()
	l, err := dir.Listen(name)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, l) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("serving %s: %v", name, err)
		}
	})
}

// Dial connects to a device's socket in dir until the test ends.
func Dial(tb testing.TB, dir uapi.Dir, name string) *uapi.Client {
	tb.Helper()
	client, err := dir.Dial(name)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { client.Close() })
	return client
}
