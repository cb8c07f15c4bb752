// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"flag"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

var dist = flag.String("dist", "", "directory with the artifacts of `make release`; if empty, the tests that need them are skipped")

// artifact returns the only file of the release whose name matches.
func artifact(t *testing.T, pattern string) string {
	t.Helper()
	if *dist == "" {
		t.Skip("needs the artifacts of `make release`: run make test-package")
	}
	found, err := filepath.Glob(filepath.Join(*dist, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("files matching %s in %s: %q, %v; want one", pattern, *dist, found, err)
	}
	return found[0]
}

// TestReleasedChartsRenderAsSources loads the archives as `helm install` does. They differ from the sources in their versions only.
func TestReleasedChartsRenderAsSources(t *testing.T) {
	for _, chart := range []string{spreadChart, meshChart, crdsChart} {
		archive := artifact(t, filepath.Base(chart)+"-*.tgz")
		released, err := loader.Load(archive)
		if err != nil {
			t.Fatal(err)
		}
		if err := released.Validate(); err != nil {
			t.Errorf("%s: %v", archive, err)
		}
		if want := released.Name() + "-" + released.Metadata.Version + ".tgz"; filepath.Base(archive) != want {
			t.Errorf("%s: the name differs from %s", archive, want)
		}
		source, err := loader.Load(chartPath(chart))
		if err != nil {
			t.Fatal(err)
		}
		replaced := strings.NewReplacer(source.AppVersion(), released.AppVersion())
		values := Values{}
		if chart != crdsChart {
			values = withImage(values)
		}
		if got, want := rendered(t, archive, values), replaced.Replace(rendered(t, chartPath(chart), values)); got != want {
			t.Errorf("%s renders\n%s\nthe sources\n%s", archive, got, want)
		}
	}
}

func rendered(t *testing.T, chart string, values Values) string {
	t.Helper()
	manifests, err := Render(chart, spread(), values)
	if err != nil {
		t.Fatal(err)
	}
	return stream(manifests)
}

// TestReleasedBasesMatchReleasedChart builds kustomize's bases in a directory that has nothing else.
func TestReleasedBasesMatchReleasedChart(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("tar", "-xzf", artifact(t, "ropewalk-kustomize-*.tar.gz"), "--strip-components=1", "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, base := range []string{"spread", "mesh", "cleanup-spread", "cleanup-mesh"} {
		mode, isCleanup := strings.CutPrefix(base, "cleanup-")
		of := spread()
		if mode == "mesh" {
			of = mesh()
		}
		manifests, err := Render(artifact(t, "ropewalk-"+mode+"-*.tgz"), of, withImage(Values{"cleanup": Values{"enabled": isCleanup}}))
		if err != nil {
			t.Fatal(err)
		}
		got, want := byName(t, build(t, filesys.MakeFsOnDisk(), filepath.Join(dir, "kustomize", base))), byName(t, stream(manifests))
		delete(got, "Namespace "+namespace)
		for name := range want {
			if got[name] != want[name] {
				t.Errorf("%s: %s:\n%s\nthe chart has:\n%s", base, name, got[name], want[name])
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d objects, the chart has %d", base, len(got), len(want))
		}
	}
	got := slices.Sorted(maps.Keys(byName(t, build(t, filesys.MakeFsOnDisk(), filepath.Join(dir, "crd")))))
	want := slices.Sorted(maps.Keys(byName(t, rendered(t, artifact(t, "ropewalk-crds-*.tgz"), nil))))
	if !slices.Equal(got, want) || len(got) == 0 {
		t.Errorf("crd has %q, the chart %q", got, want)
	}
}
