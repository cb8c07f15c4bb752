// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Loads returns the load of each lane to a peer, in the order of Peer.Lanes: bytes sent, halved every 134 ms (package spread). It returns nil if the
// peer does not exist.
func (s *State) Loads(p Peer) ([]uint64, error) {
	key := peerKey(p.Tunnel, p.Endpoint)
	var value spreadPeer
	if err := ignoreNotExist(s.maps.Peers.Lookup(&key, &value)); err != nil {
		return nil, fmt.Errorf("reading the eBPF map of peers: %w", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil { // the clock of bpf_ktime_get_ns
		return nil, fmt.Errorf("reading the clock: %w", err)
	}
	var loads []uint64
	for _, l := range value.lanes() {
		if l.Port.Raw != 0 {
			loads = append(loads, spread.LoadBytes(l.Load, now.Nano()))
		}
	}
	return loads, nil
}
