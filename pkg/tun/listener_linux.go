// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// listener reads a netlink socket in a goroutine of its own. A deadline ends it, and may be followed by another beginning: no
// descriptor is closed while anybody reads from it.
type listener struct {
	socket *os.File
	ended  chan struct{} // nil before the first beginning
}

var (
	// errCut says that a datagram was longer than the buffer.
	errCut = errors.New("a netlink message was cut off")
	// errEnded says that there is nothing more to be read: end's deadline.
	errEnded = errors.New("reading has ended")
)

// kernel is the port of what the kernel sends.
const kernel = 0

// begin starts to read datagrams of the kernel's of up to size bytes. hear is called with each and its control messages, both its
// own only until it returns, or with an error if any were lost; it returns whether it wants more.
func (l *listener) begin(size int, hear func(message, control []byte, err error) bool) error {
	raw, err := l.socket.SyscallConn()
	if err == nil {
		err = l.socket.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return fmt.Errorf("listening to netlink: %w", err)
	}
	l.ended = make(chan struct{})
	go func() {
		defer close(l.ended)
		message, control := make([]byte, size), make([]byte, unix.CmsgSpace(4))
		for more := true; more; {
			m, c, err := receive(raw, message, control)
			if errors.Is(err, errEnded) {
				return
			}
			more = hear(m, c, err)
		}
	}()
	return nil
}

// end stops reading. What is left to be read is for the next beginning.
func (l *listener) end() {
	if l.ended != nil {
		_ = l.socket.SetReadDeadline(time.Unix(1, 0))
		<-l.ended
	}
}

// receive waits for a datagram of the kernel's, and returns the parts of the buffers that it fills.
func receive(raw syscall.RawConn, message, control []byte) ([]byte, []byte, error) {
	for {
		var n, m, flags int
		var from unix.Sockaddr
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			n, m, flags, from, failed = unix.Recvmsg(int(fd), message, control, unix.MSG_DONTWAIT)
			return !errors.Is(failed, unix.EAGAIN)
		})
		switch sender, ok := from.(*unix.SockaddrNetlink); {
		case err != nil:
			return nil, nil, fmt.Errorf("%w: %w", errEnded, err)
		case failed != nil:
			return nil, nil, failed
		case flags&unix.MSG_TRUNC != 0:
			return nil, nil, errCut
		case ok && sender.Pid == kernel:
			return message[:n], control[:m], nil
		}
	}
}
