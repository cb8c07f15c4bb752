// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestSchemaRejectsOtherDocuments(t *testing.T) {
	type inner struct {
		N uint8 `json:"n"`
	}
	text, err := json.Marshal(of(reflect.TypeFor[struct {
		Name string   `json:"name"`
		List []inner  `json:"list"`
		Some *float64 `json:"some,omitempty"`
	}]()))
	if err != nil {
		t.Fatal(err)
	}
	for document, valid := range map[string]bool{
		`{"name":"a","list":[{"n":1}],"new":2}`: true,
		`{"name":"a","list":null,"some":1.5}`:   true,
		`{"list":null}`:                         false,
		`{"name":1,"list":null}`:                false,
		`{"name":"a","list":[{"n":-1}]}`:        false,
		`{"name":"a","list":[{}]}`:              false,
	} {
		if err := Validate(text, document); (err == nil) != valid {
			t.Errorf("%s: got error %v, want valid %v", document, err, valid)
		}
	}
}
