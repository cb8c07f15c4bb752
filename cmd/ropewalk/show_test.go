// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

// twoDevices serves the interfaces b0 and a0. The clock of the command is that of their handshakes.
func twoDevices(t *testing.T) (*shower, *bytes.Buffer, []config.Status) {
	t.Helper()
	now := time.Unix(1_800_000_000, 0)
	dir := uapitest.NewDir(t)
	r := rand.New(rand.NewPCG(1, 2))
	devices := []config.Status{uapitest.RandomStatus(r, "a0", now), uapitest.RandomStatus(r, "b0", now)}
	for i := range devices {
		st := &devices[i]
		st.Lanes, st.SpreadPorts = 2+i, spread.DefaultPorts
		for j := range st.Peers {
			st.Peers[j].Spread = config.PeerSpread{Active: true, Ports: 1 + j}
		}
	}
	for _, st := range []config.Status{devices[1], devices[0]} {
		var dev uapitest.Device
		dev.SetStatus(st)
		spreads := config.SpreadReport{
			Mode: st.Spread, FirstPort: st.SpreadPorts.First, LastPort: st.SpreadPorts.Last, Spray: st.Spray, Lanes: st.Lanes, Peers: map[string]config.PeerSpread{},
		}
		for _, p := range st.Peers {
			spreads.Peers[p.PublicKey.Base64()] = p.Spread
		}
		dev.SetStats(map[string]any{"spread": spreads})
		uapitest.Serve(t, dir, st.Name, &dev)
	}
	var out bytes.Buffer
	return &shower{dir: dir, out: &out, now: func() time.Time { return now }}, &out, devices
}

func TestShowPrintsAllInterfacesByName(t *testing.T) {
	s, out, devices := twoDevices(t)
	for _, args := range [][]string{nil, {"all"}} {
		out.Reset()
		var want bytes.Buffer
		if err := show.Pretty(&want, devices, show.Options{Now: s.now()}); err != nil {
			t.Fatal(err)
		}
		err := s.run(args)
		if diff := cmp.Diff(want.String(), out.String()); diff != "" || err != nil {
			t.Errorf("%v: %v %s", args, err, diff)
		}
	}
}

func TestShowAddsLanesOfDaemon(t *testing.T) {
	s, out, devices := twoDevices(t)
	s.opt.Lanes = true
	for _, tc := range []struct {
		args []string
		of   []config.Status
	}{
		{[]string{"b0"}, devices[1:]},
		{nil, devices},
	} {
		out.Reset()
		var want bytes.Buffer
		opt := show.Options{Now: s.now(), Lanes: true, Stats: map[string]*show.Stats{"a0": {}, "b0": {}}}
		if err := show.Pretty(&want, tc.of, opt); err != nil {
			t.Fatal(err)
		}
		err := s.run(tc.args)
		if diff := cmp.Diff(want.String(), out.String()); diff != "" || err != nil {
			t.Errorf("%v: %v %s", tc.args, err, diff)
		}
		if !strings.Contains(out.String(), "  lanes: 3\n") {
			t.Errorf("no lanes in %q", out)
		}
	}
}

// TestShowNamesNamespaceOfMovedInterface has an interface without peers, which was moved, and one that was not.
func TestShowNamesNamespaceOfMovedInterface(t *testing.T) {
	here, err := hostnet.CurrentNamespace()
	expect.NoError(t, err)
	s, out, _ := twoDevices(t)
	for name, ns := range map[string]hostnet.Namespace{"c0": here, "d0": 1} {
		var dev uapitest.Device
		dev.SetStats(map[string]any{"tun": map[string]any{"NetNS": ns}, "spread": config.SpreadReport{}})
		uapitest.Serve(t, s.dir, name, &dev)
	}
	for _, tc := range []struct {
		flags showFlags
		want  string
	}{
		{showFlags{}, "  network namespace: net:[1]\n"},
		{showFlags{lanes: true}, "  network namespace: net:[1]\n"},
		{showFlags{json: true}, `"netns": "net:[1]"`},
	} {
		s.apply(tc.flags)
		for name, want := range map[string]string{"c0": "", "d0": tc.want} {
			out.Reset()
			expect.NoError(t, s.run([]string{name}))
			if got := out.String(); want == "" && strings.Contains(got, "net:[") || !strings.Contains(got, want) {
				t.Errorf("%s, %+v: got %q, want %q", name, tc.flags, got, want)
			}
		}
	}
}

func TestShowReportsDaemonWithoutLanes(t *testing.T) {
	s, out, _ := twoDevices(t)
	s.opt.Lanes = true
	uapitest.Serve(t, s.dir, "c0", &uapitest.Device{})
	for _, args := range [][]string{{"c0"}, nil} {
		out.Reset()
		err := s.run(args)
		if err == nil || exitCode(err) != exitError || !strings.Contains(err.Error(), "c0") || !strings.Contains(out.String(), "interface: c0\n") {
			t.Errorf("%v: got %q, error %v, want an error", args, out, err)
		}
	}
}

