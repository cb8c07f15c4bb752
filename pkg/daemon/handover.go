// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/ropewalk/ropewalk/pkg/tun"
	"github.com/ropewalk/ropewalk/pkg/uapi"
	"github.com/ropewalk/ropewalk/pkg/underlay/udp"
)

// ErrHandedOver says that another process has the tunnel now.
var ErrHandedOver = errors.New("the tunnel was handed over to another process")

// kept is a tunnel at rest: what it is, and its descriptors.
type kept struct {
	handoff
	control int
	queues  []int
	sockets udp.Sockets
}

// fds are all of them, in the order of the handoff.
func (k *kept) fds() []int {
	fds := append([]int{k.control}, k.queues...)
	for fd := range k.sockets.FDs {
		fds = append(fds, fd)
	}
	return fds
}

// handOver gives the tunnel to who is at the other end. Until it has said that it is ready, and again if it goes away before it has
// started, the tunnel runs here: no session is handed over, and so no nonce can be used by both.
func (d *Daemon) handOver(conn *net.UnixConn) error {
	if !d.handing.TryLock() {
		return fmt.Errorf("handing %s over twice: %w", d.Name(), syscall.EBUSY)
	}
	defer d.handing.Unlock()
	d.mu.RLock()
	err := d.refuseOnceLeft("handing over")
	d.mu.RUnlock()
	if err != nil {
		return err
	}
	l := link{conn}
	if err := l.offer(); err != nil {
		return err
	}
	if err := l.hear(sayTake, calmTime); err != nil {
		d.log.Warn("the tunnel stays here: nobody has taken it over", "error", err)
		return nil
	}
	began := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	k, err := d.rest()
	if k == nil {
		d.log.Warn("the tunnel stays here: it cannot be handed over", "error", err)
		return nil
	}
	if err := d.give(l, k); err != nil {
		d.log.Warn("the tunnel goes on here: the other daemon has not taken it over", "error", err)
		d.goOn(k)
		return nil
	}
	d.left = true
	_ = closeAll(k.fds())
	heir := pidOf(conn)
	d.log.Info("another process has the tunnel", "interface", k.Name, "pid", heir, "after", time.Since(began).String())
	go d.endAfterHandOver(k.Name, heir)
	return nil
}

// refuseOnceLeft is an error once another process has the tunnel, for what is asked of this one. The caller holds mu.
func (d *Daemon) refuseOnceLeft(doing string) error {
	if !d.left {
		return nil
	}
	return fmt.Errorf("%s %s: %w: %w", doing, d.tunnel.tun.Name(), ErrHandedOver, syscall.ENODEV)
}

// endAfterHandOver ends the Daemon once all who have to know of the process that has the tunnel do.
func (d *Daemon) endAfterHandOver(name string, heir int) {
	if d.o.HandedOver != nil {
		d.o.HandedOver(name, heir)
	}
	close(d.given)
	d.upgrades.Wait()
	d.end()
}

// rest stops the tunnel and keeps all that it is made of. It returns nil and an error if it has not touched it, or if it had
// ended. The caller holds mu.
func (d *Daemon) rest() (k *kept, err error) {
	keeper, ok := d.tunnel.tun.(tun.Keeper)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	if err := d.listener.Hold(); err != nil { // from now on it is open who will answer
		return nil, err
	}
	defer func() {
		if k == nil {
			_ = d.listener.Release()
		}
	}()
	k = &kept{control: -1}
	if k.control, err = d.listener.Keep(); err != nil {
		return nil, err
	}
	if k.queues, err = keeper.Keep(); err != nil {
		return nil, errors.Join(err, closeAll(k.fds()))
	}
	if err := d.tunnel.ports.keep(&k.sockets); err != nil {
		return nil, errors.Join(err, closeAll(k.fds()))
	}
	k.handoff = handoff{
		Name: d.tunnel.tun.Name(), Queues: len(k.queues), Steered: d.tunnel.tun.Features().Steer,
		Lanes: len(k.sockets.Lanes), Selection: k.sockets.Selection, Plans: k.sockets.Plans,
	}
	for _, s := range k.sockets.Sources {
		k.Sources = append(k.Sources, s.Port)
	}
	if k.state, err = d.tunnel.Leave(); err != nil {
		return nil, errors.Join(err, closeAll(k.fds()))
	}
	return k, nil
}

// give sends the tunnel, and returns nil once it runs at the other end. The caller holds mu.
func (d *Daemon) give(l link, k *kept) error {
	text, err := k.state.Encode()
	if err != nil {
		return err
	}
	k.Device = text
	b, err := k.encode()
	clear(text)
	k.Device = nil
	if err != nil {
		return err
	}
	memory, err := seal(b)
	clear(b)
	if err != nil {
		return err
	}
	err = l.send(append([]int{memory}, k.fds()...))
	if err = errors.Join(err, closeAll([]int{memory})); err != nil {
		return err
	}
	if err := l.hear(sayReady, stillTime+peerTime*time.Duration(len(k.state.Peers))); err != nil {
		return fmt.Errorf("waiting until it has everything: %w", err)
	}
	// Before the other daemon begins: an end of this one from now on must not take its control socket away. If this one's end has
	// begun, the socket is as good as gone: nothing is given.
	if err := d.listener.Leave(); err != nil {
		return fmt.Errorf("leaving the control socket: %w", err)
	}
	if err := l.say(sayYours); err != nil {
		return err
	}
	if err := l.hear(sayStarted, calmTime); isEnd(err) {
		return fmt.Errorf("waiting until it has started: %w", err)
	} else if err != nil {
		d.log.Warn("the other daemon has the tunnel, and has not said that it runs", "error", err)
	}
	return nil
}

// pidOf is the process at the other end, 0 if it is in another PID namespace.
func pidOf(conn *net.UnixConn) int {
	peer, err := uapi.PeerOf(conn)
	if err != nil {
		return 0
	}
	return int(peer.Pid)
}

// isEnd reports whether the process at the other end has gone, or wants no more.
func isEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// goOn has a tunnel at rest run again. The caller holds mu.
func (d *Daemon) goOn(k *kept) {
	d.own() // the other daemon may have got that far
	t, err := d.revive(k)
	if err != nil {
		d.log.Error("the tunnel cannot go on", "error", err)
		_ = closeAll(k.fds())
		d.end()
		return
	}
	_ = closeAll([]int{k.control})
	_ = d.listener.Release() // it fails for one that is closed, which ends the Daemon anyway
	d.tunnel = t
	t.Start()
	go d.follow(t.Device)
}

// own makes the control socket this process's, so that who takes the tunnel down waits for this one's end.
func (d *Daemon) own() {
	if err := d.listener.Own(); err != nil && !errors.Is(err, net.ErrClosed) {
		d.log.Warn("the control socket bears the name of another process", "error", err)
	}
}

// revive makes a tunnel of what another one was. After an error the descriptors that k still has are the caller's.
func (d *Daemon) revive(k *kept) (*tunnel, error) {
	t, err := tun.Adopt(k.queues, k.Steered, tun.Config{Name: k.Name, Linger: true})
	if err != nil {
		return nil, err
	}
	tunnel := d.build(t, &k.sockets)
	if err := tunnel.Resume(k.state); err != nil {
		tunnel.Close()
		k.queues = nil // closed
		return nil, err
	}
	return tunnel, nil
}
