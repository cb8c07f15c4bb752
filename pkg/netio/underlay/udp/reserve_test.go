// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestReservedPortIsFreeOnlyAfterwards(t *testing.T) {
	first, err := Open(Config{Lanes: 1})
	expect.NoError(t, err)
	port := first.LocalPort()
	var r Reservation
	if err := r.Set(port); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a port in use: got %v, want %v", err, unix.EADDRINUSE)
	}
	expect.NoError(t, first.Close())
	expect.NoError(t, r.Set(port))
	expect.NoError(t, r.Set(port)) // its own reservation is no obstacle
	if _, err := Open(Config{Port: port, Lanes: 2}); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a reserved port: got %v, want %v", err, unix.EADDRINUSE)
	}
	expect.NoError(t, r.Set(0))
	again, err := Open(Config{Port: port, Lanes: 2})
	expect.NoError(t, err)
	expect.NoError(t, again.Close())
}

func TestReservationLastsUntilItsDuplicateEnds(t *testing.T) {
	port, err := Open(Config{Lanes: 1})
	expect.NoError(t, err)
	n := port.LocalPort()
	expect.NoError(t, port.Close())
	var r, next Reservation
	if fds, err := r.Duplicate(); len(fds) != 0 || err != nil {
		t.Errorf("of no reservation: got %v, %v", fds, err)
	}
	expect.NoError(t, r.Set(n))
	fds, err := r.Duplicate()
	expect.NoError(t, err)
	expect.NoError(t, r.Set(0))
	expect.NoError(t, next.Adopt(fds[0]))
	expect.NoError(t, next.Set(n)) // it has that port
	if _, err := Open(Config{Port: n}); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("an adopted reservation: got %v, want %v", err, unix.EADDRINUSE)
	}
	pipe, err := unix.Dup(0)
	expect.NoError(t, err)
	if err := next.Adopt(pipe); err == nil {
		t.Error("adopted a descriptor that is no socket")
	}
	expect.NoError(t, next.Set(0))
	again, err := Open(Config{Port: n})
	expect.NoError(t, err)
	expect.NoError(t, again.Close())
}
