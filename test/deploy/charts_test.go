// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// charts makes the charts as a release does, and returns their directories.
func charts(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("make", "-s", "charts", "CHARTS_DIR="+dir, "VERSION=v1.2.3", "SEMVER=1.2.3", "IMAGE_TAG=1.2.3")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make charts: %v\n%s", err, out)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(found) < 2 {
		t.Fatalf("got the charts %q, %v, want at least two", found, err)
	}
	return found
}

// parse reads YAML into value. Fields that stand there twice are an error.
func parse(t *testing.T, text string, value any) {
	t.Helper()
	converted, err := yaml.ToJSON([]byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if err := json.Unmarshal(converted, value); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
}

func readAbsolute(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestChartsDescribeThemselvesToArtifactHub(t *testing.T) {
	for _, dir := range charts(t) {
		var chart struct {
			Name, Version, AppVersion, Icon, Home string
			Maintainers                           []struct{ Name, URL string }
			Sources, Keywords                     []string
			Annotations                           map[string]string
		}
		parse(t, readAbsolute(t, filepath.Join(dir, "Chart.yaml")), &chart)
		name := filepath.Base(dir)
		if chart.Name != name || chart.Version != "1.2.3" || chart.AppVersion != "1.2.3" || chart.Home == "" || len(chart.Maintainers) != 1 || len(chart.Sources) == 0 {
			t.Errorf("%s: incomplete: %+v", name, chart)
		}
		if _, err := os.Stat(filepath.Join(root, "docs/images", filepath.Base(chart.Icon))); err != nil {
			t.Errorf("%s: the icon %s does not exist", name, chart.Icon)
		}
		if chart.Annotations["artifacthub.io/prerelease"] != "false" || !strings.Contains(chart.Annotations["artifacthub.io/changes"], "ropewalk 1.2.3") {
			t.Errorf("%s: the annotations are not of version 1.2.3: %v", name, chart.Annotations)
		}
		lists := []string{"artifacthub.io/changes", "artifacthub.io/links"}
		if name == "ropewalk-crds" {
			lists = append(lists, "artifacthub.io/crds")
		}
		for _, key := range lists {
			var entries []map[string]any
			if parse(t, chart.Annotations[key], &entries); len(entries) == 0 {
				t.Errorf("%s: %s has no entries", name, key)
			}
		}
		var described []struct{ Name string }
		parse(t, chart.Annotations["artifacthub.io/crds"], &described)
		for _, crd := range described {
			resource, _, _ := strings.Cut(crd.Name, ".")
			if _, err := os.Stat(filepath.Join(root, "deploy/crd/ropewalk.io_"+resource+".yaml")); err != nil {
				t.Errorf("%s describes %s: %v", name, crd.Name, err)
			}
		}
	}
}

// TestSchemasKnowEveryValue finds values that values.schema.json does not constrain, and typing errors that it would let pass.
func TestSchemasKnowEveryValue(t *testing.T) {
	for _, dir := range charts(t) {
		var schema, values map[string]any
		if err := json.NewDecoder(bytes.NewReader([]byte(readAbsolute(t, filepath.Join(dir, "values.schema.json"))))).Decode(&schema); err != nil {
			t.Fatal(err)
		}
		parse(t, readAbsolute(t, filepath.Join(dir, "values.yaml")), &values)
		known(t, filepath.Base(dir), schema, schema, values)
	}
}

// known checks that a schema of an object describes all values, and no others if it has properties.
func known(t *testing.T, path string, whole, schema, values map[string]any) {
	t.Helper()
	properties, _ := schema["properties"].(map[string]any)
	if properties != nil && schema["additionalProperties"] == nil && schema["$ref"] == nil {
		t.Errorf("%s: additionalProperties is not set, so that a misspelt key passes", path)
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		property, ok := properties[key].(map[string]any)
		if ref, isRef := property["$ref"].(string); isRef {
			property = whole
			for _, part := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
				property, _ = property[part].(map[string]any)
			}
		}
		if !ok && properties != nil || ok && len(property) == 0 {
			t.Errorf("%s.%s has no schema", path, key)
			continue
		}
		if nested, isObject := values[key].(map[string]any); isObject && property["properties"] != nil {
			known(t, path+"."+key, whole, property, nested)
		}
	}
}
