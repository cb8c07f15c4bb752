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

	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// stopDaemon deletes the interface, which ends its daemon, and waits for that. It also does away with the socket of a
// daemon that was killed.
type stopDaemon struct{ link string }

func (stopDaemon) String() string { return "" }

func (stopDaemon) undo() Step { return nil }

func (s stopDaemon) run(_ context.Context, j *job) error {
	p, err := j.findProcess()
	if err != nil {
		return err
	}
	defer p.close()
	if _, err := hostnet.FindLink(s.link); err == nil {
		j.echo("ip link delete dev " + s.link)
		if err := hostnet.DeleteLink(s.link); err != nil && !errors.Is(err, hostnet.ErrNoLink) {
			return err
		}
	}
	if err := p.waitEnd(j.timeout()); err != nil {
		return fmt.Errorf("stopping the daemon of %s: %w", s.link, err)
	}
	j.removeStaleSocket()
	return nil
}

// removeStaleSocket takes the dead daemon's socket over and closes it. It fails when there is a living one.
func (j *job) removeStaleSocket() {
	if l, err := j.Sockets.Listen(j.Name); err == nil {
		l.Close()
	}
}

// process is another process, or none at all.
type process struct {
	fd   int  // pidfd, -1 for none
	pid  int  // for messages
	ours bool // a Runner started it, so it may be killed
	lost bool // there is one, and nobody knows which
}

// findProcess finds the daemon by whom its socket belongs to. It must be found before the interface, and with it the
// socket, goes away. One that lets nobody in is known by what is remembered: that number may be another process's by now,
// so it is none to end.
func (j *job) findProcess() (process, error) {
	none := process{fd: -1}
	st, _ := j.recall()
	pid, err := socketOwner(filepath.Join(string(j.Sockets), j.Name+".sock"))
	silent := uapi.IsSilent(err)
	if silent {
		pid, err = st.PID, nil
	}
	none.lost = silent
	if err != nil || pid <= 1 {
		return none, nil // no daemon, or one whose socket was made by init for it
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return none, nil
	}
	if err != nil {
		return none, fmt.Errorf("finding the daemon of %s: %w", j.Name, err)
	}
	return process{fd: fd, pid: pid, ours: st.PID == pid && !silent}, nil
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

// waitEnd waits for the process to end. One of ours that does not is made to.
func (p process) waitEnd(timeout time.Duration) error {
	if p.lost {
		return errors.New("it lets nobody in, and which process it is nobody knows")
	}
	if p.fd < 0 {
		return nil
	}
	ended, err := p.ended(timeout)
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if ended || err != nil || !p.ours {
			break
		}
		if err = unix.PidfdSendSignal(p.fd, sig, nil, 0); errors.Is(err, unix.ESRCH) {
			return nil
		}
		if err == nil {
			ended, err = p.ended(timeout)
		}
	}
	if err == nil && !ended {
		err = fmt.Errorf("process %d goes on after its interface is gone", p.pid)
	}
	return err
}

// ended waits at most that long.
func (p process) ended(timeout time.Duration) (bool, error) {
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
