// SPDX-License-Identifier: Apache-2.0

package sockets

import "testing"

func TestInterfaceThatIsDownHasNoSources(t *testing.T) {
	var s Sources
	s.Reset(nil)
	if n := s.Len(); n != 0 {
		t.Errorf("got %d, want 0", n)
	}
}
