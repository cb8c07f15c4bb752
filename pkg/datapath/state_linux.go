// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// State is the tunnels, peers, flows and counters that the programs of a Spread work on. Methods may be used
// concurrently except SetTunnel, RemoveTunnel, SetPeers and DeletePeer, of which one runs at a time, over all processes
// that opened the same State.
type State struct {
	maps spreadMaps
}

func newState(maps *spreadMaps) State { return State{maps: *maps} }

// Close gives the maps back. What is pinned, or in use by programs, stays.
func (s *State) Close() error { return s.maps.Close() }

// Counters is how often each Event happened.
type Counters [EventCount]uint64

// Counters returns the sums over all CPUs since the State was made. It is not atomic over all events.
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

// QueueCounts returns how many datagrams came in for the tunnels, by receive queue and then by CPU, gathered or not.
// Queues behind the last that received any are left out; those from the 256th are counted as one.
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

// absent makes an error of a lookup or deletion that found nothing nil.
func absent(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}
