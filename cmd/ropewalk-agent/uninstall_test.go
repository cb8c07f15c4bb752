// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestUninstallCheckFailsWhileNodesHaveAgents(t *testing.T) {
	const withAgent, without = `{"metadata":{"name":"n%d"},"spec":{"mode":"mesh"}}`, `{"metadata":{"name":"n%d"},"spec":{}}`
	for _, c := range []struct {
		what   string
		item   string
		nodes  int
		status int
		want   string // in the error; empty: none
		ready  string
	}{
		{"agents", withAgent, 2, http.StatusOK, "2 nodes still have an agent (n0, n1). Clean them up first: helm upgrade", "True"},
		{"many agents", withAgent, 12, http.StatusOK, "n9 and 2 more)", "True"},
		{"cleaned nodes", without, 2, http.StatusOK, "", "True"},
		{"dead nodes", withAgent, 2, http.StatusOK, "", "Unknown"},
		{"no CRD", "", 0, http.StatusNotFound, "", ""},
		{"no rights", "", 0, http.StatusForbidden, "forbidden", ""},
	} {
		var items, nodes []string
		for i := range c.nodes {
			items = append(items, fmt.Sprintf(c.item, i))
			nodes = append(nodes, fmt.Sprintf(`{"metadata":{"name":"n%d"},"status":{"conditions":[{"type":"Ready","status":%q}]}}`, i, c.ready))
		}
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if strings.HasSuffix(r.URL.Path, "/nodes") {
				fmt.Fprintf(w, `{"metadata":{},"items":[%s]}`, strings.Join(nodes, ","))
				return
			}
			w.WriteHeader(c.status)
			fmt.Fprintf(w, `{"metadata":{},"items":[%s]}`, strings.Join(items, ","))
		}))
		var out bytes.Buffer
		err := checkUninstall(t.Context(), &out, apiOptions{url: s.URL})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.what, err, c.want)
		}
		if named := strings.Contains(out.String(), "2 nodes that are not Ready keep what the agent left (n0, n1)"); named != (c.ready == "Unknown") {
			t.Errorf("%s: got %s", c.what, &out)
		}
		s.Close()
	}
}
