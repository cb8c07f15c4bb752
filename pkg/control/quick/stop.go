// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// stopDaemon deletes the interface, and waits for its daemon to exit. It also removes the socket of a daemon that was killed.
type stopDaemon struct{ link string }

func (s stopDaemon) run(_ context.Context, j *job) error {
	p, err := j.findProcess()
	if err != nil {
		return err
	}
	defer p.close()
	link := s.link
	if p.ours {
		link = j.presentName()
	}
	switch _, err := hostnet.FindLink(link); {
	case err == nil:
		j.echo("ip link delete dev " + link)
		if err := hostnet.DeleteLink(link); err != nil && !errors.Is(err, hostnet.ErrNoLink) {
			return err
		}
	case p.ours && j.netNS != 0: // the daemon deletes its interface wherever that is
		_ = unix.PidfdSendSignal(p.fd, unix.SIGTERM, nil, 0) // fails if it has ended
	}
	if err := p.waitExit(j.timeout()); err != nil {
		return fmt.Errorf("stopping the daemon of %s: %w", s.link, err)
	}
	j.removeStaleSocket()
	return nil
}

// removeStaleSocket removes the socket of a dead daemon: Listen replaces it, and Close removes it. Listen fails for a running daemon.
func (j *job) removeStaleSocket() {
	if l, err := j.Sockets.Listen(j.Name); err == nil {
		l.Close()
	}
}

// process is a daemon's process, or none.
type process struct {
	fd      int  // pidfd, -1 for none
	pid     int  // for messages
	ours    bool // a Runner started it, so it may be killed
	unknown bool // a daemon runs, and its process ID is unknown
}

// findProcess finds the daemon by the owner of its socket, before the interface and the socket are removed. If the listen queue of the
// socket is full, it uses the saved process ID. Another process may have that ID by now, so it must not be killed.
func (j *job) findProcess() (process, error) {
	none := process{fd: -1}
	st, _ := j.loadState()
	pid, err := socketOwner(filepath.Join(string(j.Sockets), j.Name+".sock"))
	unresponsive := uapi.IsUnresponsive(err)
	if unresponsive {
		pid, err = st.PID, nil
	}
	none.unknown = unresponsive
	if err != nil || pid <= 1 {
		return none, nil // no daemon, or init created its socket
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return none, nil
	}
	if err != nil {
		return none, fmt.Errorf("finding the daemon of %s: %w", j.Name, err)
	}
	return process{fd: fd, pid: pid, ours: st.PID == pid && !unresponsive}, nil
}

// socketOwner returns the process that listens on a socket.
func socketOwner(path string) (int, error) {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	owner, err := uapi.PeerCredentials(conn.(*net.UnixConn))
	if err != nil {
		return 0, err
	}
	return int(owner.Pid), nil
}

// waitExit waits for the process to exit. If the process is ours, waitExit kills it after the timeout.
func (p process) waitExit(timeout time.Duration) error {
	if p.unknown {
		return errors.New("it does not answer on its control socket, and its process ID is unknown: find it with ss -xlp, and end it")
	}
	if p.fd < 0 {
		return nil
	}
	exited, err := p.pollExit(timeout)
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if exited || err != nil || !p.ours {
			break
		}
		if err = unix.PidfdSendSignal(p.fd, sig, nil, 0); errors.Is(err, unix.ESRCH) {
			return nil
		}
		if err == nil {
			exited, err = p.pollExit(timeout)
		}
	}
	if err == nil && !exited {
		err = fmt.Errorf("process %d is still running after its interface was deleted: end it with kill %d", p.pid, p.pid)
	}
	return err
}

// pollExit waits for the exit, at most timeout, and reports whether the process has exited.
func (p process) pollExit(timeout time.Duration) (bool, error) {
	deadline := time.Now().Add(timeout)
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	for {
		left := max(time.Until(deadline), 0)
		n, err := unix.Poll(fds, int(left.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n > 0, err
	}
}

func (p process) close() {
	if p.fd >= 0 {
		unix.Close(p.fd)
	}
}
