// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"

	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/tunnel/daemon"
)

// workersFlag is a flag whose value is a number of workers, or autoWorkers.
type workersFlag int

// autoWorkers derives the number from the number of CPUs.
const autoWorkers workersFlag = daemon.AutoWorkers

// Set implements pflag.Value.
func (f *workersFlag) Set(s string) error {
	if s == "auto" {
		*f = autoWorkers
		return nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > workpool.MaxWorkers {
		return fmt.Errorf("want auto, or 0 to %d", workpool.MaxWorkers)
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

// Type implements pflag.Value. The help shows it as the value.
func (*workersFlag) Type() string { return "auto|number" }
