// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
)

// wantHandshakes compares the handshake counters of h.
func wantHandshakes(t *testing.T, h *devicetest.Host, want device.HandshakeStats) {
	t.Helper()
	if diff := cmp.Diff(want, h.Device.Stats().(device.Stats).Handshakes); diff != "" {
		t.Error(diff)
	}
}

func TestHandshakesAreCountedByRoleAndResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		carries(t, a, b, false, 100)
		synctest.Wait()
		wantHandshakes(t, a, device.HandshakeStats{Initiated: 1, Completed: 1})
		wantHandshakes(t, b, device.HandshakeStats{Answered: 1, Confirmed: 1})
	})
}

func TestUnansweredHandshakeIsGivenUpAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		setPSK(a, b, newPSK(t))
		keepalive := uint16(3600) // asks for a session at once
		a.Apply(config.Device{Peers: []config.Peer{{PublicKey: b.Public(), UpdateOnly: true, Keepalive: &keepalive}}})
		time.Sleep(2 * time.Minute)
		got := a.Device.Stats().(device.Stats).Handshakes
		if got.Initiated < 15 || got.Completed != 0 || got.GaveUp != 1 {
			t.Errorf("%+v", got)
		}
		wantHandshakes(t, b, device.HandshakeStats{Answered: got.Initiated})
	})
}
