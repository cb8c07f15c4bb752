// SPDX-License-Identifier: Apache-2.0

package view

import (
	"os"
	"testing"

	"github.com/ropewalk/ropewalk/test/schema"
)

// TestSchemaMatchesGoldenDocuments validates files that other tests compare with the output.
func TestSchemaMatchesGoldenDocuments(t *testing.T) {
	var documents []string
	for _, path := range []string{"testdata/status.json", "testdata/check.json"} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, string(b))
	}
	kinds := []Document{StatusDocument, CheckDocument}
	schema.CheckKinds(t, "../../../../docs/schemas", "Mesh", kinds, documentJSON{}, documents...)
}
