// SPDX-License-Identifier: Apache-2.0

package device

// RoutesChanged forgets on which of our addresses each peer last reached us: the address may be gone, or no longer the
// one to use. Routing chooses until the peer is heard from again. Call it when the host's routes, addresses or links
// changed.
func (d *Device) RoutesChanged() {
	d.peersMu.RLock()
	defer d.peersMu.RUnlock()
	for _, p := range d.peers {
		p.clearSource()
	}
}
