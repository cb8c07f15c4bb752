// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/ropewalk/ropewalk/test/callorder"
)

// TestCallsRunDownTheFiles checks the order of files in doc.go.
func TestCallsRunDownTheFiles(t *testing.T) {
	callorder.Check(t, callorder.Options{Ambiguous: []string{".String", ".next", ".List"}, Least: 50})
}
