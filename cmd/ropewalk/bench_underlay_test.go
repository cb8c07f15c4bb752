// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/measurement"
	"github.com/ropewalk/ropewalk/test/expect"
)

// benchUnderlayWith returns options for a short comparison.
func benchUnderlayWith(t *testing.T) benchUnderlayOptions {
	t.Helper()
	o := benchWith(t)
	netlabtest.NeedAFXDP(t)
	return benchUnderlayOptions{seconds: 0.1, rounds: 1, dir: t.TempDir(), self: o.self, prefix: o.prefix, anyLoad: true}
}

// wantSaved checks that there is a valid result for a device of the host, and that the table shows it.
func wantSaved(t *testing.T, h *netlab.Host, dir, device, table string) {
	t.Helper()
	expect.NoError(t, h.Do(func() error {
		r, err := measurement.Load(dir, device)
		if err == nil && (r.Mode != measurement.Copy || r.Version != version || r.Time.IsZero()) {
			t.Errorf("got %+v", r)
		}
		return err
	}))
	for _, want := range []string{"single datagrams, Gbit/s", "trains, ns of CPU", measurement.Path(dir, device)} {
		if !strings.Contains(table, want) {
			t.Errorf("got\n%s\nwant %q", table, want)
		}
	}
}

// loop makes two ports of a host with a cable between them.
func loop(t *testing.T) *netlab.Host {
	t.Helper()
	_, hosts := netlabtest.Hosts(t, "loop", "outer")
	expect.NoError(t, hosts[0].Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "p0"
		veth := netlink.NewVeth(attrs)
		veth.PeerName = "p1"
		return netlink.LinkAdd(veth)
	}))
	return hosts[0]
}

// wantBack checks that the ports are in the host.
func wantBack(t *testing.T, h *netlab.Host) {
	t.Helper()
	expect.NoError(t, h.Do(func() error {
		_, err := net.InterfaceByName("p0")
		_, err1 := net.InterfaceByName("p1")
		return errors.Join(err, err1)
	}))
}

func TestBenchUnderlaySavesResultOfLoop(t *testing.T) {
	o := benchUnderlayWith(t)
	o.loop = "p1"
	h := loop(t)
	var out, progress bytes.Buffer
	expect.NoError(t, h.Do(func() error { return benchUnderlay(t.Context(), &out, &progress, "p0", o) }))
	wantSaved(t, h, o.dir, "p0", out.String())
	wantBack(t, h)
	if progress.Len() == 0 {
		t.Error("no progress was shown")
	}
}

// stopper cancels on the first write.
type stopper struct{ cancel context.CancelFunc }

func (s stopper) Write(b []byte) (int, error) {
	s.cancel()
	return len(b), nil
}

func TestInterruptedBenchUnderlayReturnsPorts(t *testing.T) {
	o := benchUnderlayWith(t)
	o.loop = "p1"
	h := loop(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := h.Do(func() error { return benchUnderlay(ctx, io.Discard, stopper{cancel}, "p0", o) })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	wantBack(t, h)
	if list, err := os.ReadDir(o.dir); err != nil || len(list) > 0 {
		t.Errorf("an interrupted measurement saved %v, %v", list, err)
	}
}

func TestBenchUnderlayMeasuresAgainstPeer(t *testing.T) {
	o := benchUnderlayWith(t)
	lab, hosts := netlabtest.Hosts(t, "peers", "near", "far")
	cable, err := lab.Cable(hosts[0], hosts[1], netlab.CableConfig{
		AddrsA: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}, AddrsB: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24")},
	})
	expect.NoError(t, err)
	o.to, o.key = "192.0.2.2:4242", filepath.Join(t.TempDir(), "key")
	expect.NoError(t, os.WriteFile(o.key, []byte("AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\n"), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	far := make(chan error, 1)
	go func() {
		far <- hosts[1].Do(func() error { return benchPeer(ctx, io.Discard, o.key, 4242, o.self, o.prefix) })
	}()
	var out bytes.Buffer
	expect.NoError(t, hosts[0].Do(func() error { return benchUnderlay(ctx, &out, io.Discard, cable.DeviceA, o) }))
	wantSaved(t, hosts[0], o.dir, cable.DeviceA, out.String())
	err = hosts[0].Do(func() error { return benchUnderlay(ctx, io.Discard, io.Discard, "lo", o) })
	if err == nil {
		t.Error("measured a device by which the other host is not reached")
	}
	cancel()
	expect.NoError(t, <-far)
}

func TestBenchUnderlayRefusesMistakes(t *testing.T) {
	for _, args := range [][]string{
		{"underlay"},
		{"underlay", "eth0"},
		{"underlay", "eth0", "--to", "h", "--loop", "eth1"},
		{"underlay", "eth0", "--loop", "eth0"},
		{"underlay", "eth0", "--loop", "eth1", "--rounds", "0"},
		{"underlay", "eth0", "--loop", "eth1", "--seconds", "-1"},
		{"peer"},
	} {
		root := newRootCmd()
		root.SetArgs(append([]string{"bench"}, args...))
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		if err := root.Execute(); !errors.As(err, new(usageError)) {
			t.Errorf("%v: got %v, want a usage error", args, err)
		}
	}
}

// TestBenchHostIsLookedUpAsByGetaddrinfo has a name that only a getent(1) knows, as one of an NSS module.
func TestBenchHostIsLookedUpAsByGetaddrinfo(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\n[ \"$*\" = 'ahosts lab.invalid' ] && echo '192.0.2.9 STREAM lab.invalid'\n"
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "getent"), []byte(script), 0o700))
	t.Setenv("PATH", dir)
	for text, want := range map[string]string{"lab.invalid": "192.0.2.9:51821", "lab.invalid:7": "192.0.2.9:7"} {
		if got, err := benchHost(t.Context(), text); err != nil || got.String() != want {
			t.Errorf("%s: got %v, %v, want %s", text, got, err, want)
		}
	}
	if got, err := benchHost(t.Context(), "[2001:db8::1]"); err != nil || got.String() != "[2001:db8::1]:51821" {
		t.Errorf("an address: got %v, %v", got, err)
	}
}
