// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"testing"
	"time"
)

// patience is how long anything may take that needs no timer of WireGuard's to run out. It covers several lost
// handshakes (5 s each) on a machine that is emulated and overloaded.
const patience = 3 * time.Minute

// eventually waits until what holds; check returns nil then, and otherwise says what is wrong.
func eventually(t *testing.T, what string, limit time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s: %v", limit, what, err)
		}
		<-tick.C
	}
}
