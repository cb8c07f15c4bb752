// SPDX-License-Identifier: Apache-2.0

package tun_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
)

func TestOpenMentionsUlimitOnEMFILE(t *testing.T) {
	enterNamespace(t)
	before := openFiles(t)
	for _, spare := range []uint64{0, 4} { // for the first descriptor, and for the first queues
		err := openWithSpare(t, spare)
		if !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "raise ulimit -n") {
			t.Errorf("%d descriptors left: got error %v, want %v", spare, err, unix.EMFILE)
		}
	}
	wantFiles(t, before)
}

// openWithSpare opens a device of many queues while the process may open only so many files.
func openWithSpare(t *testing.T, spare uint64) error {
	t.Helper()
	lowest, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	free := uint64(lowest.Fd())
	lowest.Close()
	var old unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		t.Fatal(err)
	}
	low := unix.Rlimit{Cur: free + spare, Max: old.Max}
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &low, nil); err != nil {
		t.Fatal(err)
	}
	d, openErr := tun.Open(tun.Config{Name: "rw0", Queues: 64})
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &old, nil); err != nil {
		t.Fatal(err)
	}
	if openErr == nil {
		d.Close()
	}
	return openErr
}

func TestOpenReportsWrongCloneDevice(t *testing.T) {
	enterNamespace(t)
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Skipf("needs a mount namespace: %v", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Skipf("needs private mounts: %v", err)
	}
	if err := unix.Mount(os.DevNull, "/dev/net/tun", "", unix.MS_BIND, ""); err != nil {
		t.Skipf("needs bind mounts: %v", err)
	}
	_, err := tun.Open(tun.Config{Name: "rw0"})
	if !errors.Is(err, unix.ENOTTY) || !strings.Contains(err.Error(), "/dev/net/tun is not the tun device") {
		t.Error(err)
	}
}
