// SPDX-License-Identifier: Apache-2.0

package cost

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// counter is one of the kernel's performance counters, for the calling thread (perf_event_open(2)).
type counter struct{ fd int }

// openCycles counts the cycles that the calling thread spends in user mode. That needs no
// privilege as long as kernel.perf_event_paranoid is 2 or less. ENOENT is a machine without such a
// counter.
func openCycles() (counter, error) {
	return openCounter(unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CPU_CYCLES)
}

func openCounter(kind uint32, config uint64) (counter, error) {
	attr := unix.PerfEventAttr{
		Type: kind, Config: config, Size: unix.PERF_ATTR_SIZE_VER0,
		Bits: unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv,
	}
	fd, err := unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return counter{}, fmt.Errorf("opening a performance counter: %w", err)
	}
	return counter{fd}, nil
}

func (c counter) read() int64 {
	var value [8]byte
	if n, err := unix.Read(c.fd, value[:]); n != len(value) || err != nil {
		return 0
	}
	return int64(binary.NativeEndian.Uint64(value[:]))
}

func (c counter) close() { _ = unix.Close(c.fd) }

// processTime is the CPU time of the whole process, user and system, in nanoseconds.
func processTime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return t.Nano()
}
