// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// GiveBack collects garbage, and returns free memory and the pages of the program's file to the operating system. The pages in use are mapped
// again one by one. Without /proc all stay.
func GiveBack() {
	debug.FreeOSMemory()
	_ = releaseProgram()
}

// releaseProgram unmaps the pages of the program's file.
func releaseProgram() error {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("reading the mappings of this process: %w", err)
	}
	defer f.Close()
	areas, err := programAreas(f, reflect.ValueOf(releaseProgram).Pointer())
	for _, a := range areas {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, a.start, a.end-a.start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("unmapping pages of the program: %w", errno)
		}
	}
	return err
}

// area is a range of addresses, and the file that is mapped there.
type area struct {
	start, end    uintptr
	device, inode string
}

// programAreas returns the mappings in smaps (proc_pid_smaps(5)) of the file that has the code at
// an address. Writable mappings do not count, nor mappings with a changed page, as after
// relocation or with a breakpoint: the change would be lost. Mappings of other files do not count
// either: another thread may unmap them meanwhile, and use their addresses for something else.
func programAreas(smaps io.Reader, code uintptr) (areas []area, err error) {
	var last, program area
	var readOnly bool
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		var a area
		var perms, offset string
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x %s %s %s %s", &a.start, &a.end, &perms, &offset, &a.device, &a.inode); n == 6 {
			last, readOnly = a, !strings.Contains(perms, "w")
			if a.start <= code && code < a.end {
				program = a
			}
			continue
		}
		if size, ok := strings.CutPrefix(lines.Text(), "Anonymous:"); ok && readOnly && strings.TrimSpace(size) == "0 kB" {
			areas = append(areas, last)
		}
	}
	return slices.DeleteFunc(areas, func(a area) bool { return a.device != program.device || a.inode != program.inode }), lines.Err()
}
