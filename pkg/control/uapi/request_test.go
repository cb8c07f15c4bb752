// SPDX-License-Identifier: Apache-2.0

package uapi_test

import (
	"errors"
	"log/slog"
	"slices"
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

func TestOneRequestProbesManyPeers(t *testing.T) {
	probed := map[noise.PublicKey]int{}
	client := clientOf(t, &uapi.Server{Probe: func(key noise.PublicKey) (config.PeerProbe, bool) {
		probed[key]++
		return config.PeerProbe{Sent: uint64(key[0])}, key[0] < 200
	}})
	var keys []noise.PublicKey
	for i := range 201 {
		keys = append(keys, noise.PublicKey{byte(i)})
	}
	got, err := client.ProbePeers(keys...)
	if err != nil || len(got) != 200 || got[keys[7]].Sent != 7 || len(probed) != 201 {
		t.Errorf("got %d reports, %d probed peers, %v, want those of 200 of 201 peers", len(got), len(probed), err)
	}
}

func TestStatusOfHasOnlyTheNamedPeers(t *testing.T) {
	dir := uapitest.NewDir(t)
	device := new(uapitest.Device)
	var keys []noise.PublicKey
	var status config.Status
	for i := range 5 {
		keys = append(keys, noise.PublicKey{byte(i)})
		status.Peers = append(status.Peers, config.PeerStatus{PublicKey: keys[i]})
	}
	device.SetStatus(status)
	uapitest.RunServer(t, dir, "wg0", &uapi.Server{Handler: device, Log: slog.New(slog.DiscardHandler)})
	client := uapitest.Dial(t, dir, "wg0")
	for _, wanted := range [][]noise.PublicKey{{keys[1], keys[3]}, {keys[4], {99}}, {{99}}, keys} {
		st, err := client.StatusOf(wanted...)
		var got []noise.PublicKey
		for i := range st.Peers {
			got = append(got, st.Peers[i].PublicKey)
		}
		want := slices.DeleteFunc(slices.Clone(wanted), func(k noise.PublicKey) bool { return !slices.Contains(keys, k) })
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("got %v, %v, want %v", got, err, want)
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
