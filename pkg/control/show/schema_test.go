// SPDX-License-Identifier: Apache-2.0

package show

import (
	"os"
	"testing"

	"github.com/ropewalk/ropewalk/test/schema"
)

// TestSchemaMatchesGoldenDocuments validates the files that TestJSONMatchesGoldenFiles compares with the output.
func TestSchemaMatchesGoldenDocuments(t *testing.T) {
	var outputs []string
	for _, path := range []string{"testdata/json.golden", "testdata/json-lanes.golden"} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		outputs = append(outputs, string(b))
	}
	schema.Check(t, "../../../docs/schemas", "InterfaceList", document{}, outputs...)
}
