// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"bytes"
	"context"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Sync returns the change that gives a device the file's configuration, as `wg syncconf` does. Unlike Device, it keeps the sessions of
// peers that are in both. It removes peers, preshared keys and names that the file does not have (older wg(8) versions keep the
// preshared keys).
func (f *File) Sync(ctx context.Context, resolve Resolver, current []config.PeerStatus) (config.Device, error) {
	dev, err := f.Device(ctx, resolve)
	if err != nil || len(dev.Peers) == 0 {
		return dev, err
	}
	dev.ReplacePeers = false
	kept := make(map[noise.PublicKey]*config.Peer, len(dev.Peers))
	keyed, named := map[noise.PublicKey]bool{}, map[noise.PublicKey]bool{} // by any section of the peer
	for i := range dev.Peers {
		p := &dev.Peers[i]
		kept[p.PublicKey] = p
		keyed[p.PublicKey] = keyed[p.PublicKey] || p.PresharedKey != nil
		named[p.PublicKey] = named[p.PublicKey] || p.Name != nil
	}
	var changes []config.Peer // removals first, so that they cannot affect the settings of the other peers
	for i := range current {
		now := &current[i]
		peer := kept[now.PublicKey]
		if peer == nil {
			changes = append(changes, config.Peer{PublicKey: now.PublicKey, Remove: true})
			continue
		}
		if !keyed[now.PublicKey] && !now.PresharedKey.IsZero() {
			peer.PresharedKey = new(noise.PresharedKey)
		}
		if !named[now.PublicKey] && now.Name != "" {
			peer.Name = new(string)
		}
	}
	slices.SortFunc(changes, func(a, b config.Peer) int { return bytes.Compare(b.PublicKey[:], a.PublicKey[:]) })
	dev.Peers = append(changes, dev.Peers...)
	return dev, nil
}
