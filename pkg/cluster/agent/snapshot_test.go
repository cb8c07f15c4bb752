// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh/view"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

const node1 = `{"metadata":{"name":"n1","uid":"u1"},"spec":{"podCIDRs":["10.0.1.0/24"]},"status":{"conditions":[{"type":"Ready","status":"False"}],` +
	`"addresses":[{"type":"InternalIP","address":"192.0.2.1"},{"type":"ExternalIP","address":"198.51.100.7"}]}}`

// agentObject returns an object that is both a RopewalkNode and a RopewalkAnnouncement.
func agentObject(name, uid string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":%[1]q,"uid":%q}]},`+
		`"spec":{"keyGeneration":2,"mode":"spread","gathers":true},"status":{"peers":3,"stalePeers":{"count":12,"nodes":["n9"]},`+
		`"conditions":[{"type":"Ready","status":"True","message":"a note"}]}}`, name, uid)
}

// serve answers lists of nodes, RopewalkNodes and RopewalkAnnouncements. Each text is a page, or a status code such as 403.
func serve(t *testing.T, nodes, agents []string) *rest.Config {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pages := agents
		switch path.Base(r.URL.Path) {
		case "nodes":
			pages = nodes
		case v1alpha1.PeerResource:
			pages = []string{`{"metadata":{"name":"laptop","labels":{"ropewalk.io/cluster":"west"}},"spec":{"publicKey":"k","allowedIPs":["10.9.0.2/32"],"nodeSelector":{"matchLabels":{"zone":"b","a":""}}},` +
				`"status":{"conditions":[{"type":"Accepted","status":"False","message":"taken"}]}}`}
		}
		at := len(r.URL.Query().Get("continue"))
		next := ""
		if at+1 < len(pages) {
			next = strings.Repeat("x", at+1)
		}
		if code := 0; len(pages[at]) == 3 {
			_, _ = fmt.Sscan(pages[at], &code)
			http.Error(w, "no", code)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"metadata":{"continue":%q},"items":[%s]}`, next, pages[at])
	}))
	t.Cleanup(s.Close)
	return &rest.Config{Host: s.URL}
}

func TestNodesWithAgentAreFound(t *testing.T) {
	clean := strings.ReplaceAll(agentObject("n2", "u2"), `,"mode":"spread"`, "")
	up := func(name string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, name)
	}
	cfg := serve(t, []string{node1 + "," + up("n2"), up("n3")}, []string{agentObject("n1", "u1"), clean + "," + agentObject("n3", "u3") + "," + agentObject("n4", "u4")})
	if names, away, err := NodesWithAgent(t.Context(), cfg); err != nil || strings.Join(names, " ") != "n3" || strings.Join(away, " ") != "n1 n4" {
		t.Errorf("got %q, away %q, %v", names, away, err)
	}
	if _, _, err := NodesWithAgent(t.Context(), serve(t, []string{""}, []string{"404"})); !errors.Is(err, ErrNoDefinition) {
		t.Errorf("without the CRD: %v", err)
	}
}

// TestNodesWithAgentAreFoundWithoutAnnouncements: the CRDs are those of an older version, or one of them was deleted.
func TestNodesWithAgentAreFoundWithoutAnnouncements(t *testing.T) {
	status := func(name, text string) string { return fmt.Sprintf(`{"metadata":{"name":%q},"status":%s}`, name, text) }
	all := strings.Join([]string{
		status("n1", `{"agentVersion":"v1"}`), status("n2", `{}`), status("n3", `{"agentVersion":"v1","conditions":[{"type":"Ready","status":"False","reason":"Failed"}]}`),
		status("n4", `{"agentVersion":"v1","conditions":[{"type":"Ready","status":"False","reason":"CleanedUp"}]}`),
	}, ",")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path.Base(r.URL.Path) {
		case "nodes":
			fmt.Fprint(w, `{"items":[{"metadata":{"name":"n3"},"status":{"conditions":[{"type":"Ready","status":"True"}]}}]}`)
		case v1alpha1.Resource:
			fmt.Fprintf(w, `{"items":[%s]}`, all)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	if names, away, err := NodesWithAgent(t.Context(), &rest.Config{Host: s.URL}); err != nil || strings.Join(names, " ") != "n3" || strings.Join(away, " ") != "n1" {
		t.Errorf("got %q, away %q, %v", names, away, err)
	}
}

func TestSnapshotReadsAllPagesWithOwners(t *testing.T) {
	cfg := serve(t, []string{node1, strings.ReplaceAll(node1, "1\"", "2\""), strings.ReplaceAll(node1, "1\"", "3\"")},
		[]string{agentObject("n1", "u1"), agentObject("n2", "other") + "," + agentObject("n4", "u4")})
	c, err := Snapshot(t.Context(), cfg)
	if err != nil || len(c.Nodes) != 4 {
		t.Fatalf("%v: got %+v, want no error, len(Nodes) 4", err, c)
	}
	want := map[string]view.Origin{"n1": view.Whole, "n2": view.OtherOwner, "n3": view.NoAgent, "n4": view.NoNode}
	for _, n := range c.Nodes {
		if n.Origin != want[n.Name] || (n.Agent != nil) != (n.Name == "n1") {
			t.Errorf("%s: got %s, %+v, want %s", n.Name, n.Origin, n.Agent, want[n.Name])
		}
	}
	n := c.Nodes[0]
	if n.Kubelet != view.No || n.Reported.Ready != view.Yes || n.Reported.Message != "a note" || n.Reported.Peers != 3 || n.Reported.Unresponsive.Count != 12 ||
		n.Reported.KeyRequested != 2 || !n.Agent.Gathers || len(n.Addrs) != 1 || len(n.PodCIDRs) != 1 {
		t.Errorf("got %+v", n)
	}
}

func TestSnapshotExplainsListErrors(t *testing.T) {
	for name, c := range map[string]struct {
		nodes, agents string
		want          error
	}{
		"no CRD":          {node1, "404", ErrNoDefinition},
		"no rights":       {"403", "", ErrForbidden},
		"bad credentials": {node1, "401", ErrUnauthorized},
	} {
		if _, err := Snapshot(t.Context(), serve(t, []string{c.nodes}, []string{c.agents})); !errors.Is(err, c.want) {
			t.Errorf("%s: got error %v, want %v", name, err, c.want)
		}
	}
	if _, err := Snapshot(t.Context(), serve(t, []string{`{"metadata":5}`}, []string{""})); err == nil {
		t.Error("accepted an object that is no node")
	}
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if _, err := Snapshot(ctx, serve(t, []string{node1}, []string{""})); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestSnapshotHasRopewalkPeers(t *testing.T) {
	c, err := Snapshot(t.Context(), serve(t, []string{node1}, []string{agentObject("n1", "u1")}))
	want := view.Peer{Name: "laptop", Key: "k", AllowedIPs: []string{"10.9.0.2/32"}, Nodes: "a=,zone=b", Accepted: view.No, Message: "taken"}
	if diff := cmp.Diff([]view.Peer{want}, c.Peers); err != nil || diff != "" {
		t.Errorf("-want +got\n%s%v", diff, err)
	}
}

func TestSnapshotNeedsNoRightToListRopewalkPeers(t *testing.T) {
	for code, known := range map[int]bool{http.StatusForbidden: false, http.StatusNotFound: true} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if path.Base(r.URL.Path) == v1alpha1.PeerResource {
				http.Error(w, "no", code)
				return
			}
			fmt.Fprint(w, `{"items":[]}`)
		}))
		t.Cleanup(s.Close)
		c, err := Snapshot(t.Context(), &rest.Config{Host: s.URL})
		if err != nil || len(c.Peers) > 0 || (c.Peers != nil) != known {
			t.Errorf("answer %d: got %v, %v", code, c.Peers, err)
		}
	}
}
