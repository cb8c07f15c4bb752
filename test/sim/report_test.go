// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"sync"
	"time"
)

// report collects the violations of one simulation.
type report struct {
	began time.Time
	mu    sync.Mutex
	found []violation
}

// violation is an invariant that did not hold.
type violation struct{ kind, text string }

// maxViolations is the number that is kept: the first ones tell most.
const maxViolations = 10

func (r *report) add(kind, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.found) < maxViolations {
		text := fmt.Sprintf(format, args...)
		r.found = append(r.found, violation{kind, fmt.Sprintf("%s, at %v: %s", kind, time.Since(r.began), text)})
	}
}

// note prints what happens, with the flag -trace.
func (r *report) note(format string, args ...any) {
	if *trace {
		fmt.Printf("%v %s\n", time.Since(r.began), fmt.Sprintf(format, args...))
	}
}

// violations are all that were found.
func (r *report) violations() []violation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.found
}
