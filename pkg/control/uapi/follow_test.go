// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"os"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestSilentDaemonIsUnresponsiveNotAbsent(t *testing.T) {
	at, err := os.MkdirTemp("/tmp", "uapi") //nolint:usetesting // as in uapitest.NewDir
	expect.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(at) })
	dir := Dir(at)
	if _, err := dir.statusWithin("wg0", time.Minute); !IsNotRunning(err) {
		t.Errorf("without a socket: got %v", err)
	}
	l, err := dir.Listen("wg0")
	expect.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	if _, err := dir.statusWithin("wg0", time.Millisecond); !IsUnresponsive(err) {
		t.Errorf("of a daemon that does not answer: got %v", err)
	}
}
