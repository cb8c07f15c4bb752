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
