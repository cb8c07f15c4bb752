// SPDX-License-Identifier: Apache-2.0

package uapi_test

import (
	"errors"
	"log/slog"
	"syscall"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// clientOf serves a device with a server, and returns a client.
func clientOf(t *testing.T, server *uapi.Server) *uapi.Client {
	t.Helper()
	dir := uapitest.NewDir(t)
	server.Handler = new(uapitest.Device)
	if server.Log == nil {
		server.Log = slog.New(slog.DiscardHandler)
	}
	uapitest.RunServer(t, dir, "wg0", server)
	return uapitest.Dial(t, dir, "wg0")
}

func TestClientReadsFlows(t *testing.T) {
	client := clientOf(t, &uapi.Server{Flows: func() any { return []string{"10.0.0.1:80"} }})
	for range 2 { // the connection stays usable
		var got []string
		if err := client.Flows(&got); err != nil || len(got) != 1 || got[0] != "10.0.0.1:80" {
			t.Errorf("got %q, error %v, want %q", got, err, "10.0.0.1:80")
		}
	}
}

func TestClientProbesPeer(t *testing.T) {
	known, want := noise.PublicKey{1}, config.PeerProbe{Session: true, Sent: 3}
	client := clientOf(t, &uapi.Server{Probe: func(key noise.PublicKey) (config.PeerProbe, bool) { return want, key == known }})
	for range 2 { // the connection stays usable
		if got, err := client.Probe(known); err != nil || got != want {
			t.Errorf("got %+v, error %v, want %+v", got, err, want)
		}
		if _, err := client.Probe(noise.PublicKey{2}); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("got error %v, want %v", err, syscall.ENOENT)
		}
	}
}

func TestDeviceRefusesRequestsThatItDoesNotServe(t *testing.T) {
	client := clientOf(t, &uapi.Server{})
	_, probeErr := client.Probe(noise.PublicKey{1})
	for name, err := range map[string]error{"flows": client.Flows(new(any)), "probe": probeErr} {
		if !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("%s: got error %v, want %v", name, err, syscall.EOPNOTSUPP)
		}
	}
	if _, err := client.Status(); err != nil {
		t.Errorf("the connection is unusable after the refusals: %v", err)
	}
}
