// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/uapi/uapitest"
)

// TestADaemonThatCannotBeFoundIsNotTakenForGone: it lets nobody in, and no Runner remembers which process it is.
func TestADaemonThatCannotBeFoundIsNotTakenForGone(t *testing.T) {
	dir := uapitest.NewDir(t)
	find := func() error {
		p, err := (&job{Runner: &Runner{Sockets: dir, RunDir: t.TempDir()}, Interface: Interface{Name: "rwfull"}}).findProcess()
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		return p.waitEnd(0)
	}
	if err := find(); err != nil {
		t.Errorf("without a daemon: %v", err)
	}
	uapitest.Full(t, dir, "rwfull")
	if err := find(); err == nil || !strings.Contains(err.Error(), "lets nobody in") {
		t.Errorf("with one: %v", err)
	}
}
