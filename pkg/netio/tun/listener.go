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

// listener reads a netlink socket in its own goroutine. A read deadline ends the goroutine; start may follow again.
// No descriptor is closed while the goroutine reads from it.
type listener struct {
	socket *os.File
	ended  chan struct{} // nil before the first start
}

// errStopped means that stop has set the read deadline.
var errStopped = errors.New("netlink reader stopped")

// kernelPort is the netlink port id of the kernel.
const kernelPort = 0

// start begins to read datagrams of up to size bytes from the kernel. handle is called with each datagram and its
// control messages, both valid until it returns, or with an error if any were lost. It returns whether to continue.
func (l *listener) start(size int, handle func(message, control []byte, err error) bool) error {
	raw, err := l.socket.SyscallConn()
	if err == nil {
		err = l.socket.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return fmt.Errorf("reading a netlink socket: %w", err)
	}
	l.ended = make(chan struct{})
	go func() {
		defer close(l.ended)
		message, control := make([]byte, size), make([]byte, unix.CmsgSpace(4))
		for more := true; more; {
			m, c, err := receive(raw, message, control)
			if errors.Is(err, errStopped) {
				return
			}
			more = handle(m, c, err)
		}
	}()
	return nil
}

// stop ends reading. Unread datagrams stay in the socket for the next start.
func (l *listener) stop() {
	if l.ended != nil {
		_ = l.socket.SetReadDeadline(time.Unix(1, 0))
		<-l.ended
	}
}

// receive waits for a datagram from the kernel. It returns the filled parts of both buffers.
func receive(raw syscall.RawConn, message, control []byte) ([]byte, []byte, error) {
	for {
		var n, m int
		var from unix.Sockaddr
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			n, m, _, from, failed = unix.Recvmsg(int(fd), message, control, unix.MSG_DONTWAIT)
			return !errors.Is(failed, unix.EAGAIN)
		})
		switch sender, ok := from.(*unix.SockaddrNetlink); {
		case err != nil:
			return nil, nil, fmt.Errorf("%w: %w", errStopped, err)
		case failed != nil:
			return nil, nil, failed
		case ok && sender.Pid == kernelPort:
			return message[:n], control[:m], nil
		}
	}
}
