// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/cluster/proof"
	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/test/expect"
)

// served returns a client of a fake engine, with the keys that it has probed.
func served(t *testing.T) (*Client, *uapitest.Device, func() []noise.PublicKey) {
	t.Helper()
	dir, d := uapitest.NewDir(t), &uapitest.Device{}
	d.SetStats(device.Stats{Interface: "mesh0", Features: uapi.Features()})
	var mu sync.Mutex
	var probed []noise.PublicKey
	uapitest.RunServer(t, dir, "mesh0", &uapi.Server{Handler: d, Log: slog.New(slog.DiscardHandler), Probe: func(key noise.PublicKey) (config.PeerProbe, bool) {
		mu.Lock()
		defer mu.Unlock()
		probed = append(probed, key)
		return config.PeerProbe{Answered: 7}, true
	}})
	return &Client{Dir: dir, Name: "mesh0"}, d, func() []noise.PublicKey {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(probed)
	}
}

func TestStatusHasNamesAndSpread(t *testing.T) {
	c, d, _ := served(t)
	first, second := noise.PublicKey{1}, noise.PublicKey{2}
	quantum := config.PostQuantumReport{Policy: config.PostQuantumAuto, Peers: map[string]config.PeerPostQuantum{second.Base64(): {Policy: config.PostQuantumRequired, Own: true, Active: true}}}
	d.SetStatus(config.Status{ListenPort: 7, FwMark: 8, Peers: []config.PeerStatus{{PublicKey: first}, {PublicKey: second, TxBytes: 9}}})
	d.SetStats(device.Stats{
		Interface: "mesh0", Up: true, Features: uapi.Features(), Names: config.NameReport{second.Base64(): {Name: "office", EndpointName: "office.example:51820"}},
		Spread:      config.SpreadReport{Peers: map[string]config.PeerSpread{first.Base64(): {Active: true}, second.Base64(): {}}},
		PostQuantum: quantum,
	})
	st, err := c.Status()
	if err != nil || !st.Up || st.ListenPort != 7 || st.FwMark != 8 || len(st.Peers) != 2 || !st.Peers[0].Spread.Active || st.Peers[1].Spread.Active {
		t.Fatalf("got %+v, %v", st, err)
	}
	if p := st.Peers[1]; p.Name != "office" || p.EndpointName != "office.example:51820" || p.TxBytes != 9 || !p.PostQuantum.Own || p.PostQuantum.Policy != config.PostQuantumRequired {
		t.Errorf("got %+v", p)
	}
	if report, err := c.PostQuantum(); err != nil || !report.Peers[second.Base64()].Active || st.PostQuantum.Policy != quantum.Policy {
		t.Errorf("got %+v, %v, want %+v", report, err, quantum)
	}
	if one, err := c.StatusOf(second); err != nil || len(one.Peers) != 1 || one.Peers[0].PublicKey != second {
		t.Errorf("status of one peer: %+v, %v", one, err)
	}
}

func TestChangesAndProbesReachEngine(t *testing.T) {
	c, d, probed := served(t)
	port := uint16(5)
	expect.NoError(t, c.Configure(config.Device{ListenPort: &port}))
	if got := d.TakeChanges(); len(got) != 1 || *got[0].ListenPort != port {
		t.Errorf("got %+v", got)
	}
	d.Refuse(errors.New("in use"))
	if err := c.Configure(config.Device{ListenPort: &port}); err == nil || errors.Is(err, ErrAbsent) || errors.Is(err, ErrForeign) {
		t.Errorf("a refused change: %v", err)
	}
	reports, err := c.Probe(noise.PublicKey{1}, noise.PublicKey{2})
	expect.NoError(t, err)
	if got := probed(); len(got) != 2 || reports[noise.PublicKey{2}].Answered != 7 {
		t.Errorf("probed %v, reports %v", got, reports)
	}
}

