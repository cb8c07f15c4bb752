// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// minKeyPrefix is the least number of characters of a public key that name a peer.
const minKeyPrefix = 4

// gatherPeer tests the path to the peer of --peer.
func (o *doctorOptions) gatherPeer(ctx context.Context, dir uapi.Dir, tunnels []string) (*facts.Facts, error) {
	if len(tunnels) == 0 {
		tunnels = interfaces()
	}
	var found []facts.PeerOptions
	for _, name := range tunnels {
		err := withDaemon(dir, name, func(c *uapi.Client) error {
			status, err := c.Status()
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
		return nil, usageError{fmt.Errorf("--peer %s: no peer has this public key, endpoint or address in its AllowedIPs; `ropewalk show` lists the peers", o.peer)}
	case len(found) > 1:
		return nil, usageError{fmt.Errorf("--peer %s: %d peers match, give the INTERFACE and a longer part of the public key", o.peer, len(found))}
	}
	path, err := facts.TestPeer(ctx, found[0])
	return &facts.Facts{Peer: path}, withHint(err)
}

// matchPeers returns the peers that text means: by public key or the beginning of it, endpoint or its address, or else the address in
// AllowedIPs with the longest prefix.
func matchPeers(status config.Status, text string) (keys []noise.PublicKey) {
	addr, _ := netip.ParseAddr(text)
	longest := -1
	for i := range status.Peers {
		p := &status.Peers[i]
		key, to := p.PublicKey.Base64(), p.Endpoint.AddrPort
		if key == text {
			return []noise.PublicKey{p.PublicKey}
		}
		if to.IsValid() && (to.String() == text || to.Addr() == addr) || len(text) >= minKeyPrefix && strings.HasPrefix(key, text) {
			keys = append(keys, p.PublicKey)
		}
	}
	if len(keys) > 0 || !addr.IsValid() {
		return keys
	}
	for i := range status.Peers {
		for _, prefix := range status.Peers[i].AllowedIPs {
			if prefix.Contains(addr) && prefix.Bits() > longest {
				longest, keys = prefix.Bits(), []noise.PublicKey{status.Peers[i].PublicKey}
			}
		}
	}
	return keys
}

// peerOptions returns the options of a test, with the endpoint from the configuration file if there is one.
func peerOptions(dir uapi.Dir, name string, key noise.PublicKey) facts.PeerOptions {
	o := facts.PeerOptions{Dir: dir, Interface: name, Key: key, Now: time.Now}
	path, _, err := conffile.Locate(quick.DefaultDir, name)
	if err != nil {
		return o
	}
	file, err := conffile.Load(path, conffile.Quick)
	if err != nil {
		return o // `ropewalk check` reads files
	}
	for i := range file.Peers {
		if file.Peers[i].PublicKey == key {
			o.Configured = file.Peers[i].Endpoint
		}
	}
	host, _, err := net.SplitHostPort(o.Configured)
	if _, notAddr := netip.ParseAddr(host); err == nil && notAddr != nil {
		o.Host = host
	}
	return o
}

// checkPeer rejects flags that contradict --peer.
func (o *doctorOptions) checkPeer(args []string) error {
	switch {
	case o.peer == "":
		return nil
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
