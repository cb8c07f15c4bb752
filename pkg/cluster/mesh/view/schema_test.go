// SPDX-License-Identifier: Apache-2.0

package view

import (
	"os"
	"testing"

	"github.com/ropewalk/ropewalk/test/schema"
)

// TestSchemasMatchGoldenDocuments validates files that other tests compare with the output.
func TestSchemasMatchGoldenDocuments(t *testing.T) {
	for kind, path := range map[Document]string{
		StatusDocument: "testdata/status.json", GraphDocument: "testdata/graph.json", CheckDocument: "testdata/check.json",
	} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		schema.Check(t, "../../../../docs/schemas", string(kind), documentJSON{}, string(b))
	}
}
