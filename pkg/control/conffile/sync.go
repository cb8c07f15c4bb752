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
	for i := range slices.Backward(dev.Peers) { // of several sections, the first: those after it may have what it lacks
		kept[dev.Peers[i].PublicKey] = &dev.Peers[i]
	}
	var changes []config.Peer // removals first, so that they cannot affect the settings of the other peers
	for i := range current {
		now := &current[i]
		peer := kept[now.PublicKey]
		if peer == nil {
			changes = append(changes, config.Peer{PublicKey: now.PublicKey, Remove: true})
			continue
		}
		if peer.PresharedKey == nil && !now.PresharedKey.IsZero() {
			peer.PresharedKey = new(noise.PresharedKey)
		}
		if peer.Name == nil && now.Name != "" {
			peer.Name = new(string)
		}
	}
	slices.SortFunc(changes, func(a, b config.Peer) int { return bytes.Compare(b.PublicKey[:], a.PublicKey[:]) })
	dev.Peers = append(changes, dev.Peers...)
	return dev, nil
}
