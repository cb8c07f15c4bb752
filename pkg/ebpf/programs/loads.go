// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// epochShift converts nanoseconds to the program's epochs of 134 ms (bpf/include/lane.h).
const epochShift = 27

// Idle returns how long ago a message to each peer of a tunnel last passed the spread program,
// spread or not. The granularity is 134 ms. It omits peers to which none has.
func (s *State) Idle(tunnel uint16) (map[netip.AddrPort]time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return nil, fmt.Errorf("reading the clock: %w", err)
	}
	idle := map[netip.AddrPort]time.Duration{}
	err := forEachEntry(s.maps.Peers, func(key *spreadPeerKey, value *spreadPeer) {
		if hostOrder(key.ListenPort.Raw) == tunnel && value.Seen != 0 {
			epochs := int32(uint32(now.Nano()>>epochShift) - value.Seen) // negative: a message has passed since the clock was read
			idle[key.endpoint()] = time.Duration(max(epochs, 0)) << epochShift
		}
	})
	return idle, err
}

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
