// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/pkg/cluster/meshmode"
	"github.com/ropewalk/ropewalk/pkg/cluster/proof"
)

// TestStartupTaintIsRemovedWhenPeersAnswer has a Node with two taints.
func TestStartupTaintIsRemovedWhenPeersAnswer(t *testing.T) {
	up := proof.Condition{Type: proof.TunnelUp, Status: proof.True}
	down := proof.Condition{Type: proof.TunnelUp, Status: proof.False}
	reached := proof.Condition{Type: proof.PeersReachable, Status: proof.True}
	both := `[{"effect":"NoSchedule","key":"node.ropewalk.io/agent-not-ready"},{"effect":"NoExecute","key":"other"}]`
	one := `[{"effect":"NoExecute","key":"other"}]`
	for _, c := range []struct {
		what     string
		off      bool
		excluded bool
		taints   string
		proofs   *meshmode.Outcome
		want     string
	}{
		{"nothing was seen", false, false, both, nil, both},
		{"the tunnel is down", false, false, both, &meshmode.Outcome{Conditions: []proof.Condition{down, reached}}, both},
		{"peers are lost", false, false, both, &meshmode.Outcome{Conditions: []proof.Condition{up, {Type: proof.PeersReachable, Status: proof.False, Reason: "PeersLost"}}}, both},
		{"peers answer", false, false, both, &meshmode.Outcome{Conditions: []proof.Condition{up, reached}}, one},
		{"the first node", false, false, both, &meshmode.Outcome{Conditions: []proof.Condition{up, {Type: proof.PeersReachable, Status: proof.Unknown, Reason: proof.NoPeers}}}, one},
		{"an excluded node", false, true, both, nil, one},
		{"no other taint", false, true, `[{"key":"node.ropewalk.io/agent-not-ready"}]`, nil, ""},
		{"it is not wanted", true, true, both, nil, both},
	} {
		a, api, _ := newSyncedAgent(t, func(cfg *Config) { cfg.StartupTaint = !c.off }, ownedByNodeA())
		a.intent = &intent{}
		if c.excluded {
			a.intent.names = []string{"a"}
		}
		api.nodes.put(object{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "node a"}, Spec: json.RawMessage(`{"taints":` + c.taints + `}`)})
		n, _, _ := a.cluster.self()
		n.Spec.Taints = []nodeTaint{{startupTaint}}
		if err := a.removeStartupTaint(t.Context(), n, c.proofs); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		o, _ := api.nodes.get("a")
		var spec map[string]json.RawMessage
		if err := json.Unmarshal(o.Spec, &spec); err != nil || string(spec["taints"]) != c.want {
			t.Errorf("%s: got %s, %v, want %s", c.what, spec["taints"], err, c.want)
		}
	}
}

// TestTaintThatIsGoneIsNotLogged has an agent whose Node is older than the API's.
func TestTaintThatIsGoneIsNotLogged(t *testing.T) {
	var log bytes.Buffer
	a, api, _ := newSyncedAgent(t, func(cfg *Config) { cfg.StartupTaint, cfg.Log = true, slog.New(slog.NewTextHandler(&log, nil)) }, ownedByNodeA())
	a.intent = &intent{names: []string{"a"}}
	api.nodes.put(object{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "node a"}, Spec: json.RawMessage(`{}`)})
	n, _, _ := a.cluster.self()
	n.Spec.Taints = []nodeTaint{{startupTaint}}
	if err := a.removeStartupTaint(t.Context(), n, nil); err != nil || strings.Contains(log.String(), "removed the start-up taint") {
		t.Errorf("got %v, log %s", err, log.String())
	}
}

// TestStartupTaintIsDecoded from protobuf, and a change of it is one that matters.
func TestStartupTaintIsDecoded(t *testing.T) {
	tainted, plain := &node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	spec := append(wired(specTaints, wired(taintKey, []byte("other"))), wired(specTaints, wired(taintKey, []byte(startupTaint)))...)
	if err := tainted.unmarshalSpec(spec); err != nil || len(tainted.Spec.Taints) != 2 || !tainted.hasStartupTaint() {
		t.Errorf("got %+v, %v", tainted.Spec, err)
	}
	if !isRelevantUpdate(plain, tainted, "a") || isRelevantUpdate(plain, tainted, "b") {
		t.Error("only a taint of the own node matters")
	}
}
