// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"log/slog"

	"github.com/ropewalk/ropewalk/pkg/crew"
)

// AutoWorkers leaves the number of workers to the machine.
const AutoWorkers = -1

// maxAutoWorkers is what one direction of a lane can use: with two its own part takes longer than theirs, and there are two
// directions.
const maxAutoWorkers = 4

// workers is how many there are to be where the process may use so many CPUs. A flow that one lane cannot carry keeps two busy
// already, the lane's and its application's; what is left can help.
func workers(wanted, cpus int) int {
	if wanted == AutoWorkers {
		return min(max(cpus-2, 0), maxAutoWorkers)
	}
	return wanted
}

// startCrew returns a crew of n, or none where it cannot be had: lanes carry everything without it too.
func startCrew(log *slog.Logger, n int) *crew.Crew {
	c, err := crew.Start(crew.Config{Workers: n, Linger: true})
	if err != nil {
		log.Warn("lanes go without workers", "error", err)
	}
	return c
}