func TestShowSelectorOfOneOrAllInterfaces(t *testing.T) {
	s, out, devices := twoDevices(t)
	for _, tc := range []struct {
		args []string
		of   []config.Status
	}{
		{[]string{"b0", "dump"}, devices[1:]},
		{[]string{"all", "dump"}, devices},
	} {
		out.Reset()
		var want bytes.Buffer
		for _, st := range tc.of {
			if err := show.Select(&want, st, show.Dump, len(tc.of) > 1, show.Options{}); err != nil {
				t.Fatal(err)
			}
		}
		err := s.run(tc.args)
		if diff := cmp.Diff(want.String(), out.String()); diff != "" || err != nil {
			t.Errorf("%v: %v %s", tc.args, err, diff)
		}
	}
}

func TestShowPrintsJSONWithoutKeys(t *testing.T) {
	s, out, devices := twoDevices(t)
	s.opt.ShowKeys = true // by WG_HIDE_KEYS=never
	s.apply(showFlags{json: true})
	var want bytes.Buffer
	if err := show.JSON(&want, devices, show.Options{Now: s.now()}); err != nil {
		t.Fatal(err)
	}
	err := s.run(nil)
	if diff := cmp.Diff(want.String(), out.String()); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	s.apply(showFlags{json: true, keys: true})
	if !s.opt.ShowKeys {
		t.Error("--show-keys does not show keys")
	}
}

func TestShowListsInterfaces(t *testing.T) {
	s, out, _ := twoDevices(t)
	if err := s.run([]string{"interfaces"}); err != nil || out.String() != "a0 b0\n" {
		t.Errorf("got %q, error %v, want no error", out, err)
	}
}

func TestShowDistinguishesUnservedAndMissingInterface(t *testing.T) {
	s, _, _ := twoDevices(t)
	if err := s.run([]string{"lo"}); err == nil || !strings.Contains(err.Error(), "not served by a userspace process") {
		t.Error(err)
	}
	if err := s.run([]string{"nosuch0"}); err == nil || err.Error() != "no such interface: nosuch0" || exitCode(err) != exitUnreachable {
		t.Error(err)
	}
}

func TestFileInPlaceOfSocketIsNamed(t *testing.T) {
	s, _, _ := twoDevices(t)
	path := filepath.Join(string(s.dir), "lo.sock")
	expect.NoError(t, os.WriteFile(path, nil, 0o600))
	for name, err := range map[string]error{"show": s.run([]string{"lo"}), "doctor": renamedTunnel(s.dir, []string{"lo"})} {
		if err == nil || !strings.Contains(err.Error(), path+": connect: connection refused: the file is not a socket: remove it") {
			t.Errorf("%s: got error %v", name, err)
		}
		if name == "show" && exitCode(err) != exitUnreachable {
			t.Errorf("got exit code %d, want %d", exitCode(err), exitUnreachable)
		}
	}
}

func TestShowRejectsInvalidUse(t *testing.T) {
	s, out, _ := twoDevices(t)
	for _, args := range [][]string{{"a0", "nonsense"}, {"interfaces", "peers"}, {"all", ""}} {
		if err := s.run(args); err == nil || exitCode(err) != exitUsage || out.Len() != 0 {
			t.Errorf("%v: got error %v, want an error", args, err)
		}
	}
	for _, o := range []showFlags{{lanes: true}, {json: true}} {
		s.apply(o)
		for _, args := range [][]string{{"a0", "dump"}, {"interfaces"}} {
			if err := s.run(args); err == nil || exitCode(err) != exitUsage || out.Len() != 0 {
				t.Errorf("%v %+v: got error %v, want an error", args, o, err)
			}
		}
	}
	if _, _, err := execute(t, newShowCmd(), "", "a0", "peers", "more"); err == nil || exitCode(err) != exitUsage {
		t.Error(err)
	}
}

func TestShowContinuesAfterFailingInterface(t *testing.T) {
	s, out, _ := twoDevices(t)
	l, err := s.dir.Listen("c0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { // closes each connection without an answer
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	defer l.Close()
	err = s.run([]string{"all", "listen-port"})
	if err == nil || !strings.Contains(err.Error(), "c0") || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("got %q, error %v, want an error", out, err)
	}
}

func TestShowReadsEnvironment(t *testing.T) {
	t.Setenv("WG_COLOR_MODE", "always")
	t.Setenv("WG_HIDE_KEYS", "never")
	if opt := showOptions(os.Stdout); !opt.Color || !opt.ShowKeys {
		t.Errorf("got %+v, want Color true, ShowKeys true", opt)
	}
	t.Setenv("WG_COLOR_MODE", "")
	t.Setenv("WG_HIDE_KEYS", "")
	if opt := showOptions(&bytes.Buffer{}); opt.Color || opt.ShowKeys {
		t.Errorf("got %+v, want Color false, ShowKeys false", opt)
	}
}
