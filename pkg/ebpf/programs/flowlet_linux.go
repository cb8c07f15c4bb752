// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

// ProgramFlowletGap returns the flowlet gap with which LoadSpread loaded a program, perhaps in another process. It returns
// zero if the program's variables have another layout. A program loaded with the result has the same gap. It needs
// CAP_SYS_ADMIN.
func ProgramFlowletGap(id ebpf.ProgramID) (time.Duration, error) {
	gap, err := programFlowletGap(id)
	if err != nil {
		return 0, fmt.Errorf("reading the flowlet gap of eBPF program %d: %w", id, err)
	}
	return gap, nil
}

func programFlowletGap(id ebpf.ProgramID) (time.Duration, error) {
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
	gap := spec.Variables[spreadVarFlowletGap]
	for _, id := range ids {
		ticks, err := readUint64(id, spec.Maps[gap.SectionName], gap.Offset)
		if ticks != 0 || err != nil {
			return time.Duration((ticks+1)<<tickShift - 1), err // the longest gap with that number of ticks
		}
	}
	return 0, nil
}

// readUint64 returns the number at an offset of a frozen .rodata map, or 0 if the map differs from the wanted one.
func readUint64(id ebpf.MapID, want *ebpf.MapSpec, at uint32) (uint64, error) {
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
