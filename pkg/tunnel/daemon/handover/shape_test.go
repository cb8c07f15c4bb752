// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/test/golden"
)

// TestStateFormatMatchesItsVersion guards the format: daemons of all releases with one Version must understand each other. A new member
// needs a new Version.
func TestStateFormatMatchesItsVersion(t *testing.T) {
	got := fmt.Sprintf("version %d\n%s", Version, shape("", reflect.TypeFor[State]())+shape("device.", reflect.TypeFor[device.State]()))
	golden.Check(t, "testdata/shape.golden", got)
}

// shape returns a line for each member of a type.
func shape(path string, of reflect.Type) string {
	var b strings.Builder
	for f := range of.Fields() {
		name := cmp.Or(f.Tag.Get("json"), f.Name)
		if f.Anonymous && name == f.Name { // JSON has its members
			b.WriteString(shape(path, f.Type))
			continue
		}
		if !f.IsExported() || name == "-" {
			continue
		}
		fmt.Fprintf(&b, "%s%s %s\n", path, name, f.Type)
		if inner := element(f.Type); inner.Kind() == reflect.Struct && !hasText(inner) {
			b.WriteString(shape(path+name+".", inner))
		}
	}
	return b.String()
}

func element(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// hasText reports whether a type has its own JSON or text encoding.
func hasText(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Marshaler]()) || p.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}
