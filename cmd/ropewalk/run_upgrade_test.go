// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestSuccessorHasFlagsOfOldDaemon(t *testing.T) {
	for args, want := range map[string]string{
		"ropewalk run wg0":                                "run --takeover wg0",
		"ropewalk run --underlay udp rwx%d":               "run --takeover --underlay udp rwx7",
		"/usr/bin/ropewalk run --lanes 2 --takeover wg0":  "run --takeover --lanes 2 wg0",
		"ropewalk run -f wg0 --metrics 127.0.0.1:9820 --": "run --takeover -f wg0 --metrics 127.0.0.1:9820 --",
	} {
		if got := strings.Join(successorArgs(strings.Fields(args), "rwx%d", "rwx7"), " "); got != want {
			t.Errorf("%s: got %s, want %s", args, got, want)
		}
	}
}

// TestFailedSuccessorGivesReason starts programs that end before they take anything over.
func TestFailedSuccessorGivesReason(t *testing.T) {
	dir := t.TempDir()
	ropewalk, script, file, foreign := filepath.Join(dir, "ropewalk"), filepath.Join(dir, "script"), filepath.Join(dir, "file"), filepath.Join(dir, "foreign")
	self, err := os.Executable()
	expect.NoError(t, err)
	expect.NoError(t, os.Symlink(self, ropewalk)) // see TestMain
	expect.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\nsleep 1 >/dev/null 2>&1 &\nexit 7\n"), 0o700))
	expect.NoError(t, os.WriteFile(file, nil, 0o600))
	expect.NoError(t, os.WriteFile(foreign, []byte("\x7fELF of another machine"), 0o700))
	for path, want := range map[string]string{
		ropewalk:                     "exit status 2: --lanes: want a whole number, got \"many\"",
		script:                       "exit status 7",
		"/proc/self/exe/ropewalk":    "not a directory",
		filepath.Join(dir, "absent"): "no such file",
		file:                         "permission denied",
		foreign:                      "exec format error",
	} {
		s, err := startSuccessor(path, []string{"run", "--takeover", "--lanes", "many", "rwnobody"})
		if err == nil {
			err = <-s.Ended
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", path, err, want)
		}
	}
}

func TestUpgradeErrorNamesDaemonThatServes(t *testing.T) {
	late, other := fmt.Errorf("reading: %w", os.ErrDeadlineExceeded), errors.New("no such directory")
	for want, err := range map[string]error{
		"the old daemon of wg0 continues": &uapi.Error{Errno: syscall.ETIMEDOUT},
		"restart it instead":              &uapi.Error{Errno: syscall.EPROTO},
		"upgrade the agent":               &uapi.Error{Errno: syscall.EOPNOTSUPP},
		"has just been replaced":          fmt.Errorf("upgrading: %w", &uapi.Error{Errno: syscall.ENODEV}),
		"may still complete":              late,
		other.Error():                     other,
	} {
		if got := upgradeError("wg0", err); !strings.Contains(got.Error(), want) {
			t.Errorf("%v: got %v, want %q in it", err, got, want)
		}
	}
	if err := upgradeError("wg0", nil); err != nil {
		t.Error(err)
	}
}

// TestDaemonWithFullBacklogIsUnreachable uses a socket whose backlog of connections is full.
func TestDaemonWithFullBacklogIsUnreachable(t *testing.T) {
	dir := uapitest.NewDir(t)
	uapitest.FillListenQueue(t, dir, "rwfull")
	if _, err := dialDaemon(dir, "rwfull"); err == nil || exitCode(err) != exitUnreachable || uapi.IsNotRunning(err) {
		t.Error(err)
	}
}

func TestUpgradeAndTakeoverNeedRunningDaemon(t *testing.T) {
	if err := upgrade(uapi.Dir(t.TempDir()), "rwnobody"); exitCode(err) != exitUnreachable {
		t.Error(err)
	}
	_, _, err := execute(t, newRootCmd(), "", "run", "--takeover", "--log-level", "silent", "rwnobody")
	if exitCode(err) != exitUnreachable {
		t.Error(err)
	}
}
