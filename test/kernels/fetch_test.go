// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMissingKernelIsNamedInError(t *testing.T) {
	f := &fetcher{cache: t.TempDir(), logf: t.Logf}
	for _, s := range slices.DeleteFunc(slices.Clone(matrix), series.isPinned) {
		_, err := f.fetchOne(t.Context(), s, []string{"linux-image-4.19.0-1-cloud-amd64"}, nil)
		if err == nil {
			t.Fatalf("kernel %s was fetched without a package", s.name)
		}
		for _, want := range append([]string{"kernel " + s.name, s.packages[0], "KERNELS="}, s.suites...) {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q does not contain %q", err, want)
			}
		}
	}
	if _, err := f.fetchOne(t.Context(), matrix[0], nil, errors.New("no mirror")); err == nil || !strings.Contains(err.Error(), "no mirror") {
		t.Errorf("without package lists: got error %v, want an error", err)
	}
	if left, err := os.ReadDir(f.cache); err != nil || len(left) != 0 {
		t.Errorf("the cache contains %v, %v; want it empty", left, err)
	}
}

func TestCachedKernelsNeedNoMirror(t *testing.T) {
	f := &fetcher{cache: t.TempDir(), logf: t.Logf}
	touch(t, filepath.Join(f.cache, "6.1", "boot/vmlinuz-6.1.0-50-cloud-amd64"))
	touch(t, filepath.Join(f.cache, "6.1", "lib/modules/6.1.0-50-cloud-amd64/kernel/veth.ko"))
	t.Setenv("PATH", "") // no apt
	mirrored := slices.DeleteFunc(slices.Clone(matrix), series.isPinned)
	got, failures := f.Fetch(t.Context(), mirrored[1:2])
	if len(failures) != 0 || got["6.1"] == nil || got["6.1"].release != "6.1.0-50-cloud-amd64" {
		t.Errorf("got %v, %v, want non-nil, length 0", got["6.1"], failures)
	}
}
