// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// ropewalkName is the implementation that all others are compared with.
	ropewalkName = "ropewalk"
	// rawName is the cable without a tunnel: the ceiling of this machine's kernel and traffic
	// tools.
	rawName = "raw"
)

// peer is another WireGuard implementation, at a fixed version. All of them take the name of the
// interface as their last argument, and make a TUN device of that name. They serve
// /var/run/wireguard/NAME.sock, and are configured over it.
type peer struct {
	name    string
	title   string // heading of its column in the documentation
	version string
	source  source
	binary  string   // file name below DIR/NAME/bin
	args    []string // what keeps it in the foreground, and any other flag
	command []string // of a peer that is there already: it has no source, and this instead of binary and args
}

// otherPeer reads NAME=COMMAND: any program that is started as the peers are, such as an earlier ropewalk. Its name is not
// one of the others'.
func otherPeer(s string, others []peer) (peer, error) {
	name, command, _ := strings.Cut(s, "=")
	words := strings.Fields(command)
	taken := append(peerNames(append(peers(), others...)), rawName, ropewalkName)
	switch {
	case name == "" || len(words) == 0 || strings.ContainsAny(name, " ,"):
		return peer{}, fmt.Errorf("want NAME=COMMAND, as before='/tmp/ropewalk run'")
	case slices.Contains(taken, name):
		return peer{}, fmt.Errorf("the name %q is taken", name)
	}
	return peer{name: name, title: name, version: command, command: words}, nil
}

// source is where a peer comes from: a Go package or a crate, both from their public registries.
type source struct {
	goPackage string
	crate     string
}

// peers are reference implementations that run in user space and install from their registry. The
// in-kernel WireGuard is none of them, for it cannot run in a namespace's own process.
func peers() []peer {
	return []peer{
		{
			name: "wireguard-go", title: "wireguard-go", version: "v0.0.0-20260522210424-ecfc5a8d5446",
			source: source{goPackage: "golang.zx2c4.com/wireguard"},
			binary: "wireguard", args: []string{"-f"},
		},
		{
			name: "tailscale", title: "Tailscale's fork", version: "v0.0.0-20260928213032-417aef361226",
			source: source{goPackage: "github.com/tailscale/wireguard-go"},
			binary: "wireguard-go", args: []string{"-f"},
		},
		{
			// Started by sudo it would give up root, and with it the right to bring up the interface.
			name: "boringtun", title: "boringtun", version: "0.7.1",
			source: source{crate: "boringtun-cli"},
			binary: "boringtun-cli", args: []string{"--foreground", "--disable-drop-privileges"},
		},
		{
			name: "gotatun", title: "gotatun", version: "0.10.2",
			source: source{crate: "gotatun-cli"},
			binary: "gotatun", args: []string{"--foreground", "--disable-drop-privileges", "--verbosity", "error"},
		},
	}
}

// root is the directory of the peer's own below dir.
func (p peer) root(dir string) string { return filepath.Join(dir, p.name) }

// argv starts the peer in the foreground; the interface's name is still to be added.
func (p peer) argv(dir string) []string {
	if p.command != nil {
		return p.command
	}
	return append([]string{filepath.Join(p.root(dir), "bin", p.binary)}, p.args...)
}

// choosePeers picks by name, in the order of the list; raw reports whether the bare cable is among them. No names mean
// everything.
func choosePeers(list []peer, names []string) (chosen []peer, raw bool, err error) {
	if len(names) == 0 {
		return list, true, nil
	}
	for _, p := range list {
		if slices.Contains(names, p.name) {
			chosen = append(chosen, p)
		}
	}
	if err := onlyValid("peer", names, append(peerNames(list), rawName)); err != nil {
		return nil, false, err
	}
	return chosen, slices.Contains(names, rawName), nil
}

func peerNames(list []peer) []string {
	var names []string
	for _, p := range list {
		names = append(names, p.name)
	}
	return names
}

// onlyValid returns an error for the first name that is not valid, with the valid names.
func onlyValid(what string, names, valid []string) error {
	for _, n := range names {
		if !slices.Contains(valid, n) {
			return fmt.Errorf("unknown %s %q: want some of %s", what, n, strings.Join(valid, ", "))
		}
	}
	return nil
}
