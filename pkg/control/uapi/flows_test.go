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
)

func TestClientReadsFlows(t *testing.T) {
	dir := uapitest.NewDir(t)
	l, err := dir.Listen("wg0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	server := uapi.Server{
		Handler: new(uapitest.Device), Log: slog.New(slog.DiscardHandler), Flows: func() any { return []string{"10.0.0.1:80"} },
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
		var got []string
		if err := client.Flows(&got); err != nil || len(got) != 1 || got[0] != "10.0.0.1:80" {
			t.Errorf("got %q, error %v, want %q", got, err, "10.0.0.1:80")
		}
	}
}

func TestDeviceWithoutFlowsRefusesRequest(t *testing.T) {
	dir := uapitest.NewDir(t)
	uapitest.Serve(t, dir, "wg0", new(uapitest.Device))
	client, err := dir.Dial("wg0")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.Flows(new(any)); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("got error %v, want %v", err, syscall.EOPNOTSUPP)
	}
	if _, err := client.Status(); err != nil {
		t.Errorf("the connection is unusable after the refusal: %v", err)
	}
}
