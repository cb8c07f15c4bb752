// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/agent"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestProbesAreServedWhenAddressIsReleased(t *testing.T) {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	at := first.Addr().String()
	c := agent.Content{Stats: new(agent.Stats), Log: slog.New(slog.DiscardHandler)}
	expect.NoError(t, serve(t.Context(), at, c))
	expect.NoError(t, first.Close())
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	expect.EventuallyNoError(t, "an answer", func() error {
		r, err := client.Get("http://" + at + "/healthz")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		_, err = io.ReadAll(r.Body)
		return err
	})
	if err := serve(t.Context(), "192.0.2.1:1", c); err == nil {
		t.Error("no error for an address that the host does not have")
	}
}
