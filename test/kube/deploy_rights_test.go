// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestSpreadRunsWithManifestRights(t *testing.T) {
	needRuntime(t)
	bpf := mountBPF(t)
	l := newLab(t, 2)
	for _, n := range l.nodes {
		n.tunnelSocket = n.socket()
		n.run(kustomized("spread"), bpf, "--port", strconv.Itoa(port), "--any-socket")
	}
	l.awaitStatus("both spread", func(st published) bool { return st.Gathers && st.SpreadsTo == 1 })
	prove(l.nodes[0], l.nodes[1])
	expect.EventuallyNoError(l, "flows are spread, and gathered", func() error { return spreads(l.nodes[0], l.nodes[1]) })
}

func TestMeshRunsWithManifestRights(t *testing.T) {
	needRuntime(t)
	l := newLab(t, 2)
	l.setMesh(nil)
	var pods []*pod
	var all []*container
	for _, n := range l.nodes {
		pods = append(pods, n.addPod())
		all = append(all, n.runEngine())
		n.run(kustomized("mesh"), l.bpf)
	}
	l.awaitStatus("both are peers", func(st published) bool { return st.PublicKey != "" && st.Peers == 1 })
	l.reports(l.nodes, "Encrypted", metav1.ConditionTrue, "SeenInTunnel", func() { l.reach(pods) })
	for _, c := range all {
		expect.EventuallyNoError(l, "the startup probe succeeds", c.probeStartup)
	}
	keys := filepath.Join(all[0].paths["/var/lib/ropewalk"], "keys")
	dir, err := os.Stat(keys)
	expect.NoError(l, err)
	names, err := os.ReadDir(keys)
	expect.NoError(l, err)
	if dir.Mode().Perm() != 0o700 || len(names) == 0 {
		t.Errorf("%s: got %v, %v", keys, dir.Mode(), names)
	}
	for _, name := range names {
		st, err := name.Info()
		if errors.Is(err, os.ErrNotExist) { // a temporary file that has been renamed meanwhile
			continue
		}
		expect.NoError(l, err)
		if st.Mode().Perm() != 0o600 {
			t.Errorf("%s: got %v", name, st.Mode())
		}
	}
}

// pinned returns the entries of a BPF file system, except those of the kernel.
func pinned(t *testing.T, bpf string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(bpf)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".debug") {
			names = append(names, e.Name())
		}
	}
	return names
}

// TestCleanupLeavesNothing ends agents of both modes and runs the chart's cleanup on their nodes.
func TestCleanupLeavesNothing(t *testing.T) {
	needRuntime(t)
	bpf := mountBPF(t)
	l := newLab(t, 4)
	l.setMesh(map[string]any{"cleartext": "Auto"})
	var agents []*container
	for i, n := range l.nodes {
		if i < 2 {
			n.tunnelSocket = n.socket()
			agents = append(agents, n.run(kustomized("spread"), bpf, "--port", strconv.Itoa(port), "--any-socket"))
		} else {
			n.runEngine()
			agents = append(agents, n.run(kustomized("mesh"), bpf))
		}
	}
	l.awaitStatus("each has a peer", func(st published) bool { return st.Peers == 1 })
	expect.EventuallyNoError(l, "agents attached and running", func() error {
		if routes := l.nodes[2].routes(); len(pinned(t, bpf)) == 0 || !strings.Contains(routes, "ropewalk0") {
			return errors.New(routes)
		}
		return nil
	})
	for i, n := range l.nodes {
		agents[i].stop()
		base := "cleanup-spread"
		if i >= 2 {
			base = "cleanup-mesh"
		}
		n.cleanUp(base, bpf)
	}
	if pins := pinned(t, bpf); len(pins) > 0 {
		t.Errorf("pins are left: %v", pins)
	}
	keys := filepath.Join(agents[3].paths["/var/lib/ropewalk"], "keys")
	if left, err := os.ReadDir(keys); err != nil || len(left) == 0 {
		t.Errorf("the keys were removed without --keys: %v", err)
	}
	// docs/kubernetes/install.md lists them. The file with the engine's key is not among them.
	documented := []string{"/run/ropewalk/ropewalk0.keep.lock", "/var/lib/ropewalk/keys/private.key"}
	for _, n := range l.nodes[2:] {
		if left := n.files(bpf); !slices.Equal(left, documented) {
			t.Errorf("%s: files are left: %q", n.name, left)
		}
	}
	l.nodes[3].cleanUp("cleanup-mesh", bpf, "--keys")
	if _, err := os.Stat(keys); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("keys are left: got error %v, want %v", err, os.ErrNotExist)
	}
}

// files returns the files of the node's directories.
func (n *node) files(bpf string) (all []string) {
	n.l.Helper()
	for name, dir := range n.paths(bpf) {
		if dir == bpf || name == "/dev/net/tun" {
			continue
		}
		expect.NoError(n.l, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && !d.IsDir() {
				all = append(all, name+strings.TrimPrefix(path, dir))
			}
			return err
		}))
	}
	slices.Sort(all)
	return all
}

// cleanUp runs the cleanup of one of kustomize's bases on the node.
func (n *node) cleanUp(base, bpf string, args ...string) {
	n.l.Helper()
	c := n.run(kustomized(base), bpf, args...)
	expect.EventuallyNoError(n.l, "the cleanup to finish", func() error {
		if !strings.Contains(c.log.String(), "cleanup completed") {
			return errors.New(c.log.String())
		}
		return nil
	})
	c.stop()
	if st, err := n.l.status(n.name); err != nil || st.Mode != "" || st.PublicKey != "" || len(st.Endpoints) > 0 || st.Gathers {
		n.l.Errorf("%s still has a status: got %+v, error %v, want no error", n.name, st, err)
	}
	if left := n.routes(); strings.Contains(left, "ropewalk0") || strings.Contains(left, "proto 82") || strings.Contains(left, "unreachable 10.") {
		n.l.Errorf("left on %s:\n%s", n.name, left)
	}
}

// routes returns the node's routes of all tables, and its links.
func (n *node) routes() string {
	n.l.Helper()
	out, err := n.host.Command(n.l.Context(), "sh", "-c", "ip route show table all; ip -6 route show table all; ip rule; ip link").CombinedOutput()
	expect.NoError(n.l, err)
	return string(out)
}
