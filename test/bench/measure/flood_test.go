// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFloodWithoutPacketsIsAnError(t *testing.T) {
	f := &flood{to: &unix.SockaddrInet4{Addr: [4]byte{255, 255, 255, 255}}, trains: [][]byte{make([]byte, 9)}}
	if err := f.open(netip.MustParseAddr("127.0.0.1")); err != nil {
		t.Fatal(err)
	}
	f.done.Go(f.run)
	if sent, _, err := f.stop(); sent != 0 || !errors.As(err, new(unix.Errno)) { // to broadcast is not allowed
		t.Errorf("%d sent, %v", sent, err)
	}
}
