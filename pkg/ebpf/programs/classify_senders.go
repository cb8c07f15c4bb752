// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/cilium/ebpf"
)

// recentSenders configures the Bloom filters of sources that sent initiations (bpf/include/recent_senders.h).
type recentSenders struct {
	interval time.Duration // the time of one filter
	blocks   uint32        // of each filter, of 64 bytes
	seed     uint64
}

// defaultSenders returns filters of 2 MiB each with a secret seed.
func defaultSenders() recentSenders {
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // it does not fail
	return recentSenders{interval: 4 * time.Second, blocks: 1 << 15, seed: binary.NativeEndian.Uint64(seed[:])}
}

// configure sets the size of the map, which the C header gives in filters, and returns the values of the program's constants.
func (s recentSenders) configure(spec *ebpf.CollectionSpec) map[string]any {
	spec.Maps[classifyMapSenders].MaxEntries *= s.blocks
	return map[string]any{
		classifyVarSenderInterval: uint64(s.interval), classifyVarSenderBlocks: s.blocks, classifyVarSenderSeed: s.seed,
	}
}