func TestTunnelFaultsAreReported(t *testing.T) {
	for err, want := range map[error]proof.TunnelFault{
		ErrAbsent: proof.EngineAbsent, ErrForeign: proof.ForeignTunnel, ErrOutdated: proof.EngineOutdated, &uapi.Error{Errno: unix.EADDRINUSE}: proof.PortInUse,
		io.ErrUnexpectedEOF: "",
	} {
		if got := FaultOf(fmt.Errorf("configuring: %w", err)); got != want {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
}

func TestAbsentAndForeignEnginesDiffer(t *testing.T) {
	dir := uapitest.NewDir(t)
	c := &Client{Dir: dir, Name: "mesh0"}
	for _, f := range []func() error{
		func() error { _, err := c.Status(); return err },
		func() error { _, err := c.StatusOf(noise.PublicKey{1}); return err },
		func() error { return c.Configure(config.Device{}) },
		func() error { _, err := c.Probe(noise.PublicKey{1}); return err },
	} {
		if err := f(); !errors.Is(err, ErrAbsent) {
			t.Errorf("without an engine: %v", err)
		}
	}
	other := &uapitest.Device{}
	other.SetStats(device.Stats{Interface: "wg0"})
	uapitest.Serve(t, dir, "mesh0", other)
	if _, err := c.Status(); !errors.Is(err, ErrForeign) {
		t.Errorf("the engine of another interface: %v", err)
	}
	c.Name = "mesh1"
	closeEach(t, filepath.Join(string(dir), "mesh1.sock"))
	if _, err := c.Status(); !errors.Is(err, ErrForeign) || errors.Is(err, ErrAbsent) {
		t.Errorf("another program: %v", err)
	}
}

func TestOutdatedEngineIsNamed(t *testing.T) {
	c, d, _ := served(t)
	d.SetStats(device.Stats{Interface: "mesh0", Version: "0.0.9", Features: slices.DeleteFunc(uapi.Features(), func(f string) bool { return f == "set.name" })})
	_, err := c.Status()
	if !errors.Is(err, ErrOutdated) || !strings.Contains(err.Error(), "version 0.0.9 lacks set.name, update ropewalk-engine") {
		t.Errorf("got %v", err)
	}
	d.SetStats(device.Stats{Interface: "mesh0"}) // of the time before features
	if _, err := c.Status(); !errors.Is(err, ErrOutdated) {
		t.Errorf("got %v", err)
	}
}

// TestRequiredFeaturesCoverEachKey: an older engine that lacks one that is not required would refuse the whole change.
func TestRequiredFeaturesCoverEachKey(t *testing.T) {
	dir := uapitest.NewDir(t)
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(string(dir), "mesh0.sock"))
	expect.NoError(t, err)
	defer l.Close()
	request := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		var text strings.Builder
		for scan := bufio.NewScanner(conn); scan.Scan() && scan.Text() != ""; {
			text.WriteString(scan.Text() + "\n")
		}
		_, _ = io.WriteString(conn, "errno=0\n\n")
		request <- text.String()
	}()
	expect.NoError(t, (&Client{Dir: dir, Name: "mesh0"}).Configure(everything(t)))
	wireGuard := []string{
		"set", "private_key", "listen_port", "fwmark", "replace_peers", "public_key", "endpoint", "replace_allowed_ips", "allowed_ip", "protocol_version",
		"persistent_keepalive_interval",
	}
	for line := range strings.Lines(<-request) {
		key, _, _ := strings.Cut(line, "=")
		if key == "post_quantum" { // an agent sends it to engines that report it, or to be refused
			continue
		}
		if !slices.Contains(wireGuard, key) && !slices.Contains(required, "set."+key) {
			t.Errorf("set.%s is not required", key)
		}
	}
}

// closeEach serves a socket as wireguard-go does for an operation that it does not know: it closes the connection.
func closeEach(t *testing.T, path string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(context.Background(), "unix", path)
	expect.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.ReadAtLeast(conn, make([]byte, 16), 1)
			_ = conn.Close()
		}
	}()
}

