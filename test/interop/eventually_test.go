// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"testing"
	"time"
)

// patience limits every wait that does not depend on a WireGuard timer. It covers several lost handshakes (5 s each) on an
// overloaded emulated machine.
const patience = 3 * time.Minute

// eventually polls check until it returns nil. It fails the test with check's last error after limit; what names the condition.
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
			t.Fatalf("timed out after %s waiting for %s: %v", limit, what, err)
		}
		<-tick.C
	}
}
