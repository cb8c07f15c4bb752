// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/spread"
)

// Loads returns what has lately left towards a peer, by lane, in bytes that are halved every 134 ms (pkg/spread). It is
// nil for a peer that is not there.
func (s *State) Loads(p Peer) ([]uint64, error) {
	key := peerKey(p.Tunnel, p.Endpoint)
	var value spreadPeer
	if err := absent(s.maps.Peers.Lookup(&key, &value)); err != nil {
		return nil, fmt.Errorf("reading the eBPF map of peers: %w", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil { // the program's clock
		return nil, fmt.Errorf("reading the clock: %w", err)
	}
	var loads []uint64
	for _, word := range value.Loads[:min(value.Lanes, spread.MaxPorts)] {
		loads = append(loads, spread.LoadBytes(word, now.Nano()))
	}
	return loads, nil
}
