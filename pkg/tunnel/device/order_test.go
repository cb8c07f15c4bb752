// SPDX-License-Identifier: Apache-2.0

package device

import (
	"testing"

	"github.com/ropewalk/ropewalk/test/callorder"
)

// TestCallsRunDownTheFiles checks the order of files in doc.go.
func TestCallsRunDownTheFiles(t *testing.T) {
	callorder.Check(t, callorder.Options{
		Ambiguous: []string{".Close", ".Done", ".Error", ".Start", ".Stats", ".String", ".Resume", ".Update", ".Confirm", ".RoutesChanged"},
		// A result returns to the file that uses it: the answer to an echo, a reported path MTU, an endpoint whose name was looked up, the session of a message of an exchange. A peer with traffic starts before its turn.
		Upward: []string{"probe echo", "exchange session", "pathlimit pathmtu", "endpointname handshake", "handshake peer"},
		Least:  100,
	})
}
