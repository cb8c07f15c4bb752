// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// batch sends or receives many datagrams with one system call on a UDP socket. One goroutine uses it; it does not
// allocate.
//
// The rule for unsafe: the memory that the kernel accesses (buffers, iovecs, control bytes) is allocated once. The fields
// below hold it as long as the batch lives, and its length matches the length beside each pointer.
type batch struct {
	raw     syscall.RawConn
	msgs    []mmsghdr
	iovs    []unix.Iovec
	bufs    [][]byte
	control []byte

	syscallNr uintptr
	first, n  int // the messages to pass to the kernel
	done      int // messages that it sent or received
	errno     syscall.Errno
	transfer  func(fd uintptr) bool
}

const groControlLen = 24 // CMSG_SPACE(sizeof(int))

// newSendBatch returns a batch that sends bufs on a connected socket. Their contents may change between sends.
func newSendBatch(conn *net.UDPConn, bufs [][]byte) (*batch, error) {
	return newBatch(conn, bufs, unix.SYS_SENDMMSG)
}

// newRecvBatch returns a batch that receives into count buffers of size bytes.
func newRecvBatch(conn *net.UDPConn, count, size int) (*batch, error) {
	bufs := make([][]byte, count)
	for i := range bufs {
		bufs[i] = make([]byte, size)
	}
	b, err := newBatch(conn, bufs, unix.SYS_RECVMMSG)
	if err != nil {
		return nil, err
	}
	b.control = make([]byte, count*groControlLen)
	for i := range b.msgs {
		b.msgs[i].hdr.Control = &b.control[i*groControlLen]
	}
	return b, nil
}

func newBatch(conn *net.UDPConn, bufs [][]byte, trap uintptr) (*batch, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("accessing the socket's descriptor: %w", err)
	}
	b := &batch{
		raw: raw, syscallNr: trap, bufs: bufs,
		msgs: make([]mmsghdr, len(bufs)), iovs: make([]unix.Iovec, len(bufs)),
	}
	for i, buf := range bufs {
		b.iovs[i].Base = &buf[0]
		b.iovs[i].SetLen(len(buf))
		b.msgs[i].hdr.Iov = &b.iovs[i]
		b.msgs[i].hdr.SetIovlen(1)
	}
	b.transfer = b.try
	return b, nil
}

// try makes the system call; false means that it would have blocked.
func (b *batch) try(fd uintptr) bool {
	for {
		n, _, errno := unix.Syscall6(b.syscallNr, fd, uintptr(unsafe.Pointer(&b.msgs[b.first])), uintptr(b.n),
			unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		}
		b.done, b.errno = int(n), errno
		return true
	}
}

// send sends the first n buffers. It returns how many were sent: fewer than n only with an error.
func (b *batch) send(n int) (int, error) {
	for sent := 0; sent < n; sent += b.done {
		b.first, b.n = sent, n-sent
		if err := b.raw.Write(b.transfer); err != nil {
			return sent, err
		}
		if b.errno != 0 {
			return sent, os.NewSyscallError("sendmmsg", b.errno)
		}
	}
	return n, nil
}

// recv waits for datagrams and returns the number of buffers that were filled.
func (b *batch) recv() (int, error) {
	for i := range b.msgs {
		b.msgs[i].hdr.SetControllen(groControlLen)
	}
	b.n = len(b.msgs)
	if err := b.raw.Read(b.transfer); err != nil {
		return 0, err
	}
	if b.errno != 0 {
		return 0, os.NewSyscallError("recvmmsg", b.errno)
	}
	return b.done, nil
}

// received returns the payload of buffer i, and the size of each datagram in it except the last (UDP_GRO).
func (b *batch) received(i int) (payload []byte, segSize int) {
	payload = b.bufs[i][:min(int(b.msgs[i].n), len(b.bufs[i]))]
	control := b.control[i*groControlLen:][:groControlLen]
	if b.msgs[i].hdr.Controllen >= unix.SizeofCmsghdr+4 &&
		binary.NativeEndian.Uint32(control[8:]) == unix.SOL_UDP &&
		binary.NativeEndian.Uint32(control[12:]) == unix.UDP_GRO {
		if size := int(binary.NativeEndian.Uint32(control[unix.SizeofCmsghdr:])); size > 0 {
			return payload, size
		}
	}
	return payload, max(len(payload), 1)
}

// setsockopt tries the integer options in turn, until the kernel accepts one.
func setsockopt(conn syscall.Conn, level, value int, options ...int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var errs []error
	for _, option := range options {
		var set error
		err := raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, option, value) })
		if err == nil && set == nil {
			return nil
		}
		errs = append(errs, err, set)
	}
	return errors.Join(errs...)
}
