// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"strings"
	"testing"
)

func TestReleasesAreParsed(t *testing.T) {
	for text, want := range map[string]Release{
		"6.12.3-amd64": {6, 12, 3}, "7.2-rc1": {7, 2, -1}, "5.12": {5, 12, -1}, "6.12.118+deb13-cloud-amd64": {6, 12, 118}, "10.0.1": {10, 0, 1},
		"7.1~rc2": {7, 1, -1}, "6.12.": {6, 12, -1}, "6.12.x": {6, 12, -1}, "6.12.99999999999999999999": {6, 12, -1},
	} {
		if got, ok := Parse(text); !ok || got != want {
			t.Errorf("%q: got %v, %v, want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "6", "5.", "x.y", "-1.2", "+6.1", "6.-1", ".5", "99999999999999999999.1", "6.99999999999999999999"} {
		if got, ok := Parse(text); ok {
			t.Errorf("%q: got %v", text, got)
		}
	}
}

func TestDebianNamesUpstreamReleaseInVersion(t *testing.T) {
	for _, c := range []struct{ release, version, want string }{
		{"6.12.3", "#1 SMP", "6.12.3"},
		{"5.10.0-46-amd64", "#1 SMP Debian 5.10.259-1 (2026-07-01)", "5.10.259"},
		{"6.12.0-rpi", "#1 SMP PREEMPT Debian 1:6.12.94-1+rpt1 (2026-07-01)", "6.12.94"},
		{"7.1-amd64", "#1 SMP Debian 7.1~rc2-1~exp1 (2026-05-10)", "7.1~rc2"},
		{"5.10.259", "#1 SMP Debian ", ""},
	} {
		if got := Upstream(c.release, c.version); got != c.want {
			t.Errorf("%q %q: got %q, want %q", c.release, c.version, got, c.want)
		}
	}
}

func TestReleasesAreOrdered(t *testing.T) {
	for _, c := range []struct {
		r    Release
		want bool
	}{{Release{5, 19, 3}, true}, {Release{6, 0, 0}, true}, {Release{6, 1, 0}, false}, {Release{6, 2, -1}, false}, {Release{7, 0, 0}, false}} {
		if got := c.r.Before(6, 1); got != c.want {
			t.Errorf("%v: got %v", c.r, got)
		}
	}
}

func TestRunningKernelHasRelease(t *testing.T) {
	release, version := Uname()
	if r, ok := Parse(release); !ok || r.Major < 5 || strings.ContainsRune(release+version, 0) {
		t.Errorf("release %q, version %q", release, version)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("6.18.44-v1", "")
	f.Add("5.", "#1 SMP Debian 1:6.12.94-1+rpt1")
	f.Fuzz(func(t *testing.T, release, version string) {
		if r, ok := Parse(Upstream(release, version)); ok && (r.Major < 0 || r.Minor < 0 || r.Patch < -1) {
			t.Fatalf("got %+v", r)
		}
	})
}
