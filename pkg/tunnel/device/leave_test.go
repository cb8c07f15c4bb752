// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestNoLinkEventComesWhileSocketsAreKept: a port that opens then would find its number taken by the duplicate of its own reservation.
func TestNoLinkEventComesWhileSocketsAreKept(t *testing.T) {
	opened := 0
	d := New(Config{
		TUN: tuntest.NewFake(tuntest.FakeConfig{}), Log: slog.New(slog.DiscardHandler),
		OpenPort: func(PortOptions) (underlay.Port, error) { opened++; return nil, errors.New("no port") },
	})
	defer d.Close()
	d.Start()
	refused := errors.New("no descriptors")
	if _, err := d.Leave(func() error { return refused }); !errors.Is(err, refused) {
		t.Errorf("got %v, want %v", err, refused)
	}
	before := 0
	_, err := d.Leave(func() error { // after an error the device goes on, and can leave later
		if d.mu.TryLock() {
			t.Error("a link event may come")
			d.mu.Unlock()
		}
		before = opened
		return nil
	})
	expect.NoError(t, err)
	d.Follow(tun.Event{Up: true})
	if opened != before {
		t.Errorf("%d ports were opened after the sockets were kept", opened-before)
	}
}
