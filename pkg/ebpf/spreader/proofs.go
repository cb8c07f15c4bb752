// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"maps"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
)

// maxProofs bounds the addresses that peers may have used.
const maxProofs = 1 << 14

// proofs are the public keys of the peers that last answered probes from an address. Only the
// owner of a key can. They outlive the peers' entries in the maps. So a peer which moves for a
// while, or has another port or other keys, keeps its address. A peer that only claims it does
// not get it.
type proofs map[netip.Addr]string

// note records the proofs of the peers in the maps. claims are the tunnel's peers by address.
func (known proofs) note(claims map[netip.Addr][]*TunnelPeer, present []programs.Peer, keys probeKeys) {
	for _, held := range present {
		if !held.Proved {
			continue
		}
		address := held.Endpoint.Addr()
		for _, p := range claims[address] {
			if keys.of(p.Secrets) == held.ProbeKeys {
				known[address] = p.Key
			}
		}
	}
	if len(known) > maxProofs {
		maps.DeleteFunc(known, func(a netip.Addr, _ string) bool { return claims[a] == nil })
	}
}
