// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
)

// recallFrom is a device.Config.Recall for what another device has returned.
func recallFrom(t *testing.T, d *device.Device) func(own, peer noise.PublicKey) (device.SessionEndpoint, bool) {
	t.Helper()
	key, list, ok := d.SessionEndpoints()
	if !ok || len(list) != 1 {
		t.Fatalf("got %d endpoints (%v), want 1", len(list), ok)
	}
	return func(own, peer noise.PublicKey) (device.SessionEndpoint, bool) {
		return list[0], own == key && peer == list[0].PublicKey
	}
}

// TestRestartedDeviceRenewsSessionWithoutEndpoint: the process was killed, its configuration names no endpoint, and only the other end has
// something to send.
func TestRestartedDeviceRenewsSessionWithoutEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b)
		recall := recallFrom(t, a.Device)
		time.Sleep(time.Second) // a peer accepts one initiation in 50 ms
		a.Close()
		began := time.Now()
		again := lan.Host(t, 1, devicetest.Options{Recall: recall})
		p := b.AsPeer(false)
		p.Endpoint = nil
		again.Apply(config.Device{PrivateKey: &a.Key, Peers: []config.Peer{p}})
		again.Await("a session", func() bool { return !again.PeerStatus(b).LastHandshake.IsZero() })
		synctest.Wait() // until a keepalive has confirmed the session
		carries(t, b, again, false, 100)
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("the session was renewed after %v", waited)
		}
	})
}

func TestConfiguredEndpointIsNotRecalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		b := lan.Host(t, 2, devicetest.Options{})
		elsewhere := device.SessionEndpoint{Endpoint: netip.MustParseAddrPort("192.0.2.77:7")}
		a := lan.Host(t, 1, devicetest.Options{Recall: func(_, _ noise.PublicKey) (device.SessionEndpoint, bool) { return elsewhere, true }})
		a.Apply(config.Device{Peers: []config.Peer{b.AsPeer(false)}})
		if got, want := a.PeerStatus(b).Endpoint.AddrPort, b.Outside(false); got != want {
			t.Errorf("got endpoint %v, want %v", got, want)
		}
	})
}

// TestEndedDeviceHasItsLastSessions: the interface may be deleted before anybody asks. The list at the end says also what was forgotten.
func TestEndedDeviceHasItsLastSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		if _, list, ok := a.SessionEndpoints(); !ok || len(list) != 0 {
			t.Errorf("before a session: got %v (%v), want none", list, ok)
		}
		talk(t, a, b)
		_, before, _ := a.SessionEndpoints()
		a.Close()
		key, list, ok := a.SessionEndpoints()
		if ok || key != a.Public() || len(list) != 1 || list[0] != before[0] {
			t.Errorf("after the end: got %v (%v), want %v and false", list, ok, before)
		}
	})
}
