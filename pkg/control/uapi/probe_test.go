// SPDX-License-Identifier: Apache-2.0

package uapi_test

import (
	"context"
	"errors"
	"log/slog"
	"syscall"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

func TestClientProbesPeer(t *testing.T) {
	dir, known := uapitest.NewDir(t), noise.PublicKey{1}
	l, err := dir.Listen("wg0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	server := uapi.Server{
		Handler: new(uapitest.Device), Log: slog.New(slog.DiscardHandler),
		Probe: func(key noise.PublicKey) (config.PeerProbe, bool) {
			return config.PeerProbe{Session: true, Sent: 3}, key == known
		},
	}
	go func() { done <- server.Serve(ctx, l) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	client, err := dir.Dial("wg0")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range 2 { // the connection stays usable
		if got, err := client.Probe(known); err != nil || got != (config.PeerProbe{Session: true, Sent: 3}) {
			t.Errorf("got %+v, error %v", got, err)
		}
		if _, err := client.Probe(noise.PublicKey{2}); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("got error %v, want %v", err, syscall.ENOENT)
		}
	}
}

func TestDeviceWithoutProbesRefusesRequest(t *testing.T) {
	dir := uapitest.NewDir(t)
	uapitest.Serve(t, dir, "wg0", new(uapitest.Device))
	client, err := dir.Dial("wg0")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Probe(noise.PublicKey{1}); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("got error %v, want %v", err, syscall.EOPNOTSUPP)
	}
	if _, err := client.Status(); err != nil {
		t.Errorf("the connection is unusable after the refusal: %v", err)
	}
}
