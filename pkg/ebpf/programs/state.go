// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// State holds the maps of a Spread: tunnels, peers, flows and counters. Methods may be used
// concurrently, except SetTunnel, RemoveTunnel, SetPeers and DeletePeer. Only one of these may
// run at a time, over all processes that opened the same State.
type State struct {
	maps spreadMaps
}

func newState(maps *spreadMaps) State { return State{maps: *maps} }

// Close closes the maps. Maps that are pinned or in use by programs stay.
func (s *State) Close() error { return s.maps.Close() }

// Counters holds the count of each Event.
type Counters [EventCount]uint64

// Counters returns the sums over all CPUs since the maps were created. The snapshot is not atomic.
func (s *State) Counters() (Counters, error) {
	var sum Counters
	var cpus []spreadCounters
	if err := s.maps.Counters.Lookup(uint32(0), &cpus); err != nil {
		return sum, fmt.Errorf("reading the eBPF counters: %w", err)
	}
	for _, cpu := range cpus {
		for i, n := range cpu.Events {
			sum[i] += n
		}
	}
	return sum, nil
}

// QueueCounts returns the number of datagrams received for the tunnels, by receive queue and CPU, whether or not their
// ports were restored. It omits queues after the last one with datagrams. The 256th counts all further queues too.
func (s *State) QueueCounts() ([][]uint64, error) {
	var queues [][]uint64
	used := 0
	for i := range s.maps.Queues.MaxEntries() {
		var cpus []uint64
		if err := s.maps.Queues.Lookup(i, &cpus); err != nil {
			return nil, fmt.Errorf("reading the eBPF counters of receive queues: %w", err)
		}
		queues = append(queues, cpus)
		for _, n := range cpus {
			if n > 0 {
				used = len(queues)
			}
		}
	}
	return queues[:used], nil
}

// ignoreNotExist returns nil for the error of a lookup or deletion that found no element.
func ignoreNotExist(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}
