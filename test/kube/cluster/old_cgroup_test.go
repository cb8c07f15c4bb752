// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestCgroupsOfRunningTestsStay: without its cgroups, the kubelet of another test's node fails.
func TestCgroupsOfRunningTestsStay(t *testing.T) {
	lab, err := netlab.New(labPrefix)
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	expect.NoError(t, err)
	defer lab.Close()
	_, err = lab.Host("control")
	expect.NoError(t, err)
	name := cgroupPrefix + lab.Tag() + "-n1"
	if err := makeCgroup(name); err != nil {
		t.Skipf("this machine cannot run containers of a cluster: %v", err)
	}
	defer removeCgroups(name)
	all, err := hierarchies()
	expect.NoError(t, err)
	at := filepath.Join(all[0], name)
	expect.NoError(t, removeOldCgroups())
	if _, err := os.Stat(at); err != nil {
		t.Errorf("the cgroup of a running test was removed: %v", err)
	}
	expect.NoError(t, lab.Close())
	expect.NoError(t, removeOldCgroups())
	if _, err := os.Stat(at); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the cgroup of a test that has ended is left: %v", err)
	}
}
