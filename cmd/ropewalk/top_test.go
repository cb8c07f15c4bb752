// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/observe/metrics"
	"github.com/ropewalk/ropewalk/pkg/observe/top"
	"github.com/ropewalk/ropewalk/pkg/observe/top/host"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// topHandler is a device with a peer that receives a million bytes between two requests.
type topHandler struct {
	stats  any
	asked  uint64
	secret noise.PresharedKey
}

func (h *topHandler) Status() config.Status {
	return config.Status{Name: "wg0", Peers: []config.PeerStatus{{PresharedKey: h.secret, RxBytes: h.asked * 1e6}}}
}

func (h *topHandler) Configure(config.Device) error { return errors.ErrUnsupported }

func (h *topHandler) Stats() any {
	if h.stats != nil {
		return h.stats
	}
	h.asked++
	s := device.Stats{Interface: "wg0", Up: true}
	s.Lanes = []engine.LaneStats{{RxBytes: h.asked * 1e6, RxPackets: h.asked * 1000}}
	return s
}

// serveTop serves h, alone at its socket, and returns the directory.
func serveTop(t *testing.T, name string, h uapi.Handler) uapi.Dir {
	t.Helper()
	dir := uapi.Dir(t.TempDir())
	l, err := dir.Listen(name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- uapi.Serve(ctx, l, h) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return dir
}

func runTop(t *testing.T, o topFlags, dir uapi.Dir, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	cmd.SetIn(strings.NewReader(""))
	cmd.SetContext(t.Context())
	if o.interval == 0 {
		o.interval = 100 * time.Millisecond
	}
	if o.view == "" {
		o.view = top.Overview.String()
	}
	err := o.run(cmd, dir, args)
	return out.String(), err
}

func TestTopPrintsTextAndJSON(t *testing.T) {
	t.Setenv("LC_ALL", "C.UTF-8")
	h := &topHandler{}
	h.secret[3] = 77
	dir := serveTop(t, "wg0", h)
	for _, args := range [][]string{nil, {"wg0"}} {
		text, err := runTop(t, topFlags{once: true}, dir, args...)
		if err != nil || !strings.HasPrefix(text, "wg0  up  1 lane  1 peer") || !strings.Contains(text, "Mb/s") || strings.ContainsAny(text, "\x1b\r\x00") {
			t.Errorf("got error %v, %q, want no error, prefix %q", err, text, "wg0  up  1 lane  1 peer")
		}
	}
	text, err := runTop(t, topFlags{json: true}, dir)
	var document struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		top.Frame
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &document)
	}
	if err != nil || document.APIVersion != "ropewalk/v1" || document.Kind != "Top" || document.Rx.ByteRate <= 0 || len(document.Lanes) != 2 {
		t.Errorf("got error %v, %s, want no error", err, text)
	}
	if strings.Contains(text, h.secret.Base64()) {
		t.Errorf("the secret is in %s", text)
	}
}

func TestTopUsesASCIIInOtherLocales(t *testing.T) {
	t.Setenv("LC_ALL", "C")
	text, err := runTop(t, topFlags{once: true}, serveTop(t, "wg0", &topHandler{}))
	if err != nil || !strings.Contains(text, "####") || strings.ContainsFunc(text, func(r rune) bool { return r > '~' }) {
		t.Errorf("got error %v, %q, want no error, %q in it", err, text, "####")
	}
}

func TestTopRejectsInvalidUse(t *testing.T) {
	served, nobody := serveTop(t, "wg0", &topHandler{}), uapi.Dir(t.TempDir())
	for _, tt := range []struct {
		flags topFlags
		dir   uapi.Dir
		args  []string
		code  int
		want  string
	}{
		{topFlags{once: true, json: true}, served, nil, exitUsage, "cannot be combined"},
		{topFlags{once: true, interval: time.Millisecond}, served, nil, exitUsage, "want 100ms to 1m0s"},
		{topFlags{once: true, interval: time.Hour}, served, nil, exitUsage, "want 100ms to 1m0s"},
		{topFlags{once: true, view: "pears"}, served, nil, exitUsage, "\n\tpeers\n"},
		{topFlags{}, served, nil, exitUsage, "not a terminal"},
		{topFlags{once: true}, nobody, nil, exitUnreachable, "no interface is served"},
		{topFlags{once: true}, served, []string{"wg7"}, exitUnreachable, "wg7"},
		{topFlags{once: true}, serveTop(t, "wg0", &topHandler{stats: struct{}{}}), nil, exitError, "is not served by ropewalk"},
	} {
		_, err := runTop(t, tt.flags, tt.dir, tt.args...)
		if err == nil || exitCode(err) != tt.code || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: got %v, want %q", tt.flags, err, tt.want)
		}
	}
}

func TestTopStopsWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := topFlags{interval: time.Minute}
	err := o.one(ctx, io.Discard, func(bool) (top.Sample, error) { return top.Sample{}, nil }, top.Options{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
}

func TestTopReconnectsToReplacedDaemon(t *testing.T) {
	dir := serveTop(t, "wg0", &topHandler{})
	s := &topSource{dir: dir, name: "wg0", machine: host.New()}
	defer s.close()
	if _, err := s.sample(false); err != nil {
		t.Fatal(err)
	}
	s.client.Close() // as if its daemon had ended
	if _, err := s.sample(false); err == nil {
		t.Fatal("a closed connection answers")
	}
	if _, err := s.sample(false); err != nil {
		t.Errorf("the next sample: %v", err)
	}
}

func TestWebPageShowsPeersIfMetricsDo(t *testing.T) {
	for _, tt := range []struct {
		mode  metrics.PerPeer
		peers int
		want  bool
	}{
		{metrics.PerPeerAuto, metrics.MaxPeers, true},
		{metrics.PerPeerAuto, metrics.MaxPeers + 1, false},
		{metrics.PerPeerOn, metrics.MaxPeers + 1, true},
		{metrics.PerPeerOff, 1, false},
	} {
		if got := showsPeers(metrics.Options{PerPeer: tt.mode}, tt.peers); got != tt.want {
			t.Errorf("%s, %d peers: got %t, want %t", tt.mode, tt.peers, got, tt.want)
		}
	}
}
