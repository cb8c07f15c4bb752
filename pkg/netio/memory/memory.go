// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime/debug"
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
	areas, err := fileAreas(f)
	for _, a := range areas {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, a.start, a.end-a.start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("unmapping pages of the program: %w", errno)
		}
	}
	return err
}

// area is a range of addresses.
type area struct{ start, end uintptr }

// fileAreas returns the mappings in smaps (proc_pid_smaps(5)) that have nothing but pages of a file. Those that can be written do not count, and
// those with a changed page, as after relocation or with a breakpoint: the change would be lost.
func fileAreas(smaps io.Reader) (areas []area, err error) {
	var last area
	var ofFile bool
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		var a area
		var perms, device string
		var offset, inode uint64
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x %s %x %s %d", &a.start, &a.end, &perms, &offset, &device, &inode); n == 6 {
			last, ofFile = a, inode != 0 && !strings.Contains(perms, "w")
			continue
		}
		if size, ok := strings.CutPrefix(lines.Text(), "Anonymous:"); ok && ofFile && strings.TrimSpace(size) == "0 kB" {
			areas = append(areas, last)
		}
	}
	return areas, lines.Err()
}
