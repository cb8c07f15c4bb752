// SPDX-License-Identifier: Apache-2.0

// Package netlabtest makes the hosts of a test, which go with it.
package netlabtest

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
)

// patience bounds every wait, in case of a fault: far beyond what a loaded machine needs.
const patience = 20 * time.Second

// Hosts makes a lab, whose namespaces begin with prefix, with hosts of these names. The test is skipped where it may not.
func Hosts(t testing.TB, prefix string, names ...string) (lab *netlab.Lab, hosts []*netlab.Host) {
	t.Helper()
	lab, err := netlab.New(prefix)
	need(t, err)
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, name := range names {
		h, err := lab.Host(name)
		need(t, err)
		hosts = append(hosts, h)
	}
	return lab, hosts
}

func need(t testing.TB, err error) {
	t.Helper()
	switch {
	case errors.Is(err, netlab.ErrPrivileges):
		t.Skipf("needs network namespaces: %v", err)
	case err != nil:
		t.Fatal(err)
	}
}

// NeedAFXDP skips a test where no AF_XDP socket can be had.
func NeedAFXDP(t testing.TB) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs CAP_NET_RAW and a kernel with AF_XDP: %v", err)
	}
	_ = unix.Close(fd)
}

// Await calls done until it reports true, or ends the test, with what why says if there is one.
func Await(t testing.TB, what string, done func() bool, why func() any) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if !time.Now().After(end) {
			continue
		}
		if why == nil {
			t.Fatalf("%s: not within %v", what, patience)
		}
		t.Fatalf("%s: not within %v: %+v", what, patience, why())
	}
}
