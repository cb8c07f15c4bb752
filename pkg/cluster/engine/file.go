// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/ropewalk/ropewalk/pkg/cluster/atomicfile"
	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Save makes the file that of a whole configuration, atomically and durably, unless it is already. An engine that starts by itself has it
// before any agent. Endpoints are addresses, also those of peers with host names: no name needs to be resolved for the tunnel to start.
func (c *Client) Save(dev config.Device) error {
	f := conffile.File{Interface: conffile.Interface{
		PrivateKey: dev.PrivateKey, ListenPort: dev.ListenPort, FwMark: dev.FwMark,
		Spread: dev.Spread, SpreadPorts: dev.SpreadPorts, Underlay: dev.Underlay,
	}}
	for i := range dev.Peers {
		p := &dev.Peers[i]
		peer := conffile.Peer{PublicKey: p.PublicKey, PresharedKey: p.PresharedKey, AllowedIPs: p.AllowedIPs, Keepalive: p.Keepalive}
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
	if have, err := os.ReadFile(c.File); err == nil && bytes.Equal(have, b.Bytes()) {
		return nil
	}
	if err := atomicfile.Replace(c.File, b.Bytes()); err != nil {
		return fmt.Errorf("saving the configuration with which the engine starts: %w", err)
	}
	return nil
}

// Forget removes the file. An engine that ends then waits for another file, as before its first configuration. It succeeds if there is none.
func (c *Client) Forget() error {
	if err := os.Remove(c.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the configuration of the engine: %w", err)
	}
	return nil
}
