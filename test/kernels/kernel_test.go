// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNewestReleaseIsPickedByNumber(t *testing.T) {
	names := []string{
		"linux-image-5.10.0-9-cloud-amd64", "linux-image-5.10.0-46-cloud-amd64", "linux-image-5.10.0-46-cloud-amd64-dbg",
		"linux-image-5.10.0-47-cloud-amd64-unsigned", "linux-image-5.10.0-48-amd64",
		"linux-image-6.1.0-0.deb11.52-cloud-amd64", "linux-image-6.1.0-50-cloud-amd64", "linux-image-6.1-cloud-amd64",
		"linux-image-6.12.94+deb13-cloud-amd64", "linux-image-6.12.107+deb13-cloud-amd64",
		"linux-binary-7.2.9+deb14-cloud-amd64", "linux-modules-7.2.9+deb14-cloud-amd64",
		"linux-binary-7.2.13+deb14-cloud-amd64",
	}
	want := map[string]string{
		"5.10": "5.10.0-46-cloud-amd64", "6.1": "6.1.0-50-cloud-amd64", "6.12": "6.12.107+deb13-cloud-amd64",
		"7.2": "7.2.9+deb14-cloud-amd64", // 7.2.13 has no linux-modules package
	}
	for _, s := range slices.DeleteFunc(slices.Clone(matrix), series.isPinned) {
		if got, ok := s.newest(names); !ok || got != want[s.name] {
			t.Errorf("newest %s = %q, %v; want %q", s.name, got, ok, want[s.name])
		}
		if got, ok := s.newest(nil); ok {
			t.Errorf("newest %s of nothing = %q", s.name, got)
		}
	}
}

func TestKernelsAreChosenBySeries(t *testing.T) {
	for _, tc := range []struct {
		list string
		want []string
		bad  bool
	}{
		{list: "", want: []string{"5.10", "5.15", "6.1", "6.8", "6.12", "7.2"}},
		{list: " 6.12, 5.10 ", want: []string{"6.12", "5.10"}},
		{list: "6.2", bad: true},
	} {
		got, err := selectSeries(tc.list)
		if (err != nil) != tc.bad {
			t.Errorf("selectSeries(%q): %v", tc.list, err)
		}
		if d := cmp.Diff(tc.want, seriesNames(got)); d != "" {
			t.Errorf("selectSeries(%q) (-want +got):\n%s", tc.list, d)
		}
	}
}

func TestUnpackedKernelIsFoundInBothLayouts(t *testing.T) {
	for _, files := range [][]string{
		{"boot/vmlinuz-5.10.0-46-cloud-amd64", "lib/modules/5.10.0-46-cloud-amd64/kernel/veth.ko"},
		{"usr/lib/modules/7.2.13+deb14-cloud-amd64/vmlinuz", "usr/lib/modules/7.2.13+deb14-cloud-amd64/kernel/veth.ko.xz"},
	} {
		dir := t.TempDir()
		for _, f := range files {
			touch(t, filepath.Join(dir, f))
		}
		k, err := openUnpacked(matrix[0], dir)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains([]string{"5.10.0-46-cloud-amd64", "7.2.13+deb14-cloud-amd64"}, k.release) || k.image != filepath.Join(dir, files[0]) {
			t.Errorf("found %+v", k)
		}
	}
	if _, err := openUnpacked(matrix[0], t.TempDir()); err == nil {
		t.Error("no error for an empty directory")
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}
