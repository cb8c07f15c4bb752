// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"strings"
	"testing"
)

func TestStatusShowsConfigOfNodes(t *testing.T) {
	c := cluster(3)
	c.Nodes[1].Reported.Config = FollowedConfig{Name: "storage", State: "Refused"}
	c.Nodes[2].Reported.Config = FollowedConfig{Name: "edge", State: "Applied"}
	m := Build(c)
	var text, document bytes.Buffer
	if err := m.WriteText(&text, Style{}); err != nil {
		t.Fatal(err)
	}
	if err := m.WriteJSON(&document, StatusDocument, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CONFIG\n", "yes    -\n", "yes    storage (refused)\n", "yes    edge\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("without %q:\n%s", want, &text)
		}
	}
	if n := strings.Count(document.String(), `"state": "Refused"`); n != 1 {
		t.Errorf("the JSON has the state %d times", n)
	}
}
