// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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
	if err := replaceFile(c.File, b.Bytes()); err != nil {
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

// replaceFile replaces a file by one with mode 0600. A crash leaves the old one or the new one, and at most one temporary file, which the next
// call replaces.
func replaceFile(path string, text []byte) error {
	dir, name := filepath.Split(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	temporary := filepath.Join(dir, "."+name)
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
