// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
)

// TestUnidentifiableDaemonIsAnError has a daemon with a full listen queue and no saved process ID.
func TestUnidentifiableDaemonIsAnError(t *testing.T) {
	dir := uapitest.NewDir(t)
	find := func() error {
		p, err := (&job{Runner: &Runner{Sockets: dir, RunDir: t.TempDir()}, Interface: Interface{Name: "rwfull"}}).findProcess()
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		return p.waitExit(0)
	}
	if err := find(); err != nil {
		t.Errorf("without a daemon: %v", err)
	}
	uapitest.FillListenQueue(t, dir, "rwfull")
	if err := find(); err == nil || !strings.Contains(err.Error(), "does not answer on its control socket") {
		t.Errorf("with one: got error %v, want an error", err)
	}
}
