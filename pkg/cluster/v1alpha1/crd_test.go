// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/ropewalk/ropewalk/test/expect"
)

// openAPI is what these tests read of an OpenAPI v3 schema.
type openAPI struct {
	Type       string
	Properties map[string]openAPI
	Items      *openAPI
}

type column struct{ Name, JSONPath string }

type version struct {
	AdditionalPrinterColumns []column
	Schema                   struct{ OpenAPIV3Schema openAPI }
}

// kinds has the Go type and the source file of each resource.
var kinds = map[string]struct {
	typ    reflect.Type
	source string
}{
	Resource:             {reflect.TypeFor[RopewalkNode](), "node.go"},
	AnnouncementResource: {reflect.TypeFor[RopewalkAnnouncement](), "announcement.go"},
	PeerResource:         {reflect.TypeFor[RopewalkPeer](), "peer.go"},
	MeshResource:         {reflect.TypeFor[RopewalkMesh](), "mesh.go"},
}

// readCRD returns the only version of a resource's CRD.
func readCRD(t *testing.T, resource string) version {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/crd/ropewalk.io_" + resource + ".yaml")
	expect.NoError(t, err)
	var crd struct{ Spec struct{ Versions []version } }
	expect.NoError(t, yaml.Unmarshal(text, &crd))
	if len(crd.Spec.Versions) != 1 {
		t.Fatalf("%d versions", len(crd.Spec.Versions))
	}
	return crd.Spec.Versions[0]
}

// TestCRDMatchesGoTypes fails if the CRD was not regenerated. test/kube tests how an API server applies it.
func TestCRDMatchesGoTypes(t *testing.T) {
	for resource, kind := range kinds {
		want, got := map[string]string{}, map[string]string{}
		typesOf(want, "", kind.typ)
		typesOfSchema(got, "", readCRD(t, resource).Schema.OpenAPIV3Schema)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the CRD of %s differs from the Go types (-Go +CRD): run make generate\n%s", resource, diff)
		}
	}
}

// typesOf adds the OpenAPI types of a Go type and of its fields, by path.
func typesOf(to map[string]string, path string, typ reflect.Type) {
	switch {
	case typ == reflect.TypeFor[metav1.Time]():
		to[path] = "string"
	case typ == reflect.TypeFor[metav1.ObjectMeta](), typ.Kind() == reflect.Map:
		to[path] = "object"
	case typ.Kind() == reflect.Pointer:
		typesOf(to, path, typ.Elem())
	case typ.Kind() == reflect.Slice:
		to[path] = "array"
		typesOf(to, path+"[]", typ.Elem())
	case typ.Kind() == reflect.Struct:
		to[path] = "object"
		for field := range typ.Fields() {
			name, option, _ := strings.Cut(field.Tag.Get("json"), ",")
			if option == "inline" {
				typesOf(to, path, field.Type)
			} else {
				typesOf(to, path+"."+name, field.Type)
			}
		}
	default:
		to[path] = map[reflect.Kind]string{
			reflect.String: "string", reflect.Bool: "boolean", reflect.Int32: "integer", reflect.Int64: "integer",
		}[typ.Kind()]
	}
}

// typesOfSchema is typesOf for a schema.
func typesOfSchema(to map[string]string, path string, s openAPI) {
	to[path] = s.Type
	for name, property := range s.Properties {
		typesOfSchema(to, path+"."+name, property)
	}
	if s.Items != nil {
		typesOfSchema(to, path+"[]", *s.Items)
	}
}

func TestCRDHasColumnsOfMarkers(t *testing.T) {
	for resource, kind := range kinds {
		text, err := os.ReadFile(kind.source)
		expect.NoError(t, err)
		var want []column
		for _, m := range regexp.MustCompile("printcolumn:name=\"([^\"]+)\".*JSONPath=`([^`]+)`").FindAllStringSubmatch(string(text), -1) {
			want = append(want, column{m[1], m[2]})
		}
		if diff := cmp.Diff(want, readCRD(t, resource).AdditionalPrinterColumns); diff != "" || want == nil {
			t.Errorf("the columns of %s differ (-markers +CRD): run make generate\n%s", resource, diff)
		}
	}
}
