// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// newPipeQueue returns a queue that reads from a pipe in place of a TUN, and whose ReadOr has no timeout.
func newPipeQueue(t *testing.T) (q *queue, writeFD int) {
	t.Helper()
	var ends [2]int
	expect.NoError(t, unix.Pipe2(ends[:], unix.O_NONBLOCK|unix.O_CLOEXEC))
	stop := newEventFD(t)
	t.Cleanup(func() { _, _ = unix.Close(ends[0]), unix.Close(ends[1]) })
	q = newQueue(ends[0], stop, make(chan struct{}, 1), false)
	q.readOr.timeout = -1
	return q, ends[1]
}

func newEventFD(t *testing.T) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	expect.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// fillEventFD makes an eventfd not writable.
func fillEventFD(t *testing.T, fd int) {
	t.Helper()
	_, err := unix.Write(fd, []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	expect.NoError(t, err)
}

func readOr(t *testing.T, q *queue, writable ...int32) (int, error) {
	t.Helper()
	return q.ReadOr([][]byte{make([]byte, MaxTrain)}, make([]int, 1), writable)
}

// TestReadOrEndsWhenDescriptorIsWritable hangs if ReadOr waits for nothing but the TUN.
func TestReadOrEndsWhenDescriptorIsWritable(t *testing.T) {
	q, _ := newPipeQueue(t)
	full, other := newEventFD(t), newEventFD(t)
	fillEventFD(t, full)
	if n, err := readOr(t, q, -1, int32(full), int32(other)); n != 0 || err != nil {
		t.Errorf("got %d trains and %v, want none", n, err)
	}
}

// TestReadOrWaitsForTUN has a descriptor that is not writable. A stop ends ReadOr as it ends Read.
func TestReadOrWaitsForTUN(t *testing.T) {
	q, in := newPipeQueue(t)
	full := newEventFD(t)
	fillEventFD(t, full)
	go func() { _, _ = unix.Write(in, make([]byte, 100)) }()
	if n, err := readOr(t, q, int32(full)); n != 1 || err != nil {
		t.Errorf("got %d trains and %v, want one", n, err)
	}
	_, err := unix.Write(q.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	expect.NoError(t, err)
	if _, err := readOr(t, q, int32(full)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("got error %v after the stop, want %v", err, os.ErrClosed)
	}
}

// TestReadOrEndsSoonWithManyDescriptors has one that is writable behind those that fit. It hangs if ReadOr waits without a timeout.
func TestReadOrEndsSoonWithManyDescriptors(t *testing.T) {
	q, _ := newPipeQueue(t)
	full := newEventFD(t)
	fillEventFD(t, full)
	fds := make([]int32, MaxReadFDs+1)
	for i := range fds {
		fds[i] = int32(full)
	}
	fds[MaxReadFDs] = int32(newEventFD(t))
	if n, err := readOr(t, q, fds...); n != 0 || err != nil {
		t.Errorf("got %d trains and %v, want none", n, err)
	}
}

// newFullQueue returns a queue that writes to a full pipe in place of a TUN, and its other end. A page that is read makes room for one.
func newFullQueue(t *testing.T) (q *queue, readFD int, page []byte) {
	t.Helper()
	q, in := newPipeQueue(t)
	readFD, q.fd, page = q.fd, in, make([]byte, 4096)
	for err := error(nil); err == nil; {
		_, err = unix.Write(in, page)
	}
	return q, readFD, page
}

// TestWriteWaitsForRoomAfterStop writes to a full pipe in place of a TUN. In most rounds the writer finds it full before a reader makes room.
func TestWriteWaitsForRoomAfterStop(t *testing.T) {
	q, out, page := newFullQueue(t)
	_, err := unix.Write(q.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	expect.NoError(t, err)
	for range 64 {
		for _, write := range []func([][]byte) error{q.Write, q.Inject} {
			done := make(chan error)
			go func() { done <- write([][]byte{page}) }()
			runtime.Gosched()
			_, err = unix.Read(out, make([]byte, len(page)))
			expect.NoError(t, err)
			expect.NoError(t, <-done)
		}
	}
}

// TestCloseEndsWaitForRoom hangs if nothing ends the wait of a writer.
func TestCloseEndsWaitForRoom(t *testing.T) {
	q, _, page := newFullQueue(t)
	done := make(chan error)
	go func() { done <- q.Write([][]byte{page}) }()
	runtime.Gosched()
	q.writer.guard.Close()
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("got error %v, want %v", err, os.ErrClosed)
	}
}
