// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// The markers of a table, and one of another, which stays.
const (
	beginMarker = "<!-- bench-peers:begin -->"
	endMarker   = "<!-- bench-peers:end -->"
	other       = "<!-- bench-paths:begin -->\nother\n<!-- bench-paths:end -->\n"
)

func TestUpdateReplacesOnlyTextBetweenMarkers(t *testing.T) {
	const before, after = "# Title\n\n" + beginMarker + "\n", endMarker + "\n\nMore.\n" + other
	for _, tt := range []struct {
		name, document, want string
		err                  error
	}{
		{name: "an old table", document: before + "old\ntable\n" + after, want: before + "new\n" + after},
		{name: "nothing yet", document: before + after, want: before + "new\n" + after},
		{name: "no markers", document: "# Title\n", err: errMarkers},
		{name: "no end", document: before, err: errMarkers},
		{name: "no beginning", document: after, err: errMarkers},
		{name: "the wrong way round", document: endMarker + "\n" + beginMarker + "\n", err: errMarkers},
		{name: "two places", document: before + after + before + after, err: errMarkers},
		{name: "only another table", document: other, err: errMarkers},
	} {
		got, err := replaceBetween([]byte(tt.document), defaultTable, []byte("new\n\n"))
		if !errors.Is(err, tt.err) || string(got) != tt.want {
			t.Errorf("%s: %v\n%s", tt.name, err, got)
		}
	}
}

func TestDocumentWithoutMarkersStaysUnchanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "performance.md")
	if err := os.WriteFile(path, []byte("# Title\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := updateFile(path, defaultTable, []byte("table\n")); !errors.Is(err, errMarkers) {
		t.Errorf("got %v", err)
	}
	if got, _ := os.ReadFile(path); string(got) != "# Title\n" {
		t.Errorf("it is now %q", got)
	}
}

func TestUpdateWithoutTableOnlyChecksDocument(t *testing.T) {
	path := filepath.Join(t.TempDir(), "performance.md")
	const document = beginMarker + "\nold\n" + endMarker + "\n"
	if err := os.WriteFile(path, []byte(document), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		table []byte
		want  string
	}{{nil, document}, {[]byte("new"), beginMarker + "\nnew\n" + endMarker + "\n"}} {
		if err := updateFile(path, defaultTable, step.table); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(path); string(got) != step.want {
			t.Errorf("%q: it is now %q", step.table, got)
		}
	}
}
