// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/uapi"
	"github.com/ropewalk/ropewalk/pkg/underlay/udp"
)

// TakeOver is Open for the interface of a daemon that runs: that one ends, and routes, addresses, ports, counters and whatever was
// configured stay. Peers are shaken hands with at once. Of the Options Lanes, MTU, Spread, SpreadPorts, Underlay and ReceiveCPUs do not count.
//
// After an error the other daemon goes on. It is one, too, that ctx has ended before everything has come. That there is no other daemon
// satisfies uapi.IsRefused; ErrVersion is one that cannot hand over to this one, a *uapi.Error one that does not want to.
func TakeOver(ctx context.Context, o Options) (*Daemon, error) {
	o = o.complete()
	if err := o.Check(); err != nil {
		return nil, err
	}
	c, err := uapi.Dial(o.Name)
	if err != nil {
		return nil, err
	}
	conn, err := c.TakeOver()
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	defer conn.Close()
	d := assemble(o) // now, as the tunnel still runs
	if err := d.takeOver(ctx, link{conn}); err != nil {
		d.crew.Close()
		return nil, fmt.Errorf("taking %s over: %w", o.Name, err)
	}
	return d, nil
}

func (d *Daemon) takeOver(ctx context.Context, l link) error {
	k, err := awaitTunnel(ctx, l)
	if err != nil {
		return err
	}
	if err := d.take(l, k); err != nil {
		return err
	}
	d.start()
	if err := l.say(sayStarted); err != nil {
		d.log.Debug("the other daemon is not told that the tunnel runs", "error", err)
	}
	steer(d.log, d.tunnel.tun) // by the program of this version
	return nil
}

// awaitTunnel has the other daemon stop and give what it has. The end of ctx ends the connection, but not later: an end before
// sayStarted tells the other daemon that the tunnel is its own again.
func awaitTunnel(ctx context.Context, l link) (k *kept, err error) {
	calm := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer calm()
	if err := l.hearOffer(); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	if err := worksHere(pidOf(l.UnixConn)); err != nil { // while the tunnel still runs there
		return nil, err
	}
	if err := l.say(sayTake); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	if k, err = receiveTunnel(l); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	if !calm() {
		return nil, errors.Join(ctx.Err(), closeAll(k.fds()))
	}
	return k, nil
}

// receiveTunnel returns a tunnel at rest.
func receiveTunnel(l link) (*kept, error) {
	fds, err := l.receive()
	if err != nil {
		return nil, errors.Join(err, closeAll(fds))
	}
	b, err := unseal(fds[0])
	fds = fds[1:]
	k := new(kept)
	if err == nil {
		var h *handoff
		if h, err = parseHandoff(b); err == nil {
			k.handoff = *h
		}
		clear(b)
	}
	if err == nil && k.descriptors() != len(fds) {
		err = errHandoff
	}
	if err != nil {
		return nil, errors.Join(err, closeAll(fds))
	}
	if err := livesHere(fds[0]); err != nil {
		return nil, errors.Join(err, closeAll(fds))
	}
	k.control, fds = fds[0], fds[1:]
	k.queues, fds = fds[:k.Queues], fds[k.Queues:]
	k.sockets = udp.Sockets{Lanes: fds[:k.Lanes], Selection: k.Selection, Plans: k.Plans}
	for i, fd := range fds[k.Lanes:] {
		k.sockets.Sources = append(k.sockets.Sources, udp.Source{Port: k.Sources[i], FD: fd})
	}
	return k, nil
}

// take makes the tunnel ours, and waits until the other daemon says so too. Nothing has begun then.
func (d *Daemon) take(l link, k *kept) (err error) {
	if d.listener, err = uapi.DefaultDir.Resume(k.Name, k.control); err != nil {
		return errors.Join(err, closeAll(k.queues), k.sockets.Close())
	}
	_ = d.listener.Leave() // the file is not ours yet; nobody else can have closed it
	d.o.Name, d.o.Lanes = k.Name, k.Queues
	makeRoom(k.Queues, d.o.Workers)
	if d.tunnel, err = d.revive(k); err != nil {
		return errors.Join(err, closeAll(k.queues), k.sockets.Close(), d.listener.Close())
	}
	if err = l.say(sayReady); err == nil {
		err = l.hear(sayYours, calmTime)
	}
	if err != nil {
		d.tunnel.Close()
		return errors.Join(err, d.tunnel.ports.discard(), d.listener.Close())
	}
	d.own()
	return nil
}
