// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log/slog"
	"strconv"

	"github.com/ropewalk/ropewalk/pkg/crew"
)

// workersFlag is a flag whose value is a number of workers, or autoWorkers.
type workersFlag int

// autoWorkers leaves the number to the machine.
const autoWorkers workersFlag = -1

// Set implements pflag.Value.
func (f *workersFlag) Set(s string) error {
	if s == "auto" {
		*f = autoWorkers
		return nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > crew.MaxWorkers {
		return fmt.Errorf("want auto, or 0 to %d", crew.MaxWorkers)
	}
	*f = workersFlag(n)
	return nil
}

// String implements pflag.Value.
func (f *workersFlag) String() string {
	if *f == autoWorkers {
		return "auto"
	}
	return strconv.Itoa(int(*f))
}

// Type implements pflag.Value: what the help calls the value.
func (*workersFlag) Type() string { return "auto|number" }

// maxAutoWorkers is what one direction of a lane can use: with two its own part takes longer than theirs, and there are two
// directions.
const maxAutoWorkers = 4

// number is how many workers there are to be where the process may use so many CPUs. A flow that one lane cannot carry keeps
// two busy already, the lane's and its application's; what is left can help.
func (f workersFlag) number(cpus int) int {
	if f == autoWorkers {
		return min(max(cpus-2, 0), maxAutoWorkers)
	}
	return int(f)
}

// startWorkers returns a crew of n, or none where it cannot be had: lanes carry everything without it too.
func startWorkers(log *slog.Logger, n int) *crew.Crew {
	c, err := crew.Start(crew.Config{Workers: n, Linger: true})
	if err != nil {
		log.Warn("lanes go without workers", "error", err)
	}
	return c
}
