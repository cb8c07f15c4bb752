// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

// ProgramGap returns the gap that a program of LoadSpread, perhaps of another process, was loaded with, or zero if the
// program has none that this version could read. Loaded with the result, a program has the same gap. It needs
// CAP_SYS_ADMIN.
func ProgramGap(id ebpf.ProgramID) (time.Duration, error) {
	gap, err := programGap(id)
	if err != nil {
		return 0, fmt.Errorf("reading the gap of eBPF program %d: %w", id, err)
	}
	return gap, nil
}

func programGap(id ebpf.ProgramID) (time.Duration, error) {
	spec, err := loadSpread()
	if err != nil {
		return 0, err
	}
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return 0, err
	}
	ids, _ := info.MapIDs()
	gap := spec.Variables["gap"]
	for _, id := range ids {
		ticks, err := readTicks(id, spec.Maps[gap.SectionName], gap.Offset)
		if ticks != 0 || err != nil {
			return time.Duration((ticks+1)<<tickShift - 1), err // the longest gap of as many ticks
		}
	}
	return 0, nil
}

// readTicks returns the number at an offset of a map of constants, or 0 if the map is another.
func readTicks(id ebpf.MapID, want *ebpf.MapSpec, at uint32) (uint64, error) {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil || !info.Frozen() || info.ValueSize != want.ValueSize {
		return 0, err
	}
	value, err := m.LookupBytes(uint32(0))
	if err != nil || int(at)+8 > len(value) {
		return 0, err
	}
	return binary.NativeEndian.Uint64(value[at:]), nil
}