// everything returns a configuration with all that agents set.
func everything(t *testing.T) config.Device {
	t.Helper()
	key, err := noise.NewPrivateKey(strings.NewReader(strings.Repeat("k", 32)))
	expect.NoError(t, err)
	port, mark, mode, ports, underlay, keepalive, name := uint16(51820), uint32(0x52), config.SpreadAuto, spread.DefaultPorts, config.UnderlayUDP, uint16(25), "office"
	quantum := config.PostQuantumRequired
	return config.Device{
		PrivateKey: &key, ListenPort: &port, FwMark: &mark, Settings: config.Settings{Spread: &mode, SpreadPorts: &ports, Underlay: &underlay, PostQuantum: &quantum}, ReplacePeers: true,
		Peers: []config.Peer{
			{PublicKey: noise.PublicKey{1}, ReplaceAllowedIPs: true, AllowedIPs: []config.AllowedIP{{Prefix: netip.MustParsePrefix("10.244.2.0/24")}}, PostQuantum: &quantum},
			{
				PublicKey: noise.PublicKey{2}, ReplaceAllowedIPs: true, Name: &name, Keepalive: &keepalive, EndpointName: "office.example:51820",
				Endpoint: &config.Endpoint{AddrPort: netip.MustParseAddrPort("[2001:db8::7]:51820")},
			},
		},
	}
}

// TestDefaultPolicyIsNotInTheFile: an engine that does not know the key would refuse the file.
func TestDefaultPolicyIsNotInTheFile(t *testing.T) {
	c, dev := &Client{Name: "mesh0", File: filepath.Join(t.TempDir(), "tunnel.conf")}, everything(t)
	dev.Peers = nil
	for policy, want := range map[config.PostQuantum]bool{config.PostQuantumDefault: false, config.PostQuantumOff: true} {
		dev.PostQuantum = &policy
		expect.NoError(t, c.Save(dev))
		text, err := os.ReadFile(c.File)
		expect.NoError(t, err)
		if strings.Contains(string(text), "PostQuantum") != want {
			t.Errorf("%v: the file has the key: %v, want %v", policy, !want, want)
		}
	}
}

func TestSavedFileIsWholeConfiguration(t *testing.T) {
	c, dev := &Client{Name: "mesh0", File: filepath.Join(t.TempDir(), "engine", "tunnel.conf")}, everything(t)
	expect.NoError(t, c.Save(dev))
	info, err := os.Stat(c.File)
	expect.NoError(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	expect.NoError(t, c.Save(dev))
	if again, err := os.Stat(c.File); err != nil || !os.SameFile(info, again) {
		t.Error("an unchanged file was written again", err)
	}
	f, err := conffile.Load(c.File, conffile.Daemon)
	expect.NoError(t, err)
	got, err := f.Device(t.Context(), func(_ context.Context, text string) (config.Endpoint, error) {
		at, err := netip.ParseAddrPort(text) // no name is to be resolved
		return config.Endpoint{AddrPort: at}, err
	})
	expect.NoError(t, err)
	got.Settings = f.Interface.Settings
	dev.Peers[1].EndpointName = ""
	if diff := cmp.Diff(dev, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
		cmp.Comparer(func(a, b noise.PrivateKey) bool { return a == b }), cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
	expect.NoError(t, c.Forget())
	expect.NoError(t, c.Forget())
	if left, err := os.ReadDir(filepath.Dir(c.File)); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestKeyInFileIsItsOwnersOnly: the kubelet creates the directory for all to read, and a tool may copy the file so.
func TestKeyInFileIsItsOwnersOnly(t *testing.T) {
	dir := t.TempDir()
	c, dev := &Client{Name: "mesh0", File: filepath.Join(dir, "tunnel.conf")}, everything(t)
	modeOf := func(path string) fs.FileMode {
		info, err := os.Stat(path)
		expect.NoError(t, err)
		return info.Mode().Perm()
	}
	expect.NoError(t, os.Chmod(dir, 0o755))
	expect.NoError(t, c.Save(dev))
	if got := modeOf(dir); got != 0o700 {
		t.Errorf("directory mode %v", got)
	}
	expect.NoError(t, os.Chmod(c.File, 0o644))
	expect.NoError(t, os.Chmod(dir, 0o755))
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "other"), nil, 0o644))
	expect.NoError(t, c.Save(dev))
	if file, shared := modeOf(c.File), modeOf(dir); file != 0o600 || shared != 0o755 {
		t.Errorf("mode %v, directory with other files %v", file, shared)
	}
	expect.NoError(t, os.WriteFile(c.File+".tmp", []byte("a key"), 0o600))
	expect.NoError(t, c.Forget())
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
}
