// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

// Parts of a flow entry (bpf/include/lane.h): the lane, and the peer's number, the tag and the tick from these bits. An entry may be newer than the
// clock by tickSlack.
const (
	laneMask  = 0xff
	peerBit   = 8
	tagBit    = 24
	tickBit   = 32
	tickSlack = 1 << 16
)

// ActiveFlow is an entry of the flow table that was used within the gap. Flows whose hashes have the same upper bits share one.
type ActiveFlow struct {
	Hash uint16 // the upper 16 bits of the inner flow's hash
	Lane int    // towards a peer with fewer lanes: modulo their number
	Idle time.Duration
}

// ActiveFlows returns the flows that have sent within the flowlet gap. It reads the whole table, 512 KiB.
func (s *State) ActiveFlows() ([]ActiveFlow, error) {
	now, err := ticks()
	if err != nil {
		return nil, fmt.Errorf("listing flows: %w", err)
	}
	all, err := s.settings()
	if err != nil {
		return nil, fmt.Errorf("listing flows: %w", err)
	}
	size := int(s.maps.Flows.MaxEntries())
	keys, values := make([]uint32, size), make([]uint64, size)
	var cursor ebpf.MapBatchCursor
	n, err := s.maps.Flows.BatchLookup(&cursor, keys, values, nil)
	if ignoreNotExist(err) != nil {
		return nil, fmt.Errorf("reading the eBPF map of flows: %w", err)
	}
	var flows []ActiveFlow
	for i, entry := range values[:n] {
		idle := max(int64(uint32(now-int64(entry>>tickBit)+tickSlack))-tickSlack, 0) // packets pass meanwhile
		if entry != 0 && idle < int64(all.FlowletGap) {
			flows = append(flows, ActiveFlow{
				Hash: uint16(keys[i]), Lane: int(entry & laneMask), Idle: time.Duration(idle) << tickShift,
			})
		}
	}
	return flows, nil
}
