// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/tunnel/daemon/handover"
)

// ErrHandedOver is the error of Serve after a handover: a successor has the tunnel.
var ErrHandedOver = errors.New("the tunnel was handed over to another process")

// Successor is a process that was started to receive the tunnel.
type Successor struct {
	// Ended delivers the process's exit error, nil for success.
	Ended <-chan error
	// Kill ends the process at once.
	Kill func()
}

// upgradeTimeout is how long a successor may take until it asks for a snapshot. With that it gets handover.PreparationTimeout more.
const upgradeTimeout = 30 * time.Second

// errSuccessorExited is the error for a successor that exits while the tunnel is still here.
var errSuccessorExited = errors.New("the new daemon exited before it took over the tunnel, which stays with the old one")

// successorExited adds the exit error of the successor, if it has one.
func successorExited(exit error) error {
	if exit == nil {
		return errSuccessorExited
	}
	return fmt.Errorf("%w: %w", errSuccessorExited, exit)
}

// errUpgradeTimeout is the error for a successor that takes longer than awaitSuccessor waits.
var errUpgradeTimeout = fmt.Errorf("no handover in time: %w", syscall.ETIMEDOUT)

// upgrade handles an upgrade request on the control socket: it starts a successor, and waits until that has the tunnel. ctx ends with this
// daemon. The successor is killed then, unless it has the tunnel.
func (d *Daemon) upgrade(ctx context.Context, path string) (replied func(), err error) {
	if err := d.addUpgradeReply(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.upgradeReplies.Done()
		}
	}()
	if !d.upgradeMu.TryLock() {
		return nil, fmt.Errorf("upgrading %s: another upgrade is under way: %w", d.Name(), syscall.EBUSY)
	}
	defer d.upgradeMu.Unlock()
	d.forgetSnapshot()
	d.log.Info("upgrade requested, starting the new daemon: this daemon runs the tunnel until the new one takes over", "program", path)
	successor, err := d.o.StartSuccessor(path, d.Name())
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", path, err)
	}
	if err := d.awaitSuccessor(ctx, successor); err != nil {
		return nil, err
	}
	<-d.announced
	return d.upgradeReplies.Done, nil
}

// awaitSuccessor waits until the successor has the tunnel. Otherwise it returns an error, and the process has ended.
func (d *Daemon) awaitSuccessor(ctx context.Context, s *Successor) error {
	timeout := time.NewTimer(upgradeTimeout)
	defer timeout.Stop()
	kill := func(cause error) error {
		return d.unlessHandedOver(func() error {
			s.Kill()
			<-s.Ended
			return fmt.Errorf("waiting for the successor, which was killed: %w", cause)
		})
	}
	for {
		select {
		case <-d.announced:
			return nil
		case peers := <-d.preparing:
			timeout.Reset(upgradeTimeout + handover.PreparationTimeout(peers))
		case exit := <-s.Ended:
			return d.unlessHandedOver(func() error { return successorExited(exit) })
		case <-timeout.C:
			return kill(errUpgradeTimeout)
		case <-ctx.Done():
			return kill(context.Cause(ctx))
		}
	}
}

// noteSnapshot tells the upgrade that its successor prepares a tunnel with so many peers. The upgrade may not wait yet: a successor can ask
// for the snapshot before StartSuccessor returns. It has one caller at a time (handoverMu).
func (d *Daemon) noteSnapshot(peers int) {
	d.forgetSnapshot()
	d.preparing <- peers
}

// forgetSnapshot forgets the last snapshot, of a successor that has failed or was started by somebody else.
func (d *Daemon) forgetSnapshot() {
	select {
	case <-d.preparing:
	default:
	}
}

// addUpgradeReply keeps the Daemon from ending until upgradeReplies.Done is called. It fails after a handover.
func (d *Daemon) addUpgradeReply() error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if err := d.checkNotHandedOver("upgrading"); err != nil {
		return err
	}
	d.upgradeReplies.Add(1)
	return nil
}

// unlessHandedOver calls f and returns its result, or returns nil after a handover. It waits for a
// handover under way, and none begins while f runs. A successor that has the tunnel must not be
// killed for being late.
func (d *Daemon) unlessHandedOver(f func() error) error {
	d.handoverMu.Lock()
	defer d.handoverMu.Unlock()
	if d.wasHandedOver() {
		return nil
	}
	return f()
}

