// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/device"
	"github.com/ropewalk/ropewalk/test/golden"
)

// TestWhatIsHandedOverIsThatOfItsVersion: daemons of one Version must understand each other, of whatever release they are. What is new
// needs another Version, unless it is left out while it says nothing (omitempty).
func TestWhatIsHandedOverIsThatOfItsVersion(t *testing.T) {
	got := fmt.Sprintf("version %d\n%s", Version, shape("", reflect.TypeFor[handoff]())+shape("device.", reflect.TypeFor[device.State]()))
	golden.Check(t, "testdata/shape.golden", got)
}

// shape is a line for each member of a type. Counters are left out: those may differ.
func shape(path string, of reflect.Type) string {
	var b strings.Builder
	for f := range of.Fields() {
		name := cmp.Or(f.Tag.Get("json"), f.Name)
		if !f.IsExported() || name == "stats" || name == "handshakes" {
			continue
		}
		fmt.Fprintf(&b, "%s%s %s\n", path, name, f.Type)
		if inner := element(f.Type); inner.Kind() == reflect.Struct && !hasText(inner) {
			b.WriteString(shape(path+strings.TrimSuffix(name, ",omitempty")+".", inner))
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

// hasText reports whether a type writes itself.
func hasText(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Marshaler]()) || p.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}
