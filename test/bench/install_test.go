// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeInstaller makes the binaries that real package managers would, and counts.
type fakeInstaller struct {
	installer
	out  bytes.Buffer
	runs int
	lack string // a tool that is missing
	fail error
}

func newFakeInstaller(t *testing.T, makes ...peer) *fakeInstaller {
	f := &fakeInstaller{}
	f.installer = installer{dir: t.TempDir(), out: &f.out}
	f.lookPath = func(tool string) (string, error) {
		if tool == f.lack {
			return "", exec.ErrNotFound
		}
		return tool, nil
	}
	f.run = func(context.Context, io.Writer, []string, []string) error {
		f.runs++
		for _, p := range makes {
			binary := p.argv(f.dir)[0]
			if err := os.MkdirAll(filepath.Dir(binary), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(binary, nil, 0o755); err != nil {
				return err
			}
		}
		return f.fail
	}
	return f
}

func pickPeer(t *testing.T, name string) peer {
	t.Helper()
	list, _, err := choosePeers(peers(), []string{name})
	if err != nil {
		t.Fatal(err)
	}
	return list[0]
}

func TestPeersInstallIntoSeparateDirectories(t *testing.T) {
	for name, want := range map[string]string{
		"tailscale": "GOBIN=/b/tailscale/bin CGO_ENABLED=0 go install -trimpath " +
			"github.com/tailscale/wireguard-go@v0.0.0-20260928213032-417aef361226",
		"boringtun": "cargo install --root /b/boringtun --version 0.7.1 --locked boringtun-cli",
		"gotatun":   "cargo install --root /b/gotatun --version 0.10.2 --locked gotatun-cli",
	} {
		env, argv := pickPeer(t, name).installCommand("/b")
		if got := strings.Join(append(env, argv...), " "); got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
	}
}

func TestStartsPeersInTheForeground(t *testing.T) {
	for name, want := range map[string]string{
		"wireguard-go": "b/wireguard-go/bin/wireguard -f",
		"tailscale":    "b/tailscale/bin/wireguard-go -f",
		"boringtun":    "b/boringtun/bin/boringtun-cli --foreground --disable-drop-privileges",
		"gotatun":      "b/gotatun/bin/gotatun --foreground --disable-drop-privileges --verbosity error",
	} {
		if got := strings.Join(pickPeer(t, name).argv("b"), " "); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

func TestFailedInstallationIsSkippedWithReason(t *testing.T) {
	wg, boring := pickPeer(t, "wireguard-go"), pickPeer(t, "boringtun")
	for _, tt := range []struct {
		name  string
		setUp func(f *fakeInstaller)
		ready []string
		line  string
	}{
		{
			"no cargo", func(f *fakeInstaller) { f.lack = "cargo" },
			[]string{"wireguard-go"},
			"skipping boringtun: it needs cargo, which is not in the PATH\n",
		},
		{
			"a compiler's error", func(f *fakeInstaller) { f.fail = errors.New("exit status 101") },
			nil, "skipping boringtun: cargo install: exit status 101 (see ",
		},
		{
			"no binary", func(f *fakeInstaller) {
				f.run = func(context.Context, io.Writer, []string, []string) error { return nil }
			},
			nil, "skipping boringtun: the installation made no ",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeInstaller(t, wg, boring)
			tt.setUp(f)
			ready, err := f.installAll(t.Context(), []peer{wg, boring})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.ready, peerNames(ready)); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if !strings.Contains(f.out.String(), tt.line) {
				t.Errorf("it said:\n%s\nwant %q", &f.out, tt.line)
			}
		})
	}
}

func TestInstallsAgainOnlyForAnotherVersion(t *testing.T) {
	p := pickPeer(t, "gotatun")
	f := newFakeInstaller(t, p)
	for _, step := range []struct {
		version string
		runs    int
	}{{"0.10.2", 1}, {"0.10.2", 1}, {"0.10.3", 2}} {
		p.version = step.version
		if err := f.install(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if f.runs != step.runs {
			t.Errorf("%s: %d installations, want %d", step.version, f.runs, step.runs)
		}
	}
}

func TestCancelledInstallationKillsItsChildren(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	go func() {
		_, _ = r.Read(make([]byte, 1)) // the child runs
		cancel()
		_, _ = io.Copy(io.Discard, r)
	}()
	begin := time.Now()
	// The pipe stays open for as long as the child of the shell lives.
	err := runCommand(ctx, w, nil, []string{"sh", "-c", "(echo begun; exec sleep 600) & wait"})
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		t.Errorf("got %v after %s", err, time.Since(begin))
	}
}