// checkNotHandedOver fails after a handover. The caller holds mu.
func (d *Daemon) checkNotHandedOver(doing string) error {
	if !d.handedOver {
		return nil
	}
	return fmt.Errorf("%s %s: %w: %w", doing, d.tunnel.tun.Name(), ErrHandedOver, syscall.ENODEV)
}

// sendHandover implements uapi.Server.Handover: it hands the tunnel over to the process at the other end. The tunnel runs here until
// that process takes it, and again if the process ends before it says that it serves the tunnel. Sessions are not handed over, so that the two
// processes can never use the same nonce.
func (d *Daemon) sendHandover(conn *net.UnixConn) error {
	if !d.handoverMu.TryLock() {
		return fmt.Errorf("handing over %s: another handover is under way: %w", d.Name(), syscall.EBUSY)
	}
	defer d.handoverMu.Unlock()
	d.mu.RLock()
	err := d.checkNotHandedOver("handing over")
	d.mu.RUnlock()
	if err != nil {
		return err
	}
	c := handover.Conn{UnixConn: conn}
	if err := c.Offer(); err != nil {
		return err
	}
	if err := c.Await(handover.Prepare, handover.Timeout); err != nil {
		d.log.Warn("handover not accepted by the new daemon, this daemon keeps the tunnel without interruption", "error", err)
		return nil
	}
	d.configuring.Lock() // a change would be missing in the snapshot
	defer d.configuring.Unlock()
	peers, err := d.sendSnapshot(c)
	if err != nil {
		d.log.Warn("preparing the handover failed, this daemon keeps the tunnel without interruption and the new one ends", "error", err)
		d.current().DiscardSnapshot()
		return nil
	}
	d.stopAndSend(c, peers)
	return nil
}

// sendSnapshot sends the state of the running tunnel, then what changes meanwhile. It returns the number of peers when the successor takes the
// tunnel.
func (d *Daemon) sendSnapshot(c handover.Conn) (peers int, err error) {
	d.mu.RLock()
	t := d.tunnel
	d.mu.RUnlock()
	queues, ok := t.tun.(tun.HandoverDevice)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	fds, err := queues.DuplicateFDs()
	if err != nil {
		return 0, err
	}
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	s := handover.State{Name: t.tun.Name(), Queues: len(fds), Steered: t.tun.Features().Steer, KeepSocket: d.o.KeepSocket}
	if s.Device, err = t.Snapshot(); err != nil {
		return 0, err
	}
	peers = len(s.Device.Peers)
	d.noteSnapshot(peers)
	if err := c.SendSnapshot(&s, fds); err != nil {
		return 0, err
	}
	return peers, d.sendChanges(c, t, s)
}

const (
	// fewChanges is the number of changed peers that are left for the time in which the tunnel is stopped.
	fewChanges = 128
	// maxRounds bounds how often changes are sent before that. Each round takes less time than the one before, unless peers change faster than
	// the successor can follow.
	maxRounds = 8
)

// sendChanges sends the peers that have changed since they were last sent, until they are few. The tunnel runs.
func (d *Daemon) sendChanges(c handover.Conn, t *tunnel, s handover.State) error {
	for range maxRounds {
		if t.ChangedPeers() <= fewChanges {
			break
		}
		s.Device = t.Changes()
		d.noteSnapshot(len(s.Device.Peers))
		if err := c.SendChanges(&s); err != nil {
			return err
		}
	}
	return nil
}

// stopAndSend stops the tunnel of so many peers and sends what has changed since the last round. It restarts the tunnel if that fails.
func (d *Daemon) stopAndSend(c handover.Conn, peers int) {
	began := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	stopped, err := d.stopTunnel()
	if stopped == nil {
		d.log.Warn("stopping the tunnel for the handover failed, this daemon keeps the tunnel without interruption", "error", err)
		d.tunnel.DiscardSnapshot()
		return
	}
	changed := len(stopped.Device.Peers)
	if err := d.send(c, stopped); err != nil {
		d.log.Warn("handover failed, restarting the tunnel in the old daemon with new handshakes", "error", err)
		d.restartTunnel(stopped)
		return
	}
	d.handedOver = true
	_ = stopped.CloseFDs()
	successor := c.PID()
	d.log.Info("tunnel handed over", "pid", successor, "interruption", time.Since(began).String(), "peers", peers, "changed_peers", changed)
	if err := c.SendCounters(d.tunnel.Retire()); err != nil {
		d.log.Warn("sending the counters to the new daemon failed, they restart at zero there", "error", err)
	}
	go d.finishHandover(stopped.Name, successor)
}

