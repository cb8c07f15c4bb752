// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"log/slog"

	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
)

// AutoWorkers derives the number of workers from the CPUs.
const AutoWorkers = -1

// maxAutoWorkers is two for each direction of a lane. With more, the lane's own part takes longer than the workers' part.
const maxAutoWorkers = 4

// workers returns the number of workers for a process that may use cpus CPUs. A flow that is too fast for one lane keeps two CPUs
// busy: the lane's and the application's. The others can run workers.
func workers(wanted, cpus int) int {
	if wanted == AutoWorkers {
		return min(max(cpus-2, 0), maxAutoWorkers)
	}
	return wanted
}

// startWorkers returns a worker pool of n workers, or nil after an error: the lanes work without it.
func startWorkers(log *slog.Logger, n int) *workpool.Pool {
	c, err := workpool.Start(workpool.Config{Workers: n, BusyPoll: true})
	if err != nil {
		log.Warn("starting worker threads failed, lanes encrypt and decrypt without workers until this daemon restarts", "error", err)
	}
	return c
}
