// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/test/expect"
)

// needOlder returns a directory with the agent, the engine and the CRDs of the release before. make test-older builds it.
func needOlder(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("ROPEWALK_OLDER_KUBE")
	if dir == "" {
		t.Skip("needs an older build in ROPEWALK_OLDER_KUBE (make test-older)")
	}
	return dir
}

// changesTo makes the node's next processes those of a release, and replaces the present ones as a rolling update does: the engine while its
// agent runs, or after it.
func (n *node) changesTo(release string, engineFirst bool) {
	n.l.Helper()
	n.release = release
	engine := func() {
		old := n.engine
		n.startEngine()
		n.l.logs(old, "another process has taken the tunnel over")
		old.end()
	}
	if engineFirst {
		engine()
	}
	n.stop()
	n.startMesh()
	if !engineFirst {
		engine()
	}
}

// TestOlderReleaseSharesTheMesh has an older agent and engine on one of two nodes, updates them, and goes back, while pods have connections that
// must not be in the clear. The CRDs and the policy are those of this release, as an upgrade begins.
func TestOlderReleaseSharesTheMesh(t *testing.T) {
	older := needOlder(t)
	l := newLab(t, 2)
	l.setMesh(nil)
	pods := []*pod{l.nodes[0].addPod(), l.nodes[1].addPod()}
	l.openly(pods)
	changes := l.nodes[1]
	changes.release = older
	for _, n := range l.nodes {
		n.startMesh()
	}
	l.reach(pods)
	l.awaitStatus("both are peers", func(st published) bool { return st.Peers == 1 })
	e := l.eavesdrop()
	for _, step := range []struct {
		what, release string
		engineFirst   bool
	}{
		{"the node is of the older release", older, false},
		{"its engine is updated, then its agent", "", true},
		{"its agent goes back, then its engine", older, false},
		{"its agent is updated, then its engine", "", false},
		{"its engine goes back, then its agent", older, true},
	} {
		if changes.release != step.release {
			b := l.burden(step.what, pods[0], pods[1])
			b.carries()
			changes.changesTo(step.release, step.engineFirst)
			b.finish()
		}
		l.reach(pods)
		l.reports(l.nodes, "PeersReachable", metav1.ConditionTrue, "PeersAnswer", func() { l.reach(pods) })
		l.reports(l.nodes, v1alpha1.ConditionReady, metav1.ConditionTrue, "Reconciled", nil)
		l.reports(l.nodes, v1alpha1.ConditionSoleWriter, metav1.ConditionTrue, "NoOther", nil)
		l.awaitStatus("both are peers: "+step.what, func(st published) bool { return st.Peers == 1 && st.PublicKey != "" })
	}
	e.stop(l)
}

// TestOlderDefinitionsStopOrServeAgent: with the CRDs of the release before, an agent either works, or says why not until they are updated.
func TestOlderDefinitionsStopOrServeAgent(t *testing.T) {
	older := needOlder(t)
	l := newLab(t, 1)
	l.setMesh(nil)
	files, err := filepath.Glob(filepath.Join(older, "tree", "deploy", "crd", "ropewalk.io_*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs in %s: %v", older, err)
	}
	for _, file := range files {
		l.applyFile(file)
	}
	n := l.nodes[0]
	n.startMesh()
	expect.EventuallyNoError(l, "the agent says whether the CRDs serve it", func() error {
		st, err := l.status(n.name)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady)
		if c == nil || !slices.Contains([]string{"Reconciled", "OutdatedCRD"}, c.Reason) {
			return fmt.Errorf("it is %+v", c)
		}
		t.Logf("with the older CRDs: %s", c.Reason)
		return nil
	})
	for _, file := range files {
		l.applyFile(filepath.Join("..", "..", "deploy", "crd", filepath.Base(file)))
	}
	l.reports(l.nodes, v1alpha1.ConditionReady, metav1.ConditionTrue, "Reconciled", nil)
}
