// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCRDMatchesGoTypes fails if the CRD was not regenerated: it must have each field's JSON name and each column. test/kube
// tests how an API server applies it.
func TestCRDMatchesGoTypes(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/crd/ropewalk.io_ropewalknodes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	fields := 0
	for line := range strings.Lines(sources(t)) {
		if _, tag, ok := strings.Cut(line, "`json:\""); ok {
			name, _, _ := strings.Cut(strings.SplitN(tag, "\"", 2)[0], ",")
			if name == "" {
				continue
			}
			fields++
			if !strings.Contains(string(text), name+":") {
				t.Errorf("the CRD lacks the field %s: run go generate", name)
			}
		}
		if _, column, ok := strings.Cut(line, "printcolumn:name=\""); ok {
			if name, _, _ := strings.Cut(column, "\""); !strings.Contains(string(text), "name: "+name+"\n") {
				t.Errorf("the CRD lacks the column %s: run go generate", name)
			}
		}
	}
	if fields < 20 {
		t.Errorf("only %d fields were found", fields)
	}
}

// sources is all of the package that is neither generated nor a test.
func sources(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		if strings.HasPrefix(f, "zz_") || strings.HasSuffix(f, "_test.go") {
			continue
		}
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
