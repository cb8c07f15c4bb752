// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ExecOn replaces this process by a program that runs on some CPUs only, in cpuset(7)'s list format, as taskset(1) does.
func ExecOn(cpus string, argv []string) error {
	var set unix.CPUSet
	for _, c := range cpuList(cpus) {
		set.Set(c)
	}
	runtime.LockOSThread() // the limit is this thread's, and exec keeps it
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("running on CPUs %q: %w", cpus, err)
	}
	return fmt.Errorf("running %s: %w", argv[0], unix.Exec(argv[0], argv, os.Environ()))
}
