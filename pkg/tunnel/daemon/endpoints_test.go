// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

func newPrivateKey(t *testing.T) noise.PrivateKey {
	t.Helper()
	key, err := noise.NewPrivateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newKey(t *testing.T) noise.PublicKey {
	t.Helper()
	return newPrivateKey(t).Public()
}

// saved writes a file for wg0 into a new directory, and returns what loads it, with its log.
func saved(t *testing.T, text []byte) (*endpoints, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	e := newEndpoints(Options{StateDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err := os.WriteFile(e.path("wg0"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return e, &log
}

func TestRecallHasFreshSessionsOfTheSameKey(t *testing.T) {
	own, fresh, expired, future := newKey(t), newKey(t), newKey(t), newKey(t)
	at := netip.MustParseAddrPort("192.0.2.1:51820")
	text, err := json.Marshal(endpointsFile{own, []device.SessionEndpoint{
		{PublicKey: fresh, Endpoint: at, LastHandshake: time.Now().Add(-time.Minute)},
		{PublicKey: expired, Endpoint: at, LastHandshake: time.Now().Add(-time.Hour)},
		{PublicKey: future, Endpoint: at, LastHandshake: time.Now().Add(time.Hour)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	e, log := saved(t, text)
	e.load("wg0")
	if got, ok := e.recall(newKey(t), fresh); ok {
		t.Errorf("another key was given the endpoint %v", got)
	}
	for _, peer := range []noise.PublicKey{expired, future, newKey(t)} {
		if got, ok := e.recall(own, peer); ok {
			t.Errorf("got the endpoint %v of a session that is not fresh", got)
		}
	}
	if got, ok := e.recall(own, fresh); !ok || got.Endpoint != at {
		t.Errorf("got %v (%v), want %v", got, ok, at)
	}
	if _, ok := e.recall(own, fresh); ok {
		t.Error("an endpoint was recalled twice")
	}
	if log.Len() > 0 {
		t.Errorf("unexpected log: %s", log)
	}
}

// TestRecallForgetsExpiredSessions: a peer that is added hours after the start may be elsewhere by then.
func TestRecallForgetsExpiredSessions(t *testing.T) {
	own, peer := newKey(t), newKey(t)
	synctest.Test(t, func(t *testing.T) {
		text, err := json.Marshal(endpointsFile{own, []device.SessionEndpoint{
			{PublicKey: peer, Endpoint: netip.MustParseAddrPort("192.0.2.1:51820"), LastHandshake: time.Now()},
		}})
		if err != nil {
			t.Fatal(err)
		}
		e, _ := saved(t, text)
		e.load("wg0")
		time.Sleep(time.Hour) // fake clock
		if got, ok := e.recall(own, peer); ok {
			t.Errorf("got the endpoint %v of a session that has expired", got)
		}
	})
}

// TestRecallKeepsPostQuantum: sessions without a key are a downgrade, however old the last one with a key is.
func TestRecallKeepsPostQuantum(t *testing.T) {
	own, peer, had := newKey(t), newKey(t), time.Now().Add(-time.Hour).Round(time.Second)
	text, err := json.Marshal(endpointsFile{own, []device.SessionEndpoint{
		{PublicKey: peer, Endpoint: netip.MustParseAddrPort("192.0.2.1:51820"), LastHandshake: had, PostQuantum: had},
	}})
	if err != nil {
		t.Fatal(err)
	}
	e, _ := saved(t, text)
	e.load("wg0")
	if got, ok := e.recall(own, peer); !ok || got.Endpoint.IsValid() || !got.PostQuantum.Equal(had) {
		t.Errorf("got %+v (%v), want no endpoint and %v", got, ok, had)
	}
}

func TestDamagedEndpointsAreIgnoredWithWarning(t *testing.T) {
	for _, text := range []string{"", "{", `{"public_key":"x"}`, `{"peers":[{"endpoint":"nowhere"}]}`} {
		e, log := saved(t, []byte(text))
		e.load("wg0")
		if len(e.last) != 0 || !strings.Contains(log.String(), "wg0.endpoints") {
			t.Errorf("file %q: got %d endpoints and the log %q, want none and the path", text, len(e.last), log)
		}
	}
}

// ended returns what has loaded a file, and waits for the end of its interface.
func ended(t *testing.T, f endpointsFile) (*endpoints, *bytes.Buffer) {
	t.Helper()
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	e, log := saved(t, text)
	ctx, cancel := context.WithCancel(t.Context())
	go e.keep(ctx, "wg0", nil)
	cancel()
	return e, log
}

// TestOrderlyEndKeepsPostQuantum: a restart must not hide that a peer has lost its keys, as a crash does not.
func TestOrderlyEndKeepsPostQuantum(t *testing.T) {
	own, peer, classical, had := newKey(t), newKey(t), newKey(t), time.Now().Round(time.Second)
	at := netip.MustParseAddrPort("192.0.2.1:51820")
	before := endpointsFile{own, []device.SessionEndpoint{
		{PublicKey: peer, Endpoint: at, LastHandshake: had, PostQuantum: had}, {PublicKey: classical, Endpoint: at, LastHandshake: had},
	}}
	for name, tc := range map[string]struct{ saved, last endpointsFile }{
		"closed":           {last: before},
		"never configured": {saved: before},
	} {
		t.Run(name, func(t *testing.T) {
			e, log := ended(t, tc.saved)
			for last := tc.last; ; last = (endpointsFile{}) { // a Daemon may be closed repeatedly
				if e.end("wg0", last); last.PublicKey.IsZero() {
					break
				}
			}
			e.load("wg0")
			if got, ok := e.recall(own, peer); !ok || got.Endpoint.IsValid() || !got.PostQuantum.Equal(had) {
				t.Errorf("got %+v (%v), want no endpoint and %v", got, ok, had)
			}
			if got, ok := e.recall(own, classical); ok || log.Len() > 0 {
				t.Errorf("got %+v of a peer without a past (%v), log %q", got, ok, log)
			}
		})
	}
}

func TestOrderlyEndRemovesFile(t *testing.T) {
	e, log := ended(t, endpointsFile{})
	for range 2 {
		e.end("wg0", endpointsFile{})
	}
	if _, err := os.Stat(e.path("wg0")); !errors.Is(err, os.ErrNotExist) || log.Len() > 0 {
		t.Errorf("the file is still there (%v), log %q", err, log)
	}
}

func TestEndpointsWithoutFileOrDirectoryAreNone(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		var log bytes.Buffer
		e := newEndpoints(Options{StateDir: dir, Log: slog.New(slog.NewTextHandler(&log, nil))})
		e.load("wg0")
		if _, ok := e.recall(newKey(t), newKey(t)); ok || log.Len() > 0 {
			t.Errorf("directory %q: got an endpoint (%v) and the log %q", dir, ok, &log)
		}
	}
}
