// SPDX-License-Identifier: Apache-2.0

// Package schema derives the JSON schemas in docs/schemas from the types of the documents that commands print, and validates real documents
// with them. `go test ./cmd/ropewalk ./pkg/control/show ./pkg/cluster/mesh/view -run Schema -update` rewrites the schemas.
package schema

import (
	"bytes"
	"encoding"
	"encoding/json"
	"maps"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/ropewalk/ropewalk/test/golden"
)

// Check compares the schema of a document's type with the schema of its kind in dir, and validates
// JSON documents of this kind.
func Check(t *testing.T, dir, kind string, document any, outputs ...string) {
	t.Helper()
	check(t, dir, kind, object{"const": kind}, document, outputs)
}

// CheckKinds is Check for kinds of documents with one type: their common schema has the name title.
func CheckKinds[K ~string](t *testing.T, dir, title string, kinds []K, document any, outputs ...string) {
	t.Helper()
	check(t, dir, title, object{"enum": kinds}, document, outputs)
}

func check(t *testing.T, dir, title string, kind object, document any, outputs []string) {
	t.Helper()
	s := of(reflect.TypeOf(document))
	properties := s["properties"].(object)
	properties["apiVersion"], properties["kind"] = object{"const": "ropewalk/v1"}, kind
	s["$schema"], s["title"] = "https://json-schema.org/draft/2020-12/schema", title
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, filepath.Join(dir, title+".json"), append(text, '\n'))
	for _, output := range outputs {
		if err := Validate(text, output); err != nil {
			t.Errorf("%v in %s", err, output)
		}
	}
}

// Validate validates a JSON document with a schema.
func Validate(schema []byte, output string) error {
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return err
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("document.json", parsed); err != nil {
		return err
	}
	compiled, err := compiler.Compile("document.json")
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(output))
	if err != nil {
		return err
	}
	return compiled.Validate(value)
}

type object = map[string]any

var (
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
)

// of returns the schema of a type as encoding/json encodes it.
func of(t reflect.Type) object {
	switch {
	case t.Implements(jsonMarshaler) && t.Kind() != reflect.Pointer && !t.Implements(textMarshaler):
		return object{}
	case t.Implements(textMarshaler) && t.Kind() != reflect.Pointer:
		return object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer", "minimum": 0}
	case reflect.Pointer:
		return orNull(of(t.Elem()))
	case reflect.Slice:
		return object{"type": []string{"array", "null"}, "items": of(t.Elem())}
	case reflect.Array:
		return object{"type": "array", "items": of(t.Elem())}
	case reflect.Map:
		return object{"type": []string{"object", "null"}, "additionalProperties": of(t.Elem())}
	case reflect.Struct:
		return ofStruct(t)
	}
	return object{} // an interface
}

// orNull adds null to a schema.
func orNull(s object) object {
	if kind, ok := s["type"].(string); ok {
		s = maps.Clone(s)
		s["type"] = []string{kind, "null"}
	}
	return s
}

// ofStruct returns the schema of a struct. Members may be added within a version, so it permits others.
func ofStruct(t reflect.Type) object {
	properties, required := object{}, []string{}
	addFields(t, properties, &required, true)
	return object{"type": "object", "properties": properties, "required": required}
}

// addFields adds the fields of a struct and of the structs that it embeds. Fields of an embedded
// pointer are optional.
func addFields(t reflect.Type, properties object, required *[]string, always bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		embedded := f.Type
		if embedded.Kind() == reflect.Pointer {
			embedded = embedded.Elem()
		}
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
			continue
		case f.Anonymous && name == "" && embedded.Kind() == reflect.Struct:
			addFields(embedded, properties, required, always && f.Type.Kind() != reflect.Pointer)
			continue
		case name == "":
			name = f.Name
		}
		properties[name] = of(f.Type)
		if always && !strings.Contains(options, "omit") {
			*required = append(*required, name)
		}
	}
}
