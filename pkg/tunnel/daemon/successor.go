// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/tunnel/daemon/handover"
)

// ErrVersion is the error for a predecessor whose handover version is incompatible.
var ErrVersion = handover.ErrVersion

// ErrUnprepared is the error for a takeover that fails by this process, before the predecessor stops the tunnel.
var ErrUnprepared = errors.New("preparing to serve the interface")

// ReceiveHandover is Open for the interface of a running daemon, the predecessor, which then ends. Routes, addresses, ports, counters and
// the configuration stay. New sessions are established with all peers at once. Of the Options, Lanes, MTU, Spread, SpreadPorts and
// Underlay are ignored: the predecessor's hold. KeepSocket holds if either daemon has it.
//
// After an error the predecessor keeps the tunnel. It is also an error if ctx ends before
// everything is received. Errors: uapi.IsNotRunning holds if there is no predecessor, ErrVersion if
// its version is incompatible, and a *uapi.Error if it refuses.
func ReceiveHandover(ctx context.Context, o Options) (*Daemon, error) {
	o = o.complete()
	if err := o.Check(); err != nil {
		return nil, err
	}
	client, err := uapi.Dial(o.Name)
	if err != nil {
		return nil, err
	}
	conn, err := client.RequestHandover()
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	defer conn.Close()
	d := newDaemon(o, o.Name) // before the predecessor stops the tunnel
	if err := d.receiveHandover(ctx, handover.Conn{UnixConn: conn}); err != nil {
		d.pool.Close()
		_ = d.reflector.Close()
		return nil, fmt.Errorf("receiving the handover of %s: %w", o.Name, err)
	}
	return d, nil
}

func (d *Daemon) receiveHandover(ctx context.Context, c handover.Conn) error {
	t, err := c.RequestSnapshot(ctx)
	if err != nil {
		return err
	}
	peers := len(t.Device.Peers)
	if err := d.prepareTunnel(t); err != nil {
		return errors.Join(fmt.Errorf("%w: %w", ErrUnprepared, err), t.CloseFDs())
	}
	if err := c.RequestTunnel(ctx, t, d.tunnel.Update); err != nil {
		d.tunnel.Close()
		t.QueueFDs = nil // closed
		return errors.Join(err, t.CloseFDs())
	}
	if err := d.acceptTunnel(ctx, c, t); err != nil {
		return err
	}
	// First: the predecessor does not know the handshakes that a started tunnel accepts, so it must not take that back.
	_ = c.Send(handover.Serving) // fails if the predecessor has ended or waits no longer
	d.start()
	steer(d.log, d.tunnel.tun) // with this version's program
	d.receiveCounters(ctx, c, peers)
	return nil
}

// receiveCounters adds the predecessor's counters, while the tunnel runs. Nobody reads counters before: graphs must not see them decrease.
func (d *Daemon) receiveCounters(ctx context.Context, c handover.Conn, peers int) {
	counters, err := c.ReceiveCounters(ctx, peers)
	if err != nil {
		d.log.Warn("receiving the counters from the old daemon failed, they restart at zero", "error", err)
		return
	}
	d.tunnel.AddCounters(counters)
}

// prepareTunnel makes a tunnel from a snapshot, while the predecessor still carries its packets. It starts nothing.
func (d *Daemon) prepareTunnel(t *handover.Tunnel) (err error) {
	d.o.Name, d.o.Lanes, d.o.KeepSocket = t.Name, t.Queues, d.o.KeepSocket || t.KeepSocket
	raiseGOMAXPROCS(t.Queues, d.o.Workers)
	if d.tunnel, err = d.restoreTunnel(t); err != nil {
		return err
	}
	if err := d.listenReflector(); err != nil {
		d.tunnel.Close()
		t.QueueFDs = nil // closed
		return err
	}
	t.Device = nil
	runtime.GC() // not while the tunnel is stopped
	return nil
}

// acceptTunnel completes a prepared tunnel, and waits until the predecessor has committed the handover. It starts nothing.
func (d *Daemon) acceptTunnel(ctx context.Context, c handover.Conn, t *handover.Tunnel) (err error) {
	d.listener, err = uapi.DefaultDir.ListenFD(t.Name, t.ControlFD)
	t.ControlFD = -1 // owned by the listener, or closed
	if err != nil {
		d.tunnel.Close()
		return errors.Join(err, d.tunnel.ports.closeInherited())
	}
	_ = d.listener.Disown() // until Commit the predecessor owns the file; Disown cannot fail before Close
	if err = d.tunnel.Update(t.Device); err == nil {
		err = c.RequestCommit(ctx)
	}
	if err != nil {
		d.tunnel.Close()
		return errors.Join(err, d.tunnel.ports.closeInherited(), d.listener.Close())
	}
	d.ownSocket()
	absent := hostnet.AbsentLinks(t.AbsentLinks) // not a pointer into t, which has secrets
	d.absentLinks.Store(&absent)
	return nil
}
