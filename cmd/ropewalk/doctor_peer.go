// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// minKeyPrefix is the minimum number of characters of a public key that name a peer.
const minKeyPrefix = 4

// gatherPeer tests the path to the peer that --peer selects, and returns the results as facts.
func (o *doctorOptions) gatherPeer(ctx context.Context, dir uapi.Dir, tunnels []string) (*facts.Facts, error) {
	if len(tunnels) == 0 {
		running, err := dir.Interfaces()
		if err != nil {
			return nil, withHint(err)
		}
		if len(running) == 0 {
			return nil, codedError{exitUnreachable, fmt.Errorf("--peer %s: no tunnel runs on this host", o.peer)}
		}
		tunnels = running
	}
	var found []facts.PeerOptions
	for _, name := range tunnels {
		err := withDaemon(dir, name, func(c *uapi.Client) error {
			status, err := namedStatus(c)
			for _, p := range matchPeers(status, o.peer) {
				found = append(found, peerOptions(dir, name, p))
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	switch {
	case len(found) == 0:
		return nil, usageError{fmt.Errorf("--peer %s: no peer has this name, public key, endpoint or address in its AllowedIPs; `ropewalk show` lists the peers", o.peer)}
	case len(found) > 1:
		return nil, usageError{fmt.Errorf("--peer %s: %d peers match, give the INTERFACE, the whole public key, or both", o.peer, len(found))}
	}
	path, err := facts.TestPeer(ctx, found[0])
	return &facts.Facts{Peer: path}, withHint(err)
}

// namedStatus returns the status of an interface, with the names that only ropewalk's daemon reports.
func namedStatus(c *uapi.Client) (config.Status, error) {
	status, err := c.Status()
	if err != nil {
		return status, err
	}
	var stats struct {
		Names config.NameReport `json:"names"`
	}
	if c.Stats(&stats) == nil { // it fails if another program serves the interface, which TestPeer reports
		status.AddNames(stats.Names)
	}
	return status, nil
}

// matchPeers returns the peers that text selects. A whole public key selects one peer. Otherwise text is a name, the beginning of a key,
// an endpoint or its address. If none matches, it is an address, which selects the peer with the longest prefix in AllowedIPs.
func matchPeers(status config.Status, text string) (found []*config.PeerStatus) {
	addr, _ := netip.ParseAddr(text)
	for i := range status.Peers {
		p := &status.Peers[i]
		key, to := p.PublicKey.Base64(), p.Endpoint.AddrPort
		if key == text {
			return []*config.PeerStatus{p}
		}
		if p.Name == text || to.IsValid() && (to.String() == text || to.Addr() == addr) || len(text) >= minKeyPrefix && strings.HasPrefix(key, text) {
			found = append(found, p)
		}
	}
	if len(found) > 0 || !addr.IsValid() {
		return found
	}
	longest := -1
	for i := range status.Peers {
		for _, prefix := range status.Peers[i].AllowedIPs {
			if prefix.Contains(addr) && prefix.Bits() > longest {
				longest, found = prefix.Bits(), []*config.PeerStatus{&status.Peers[i]}
			}
		}
	}
	return found
}

// peerOptions returns the options for the test of a peer.
func peerOptions(dir uapi.Dir, name string, p *config.PeerStatus) facts.PeerOptions {
	host, _, _ := strings.Cut(p.EndpointName, ":")
	return facts.PeerOptions{Dir: dir, Interface: name, Key: p.PublicKey, Configured: p.EndpointName, Host: host, Now: time.Now}
}

// checkPeer rejects an empty --peer (an unset variable in a script), and flags that contradict it. given: the flag is present.
func (o *doctorOptions) checkPeer(args []string, given bool) error {
	switch {
	case !given:
		return nil
	case o.peer == "":
		return usageError{errors.New("--peer is empty: want a name, a public key or its beginning, an endpoint, or an address inside the tunnel")}
	case o.pre || o.fix || o.undo || len(o.devices) > 0:
		return usageError{errors.New("--peer tests the path to a running tunnel's peer: it cannot be combined with --pre, --fix, --undo and --device")}
	case len(args) > 1:
		return usageError{errors.New("--peer takes one INTERFACE at most")}
	}
	return nil
}

// completeAnyPeer completes the public key of a peer of the interface in args, or of any.
func completeAnyPeer(_ *cobra.Command, args []string, _ string) (keys []string, _ cobra.ShellCompDirective) {
	if len(args) == 0 {
		args = interfaces()
	}
	for _, name := range args {
		keys = append(keys, peerKeys(name)...)
	}
	return keys, noFiles
}
