// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// PortOptions are the parameters with which a Tunnel opens its UDP port.
type PortOptions = device.PortOptions

// Config is the environment of a Tunnel. Its keys and peers are set with Configure.
type Config struct {
	// TUN is the inner interface. The Tunnel owns it from New on, and closes it. There is one lane per queue.
	TUN tun.Device
	// OpenPort opens the outer port, when the interface comes up and when the listen port changes. Nil opens UDP sockets of the
	// calling thread's network namespace.
	OpenPort func(PortOptions) (underlay.Port, error)
	// Log receives state changes and refused handshakes, never keys or single packets. Nil discards them.
	Log *slog.Logger
}

// ErrNoTUN is returned by New for a Config without a TUN device.
var ErrNoTUN = errors.New("no TUN device")

// Tunnel is one WireGuard interface. Its methods may be called by any goroutine.
type Tunnel struct {
	tun   tun.Device
	dev   *device.Device
	log   *slog.Logger
	start sync.Once
}

// New returns a Tunnel over cfg.TUN that carries nothing before Start. It does no I/O. The error is ErrNoTUN.
func New(cfg Config) (*Tunnel, error) {
	if cfg.TUN == nil {
		return nil, ErrNoTUN
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = cfg.Log.With("interface", cfg.TUN.Name())
	dev := device.Config{TUN: cfg.TUN, OpenPort: cfg.OpenPort, Log: cfg.Log}
	if cfg.OpenPort == nil {
		dev.OpenPort, dev.ReservePort = openUDP(cfg.Log), new(udp.Reservation).Set
	}
	return &Tunnel{tun: cfg.TUN, log: cfg.Log, dev: device.New(dev)}, nil
}

// openUDP returns a function that opens UDP sockets with GSO and GRO where the kernel has them.
func openUDP(log *slog.Logger) func(PortOptions) (underlay.Port, error) {
	return func(o PortOptions) (underlay.Port, error) {
		p, err := udp.Open(udp.Config{Port: o.Port, Lanes: o.Lanes, Mark: o.Mark, Log: log})
		if err != nil {
			return nil, err
		}
		return p, nil
	}
}

// Start begins to carry packets while the interface is up, until ctx ends or Close is called. The port opens after Start has
// returned; packets of the host wait until then. Start does nothing when called again or after Close.
func (t *Tunnel) Start(ctx context.Context) {
	t.start.Do(func() {
		t.dev.Start()
		go t.closeAfter(ctx)
	})
}

// closeAfter closes the tunnel when ctx ends. It returns when the tunnel ends before, so that ctx does not keep its keys in memory.
func (t *Tunnel) closeAfter(ctx context.Context) {
	select {
	case <-ctx.Done():
		t.Close()
	case <-t.Done():
	}
}

// Configure applies one change of keys, peers and settings, as a whole or not at all. Nil fields stay as they are. The error names
// the setting; errors.Is finds syscall.EADDRINUSE for a listen port in use.
func (t *Tunnel) Configure(c config.Device) error { return t.dev.Configure(c) }

// Status returns a snapshot of the configuration and of the peers. It contains private and preshared keys.
func (t *Tunnel) Status() config.Status { return t.dev.Status() }

// MachineCopied erases all session keys and renews the sessions. Call it when this virtual machine
// was restored from a snapshot or cloned. Ropewalk's daemon learns it from the kernel, and a Tunnel
// does not. Another copy may use the same keys with the same nonces.
func (t *Tunnel) MachineCopied() { t.dev.MachineCopied() }

// MachineResumed erases all session keys and renews the sessions that peers may still use. Call it when the machine has woken from suspend
// or hibernation, whose image contains the keys. Timers that became due meanwhile fire at once.
func (t *Tunnel) MachineResumed() {
	t.dev.MachineResumed()
	t.dev.ClockJumped()
}

// Name returns the name of the TUN interface.
func (t *Tunnel) Name() string { return t.tun.Name() }

// Done is closed when the tunnel has ended: after Close, after the context of Start has ended, or because the interface was deleted.
func (t *Tunnel) Done() <-chan struct{} { return t.dev.Done() }

// Close closes the TUN device, wipes all keys of sessions and waits until all goroutines have ended. It may be called repeatedly.
func (t *Tunnel) Close() { t.dev.Close() }

// ServeControl serves the control socket of wg(8), /var/run/wireguard/NAME.sock, until ctx or the tunnel ends. Then it returns
// nil. Its clients can read the private key and change everything; only the user of this process may connect.
func (t *Tunnel) ServeControl(ctx context.Context) error {
	l, err := uapi.Listen(t.Name())
	if err != nil {
		return fmt.Errorf("listening on the control socket of %s: %w", t.Name(), err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-t.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	s := &uapi.Server{Handler: control{t}, Log: t.log, Flows: func() any { return t.dev.Flows() }, Probe: t.dev.ProbePeer}
	return s.Serve(ctx, l)
}

// control is the handler of the control socket.
type control struct{ *Tunnel }

// Stats implements uapi.Handler.
func (c control) Stats() any { return c.dev.Stats() }

// Format prints the interface's name, whatever the verb: a Tunnel holds secrets.
func (t *Tunnel) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "tunnel "+t.Name()) }