// stopTunnel stops the tunnel, and returns its state and descriptors. After an error the tunnel still runs, or had ended before. The
// caller holds mu.
func (d *Daemon) stopTunnel() (t *handover.Tunnel, err error) {
	queues, ok := d.tunnel.tun.(tun.HandoverDevice)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	if err := d.listener.Pause(); err != nil { // new clients wait for the process that serves the tunnel afterwards
		return nil, err
	}
	defer func() {
		if t == nil {
			_ = d.listener.Resume()
		}
	}()
	t = &handover.Tunnel{ControlFD: -1}
	if t.ControlFD, err = d.listener.DupFD(); err != nil {
		return nil, err
	}
	if t.QueueFDs, err = queues.DuplicateFDs(); err != nil {
		return nil, errors.Join(err, t.CloseFDs())
	}
	t.State = handover.State{
		Name: d.tunnel.tun.Name(), Queues: len(t.QueueFDs), Steered: d.tunnel.tun.Features().Steer, KeepSocket: d.o.KeepSocket,
	}
	if t.Device, err = d.tunnel.Leave(func() error { return d.tunnel.ports.dupSockets(&t.Sockets) }); err != nil {
		return nil, errors.Join(err, t.CloseFDs())
	}
	if absent := d.absentLinks.Load(); absent != nil { // nil if links are not watched
		t.AbsentLinks = *absent
	}
	t.Lanes, t.Holders, t.Selection, t.Plans = len(t.Sockets.Lanes), len(t.Sockets.Holder), t.Sockets.Selection, t.Sockets.Plans
	for _, s := range t.Sockets.Sources {
		t.Sources = append(t.Sources, s.Port)
	}
	return t, nil
}

// send sends a stopped tunnel, and returns nil once the successor serves it. The caller holds mu.
func (d *Daemon) send(c handover.Conn, stopped *handover.Tunnel) error {
	if err := c.SendTunnel(stopped); err != nil {
		return err
	}
	// Before Commit: if this process ends from now on, it must not remove the control socket, which the successor uses. If Close has
	// begun, the socket is being removed, and the handover fails.
	if err := d.listener.Disown(); err != nil {
		return fmt.Errorf("leaving the control socket to the successor: %w", err)
	}
	if err := c.Send(handover.Commit); err != nil {
		return err
	}
	if err := c.Await(handover.Serving, handover.Timeout); handover.IsClosed(err) {
		return fmt.Errorf("waiting for the successor to serve the tunnel: %w", err)
	} else if err != nil {
		d.log.Warn("new daemon has the tunnel but did not confirm in time that it serves it, this daemon ends: check with ropewalk show", "error", err)
	}
	return nil
}

// finishHandover reports the successor, and ends the Daemon once the clients of upgrade have their answers.
func (d *Daemon) finishHandover(name string, successor int) {
	if d.o.OnHandover != nil {
		d.o.OnHandover(name, successor)
	}
	close(d.announced)
	d.upgradeReplies.Wait()
	d.finish()
}

// restartTunnel starts a stopped tunnel again. The caller holds mu.
func (d *Daemon) restartTunnel(stopped *handover.Tunnel) {
	d.ownSocket() // the successor may have owned it already
	stopped.Device = d.tunnel.CompleteState()
	counters := d.tunnel.Retire()
	t, err := d.restoreTunnel(stopped)
	if err != nil {
		d.log.Error("restarting the tunnel failed, too, after the failed handover: this daemon ends, and traffic stops until one is started", "error", err)
		_ = stopped.CloseFDs()
		d.finish()
		return
	}
	_ = unix.Close(stopped.ControlFD)
	_ = d.listener.Resume() // fails for a closed listener, which ends the Daemon anyway
	t.AddCounters(counters)
	d.tunnel = t
	t.Start()
	d.log.Info("tunnel restarted in the old daemon after a failed handover")
	go d.finishWith(t.Device)
}

// ownSocket makes this process the owner of the control socket, so that `ropewalk down` waits for this process to end.
func (d *Daemon) ownSocket() {
	if err := d.listener.Own(); err != nil && !errors.Is(err, net.ErrClosed) {
		d.log.Warn("recording this process as owner of the control socket failed, `ropewalk down` may wait for the wrong process", "error", err)
	}
}
