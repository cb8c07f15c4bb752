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
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/observe/top"
	"github.com/ropewalk/ropewalk/pkg/observe/top/host"
	"github.com/ropewalk/ropewalk/pkg/observe/top/live"
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
	err := o.one(ctx, io.Discard, func(bool) (live.Screen, error) { return nil, nil }, top.Options{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
}

func TestTopReconnectsToReplacedDaemon(t *testing.T) {
	dir := serveTop(t, "wg0", &topHandler{})
	s := &interfaceSource{dir: dir, name: "wg0", machine: host.New()}
	defer s.close()
	if _, err := s.next(false); err != nil {
		t.Fatal(err)
	}
	s.client.Close() // as if its daemon had ended
	if _, err := s.next(false); err == nil {
		t.Fatal("a closed connection answers")
	}
	if _, err := s.next(false); err != nil {
		t.Errorf("the next sample: %v", err)
	}
}

// spreadOn returns a reader of one device, whose samples are one second apart.
func spreadOn(device string) spreadReader {
	n := uint64(0)
	return func(_ context.Context, name string) (*spreader.DeviceFlows, error) {
		if name != device {
			return nil, nil
		}
		n++
		return deviceFlowsAfter(n), nil
	}
}

func TestTopChoosesBetweenInterfaceAndDevice(t *testing.T) {
	served := serveTop(t, "wg0", &topHandler{})
	lo := serveTop(t, "lo", &topHandler{})
	for name, tt := range map[string]struct {
		dir           uapi.Dir
		name, spread  string
		view          top.View
		code          int
		isOfInterface bool
	}{
		"served":                      {served, "wg0", "", top.Overview, 0, true},
		"served and spread":           {lo, "lo", "lo", top.Overview, 0, true},
		"spread only":                 {served, "lo", "lo", top.Overview, 0, false},
		"spread only, flows":          {served, "lo", "lo", top.Flows, 0, false},
		"spread only, lanes":          {served, "lo", "lo", top.Lanes, exitUsage, false},
		"neither":                     {served, "lo", "other", top.Overview, exitUnreachable, false},
		"spread, but has disappeared": {served, "gone7", "gone7", top.Overview, exitUnreachable, false},
	} {
		o := topFlags{view: tt.view.String()}
		source, err := o.source(t.Context(), tt.dir, tt.name, spreadOn(tt.spread))
		if err != nil || tt.code != 0 {
			if err == nil || exitCode(err) != tt.code {
				t.Errorf("%s: got error %v, want exit code %d", name, err, tt.code)
			}
			continue
		}
		if _, got := source.(*interfaceSource); got != tt.isOfInterface {
			t.Errorf("%s: got %T", name, source)
		}
		source.close()
	}
}

func TestTopPrintsDeviceAsFlowsDoes(t *testing.T) {
	o := topFlags{view: top.Overview.String(), interval: live.MinInterval}
	sources := func() topSource {
		source, err := o.source(t.Context(), uapi.Dir(t.TempDir()), "lo", spreadOn("lo"))
		if err != nil {
			t.Fatal(err)
		}
		return source
	}
	for _, json := range []bool{false, true} {
		var got, want bytes.Buffer
		o.once, o.json = !json, json
		options, err := o.options(&got)
		if err == nil {
			err = o.one(t.Context(), &got, sources().next, options)
		}
		if err == nil {
			err = (&flowsFlags{json: json}).printDevice(&want, deviceFlowsAfter(2), deviceFlowsAfter(3))
		}
		if err != nil || got.String() != want.String() {
			t.Errorf("json %t: got error %v, %s, want %s", json, err, &got, &want)
		}
	}
}

func TestTopReportsDetachedDevice(t *testing.T) {
	read := spreadReader(func(context.Context, string) (*spreader.DeviceFlows, error) { return nil, nil })
	if _, err := read.again(t.Context(), "eth0"); err == nil || !strings.Contains(err.Error(), "nothing is spread on eth0 any more") {
		t.Errorf("got error %v", err)
	}
}
