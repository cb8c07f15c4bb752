// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/netio/atomicfile"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Save writes a whole configuration to the file, atomically and durably, unless the file has it.
// Only its owner may read it. An engine that starts by itself has it before any agent. Endpoints
// are addresses, also of peers with host names: no name needs to be resolved for the tunnel to
// start.
func (c *Client) Save(dev config.Device) error {
	f := conffile.File{Interface: conffile.Interface{
		PrivateKey: dev.PrivateKey, ListenPort: dev.ListenPort, FwMark: dev.FwMark,
		Settings: config.Settings{Spread: dev.Spread, SpreadPorts: dev.SpreadPorts, Underlay: dev.Underlay},
	}}
	if p := dev.PostQuantum; p != nil && *p != config.PostQuantumDefault { // engines that do not know the key refuse the file
		f.Interface.PostQuantum = p
	}
	for i := range dev.Peers {
		p := &dev.Peers[i]
		peer := conffile.Peer{PublicKey: p.PublicKey, PresharedKey: p.PresharedKey, AllowedIPs: p.AllowedIPs, Keepalive: p.Keepalive, PostQuantum: p.PostQuantum}
		if p.Name != nil {
			peer.Name = *p.Name
		}
		if p.Endpoint != nil {
			peer.Endpoint = show.Endpoint(*p.Endpoint, nil)
		}
		f.Peers = append(f.Peers, peer)
	}
	var b bytes.Buffer
	defer func() { clear(b.Bytes()) }()
	if err := f.Format(&b); err != nil {
		return err
	}
	if c.has(b.Bytes()) {
		return nil
	}
	err := atomicfile.Replace(c.File, b.Bytes())
	if err == nil {
		err = c.closeDir()
	}
	if err != nil {
		return fmt.Errorf("saving the configuration with which the engine starts: %w", err)
	}
	return nil
}

// has reports whether the file has a text and the mode with which it is written.
func (c *Client) has(text []byte) bool {
	info, err := os.Lstat(c.File)
	if err != nil || info.Mode() != 0o600 {
		return false
	}
	have, err := os.ReadFile(c.File)
	defer clear(have)
	return err == nil && bytes.Equal(have, text)
}

// closeDir leaves the directory to its owner, unless it has other files as well. The kubelet creates it with mode 0755.
func (c *Client) closeDir() error {
	dir, name := filepath.Split(c.File)
	all, err := os.ReadDir(dir)
	if err != nil || slices.ContainsFunc(all, func(e os.DirEntry) bool { return !strings.HasPrefix(e.Name(), name) }) {
		return err
	}
	return os.Chmod(dir, 0o700)
}

// Forget removes the file, with all copies of the key. An engine that ends then waits for another file, as before its first configuration. It succeeds if there is none.
func (c *Client) Forget() error {
	if err := atomicfile.Remove(c.File); err != nil {
		return fmt.Errorf("removing the configuration of the engine: %w", err)
	}
	return nil
}
