// SPDX-License-Identifier: Apache-2.0

package quick

import "fmt"

// Succeed tells Runners of runDir that the daemon of an interface, process from, has another one in its place, process to, which they
// then may end as they might end that one. Of a daemon that no Runner has started nothing is written. It fails while one works on the
// interface.
func Succeed(runDir, name string, from, to int) error {
	r := &Runner{RunDir: runDir}
	j := &job{r, Interface{Name: name}}
	if st, ok := j.recall(); !ok || st.PID != from {
		return nil
	}
	unlock, err := r.lock(name)
	if err != nil {
		return fmt.Errorf("remembering the new daemon: %w", err)
	}
	defer unlock()
	st, ok := j.recall() // again, as nobody else writes now
	if !ok || st.PID != from {
		return nil
	}
	st.PID = to
	return j.remember(st)
}
