// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// series is a kernel series as Debian ships it, or one kernel of Ubuntu.
type series struct {
	name   string
	suites []string // Debian suites that have it
	// packages are the prefixes of the package names before the release. All of these packages make up one kernel.
	packages []string
	release  *regexp.Regexp
	// pinned are the packages of a kernel of Ubuntu instead, which not every machine can fetch. It runs only the slow steps: whether the
	// eBPF programs load and attach.
	pinned []pinnedPackage
}

// matrix is the list of tested series. Since 7.0 Debian ships the image and the modules in separate packages.
var matrix = []series{
	debian("5.10", releases(`5\.10\.[0-9]+-[0-9]+`), "bullseye", "bullseye-security"),
	{name: "5.15", pinned: jammy},
	debian("6.1", releases(`6\.1\.[0-9]+-[0-9]+`), "bookworm", "bookworm-security"),
	{name: "6.8", pinned: noble},
	debian("6.12", releases(`6\.12\.[0-9]+\+deb[0-9]+`), "trixie", "trixie-security"),
	{
		name: "7.2", suites: []string{"sid"}, packages: []string{"linux-binary-", "linux-modules-"},
		release: releases(`7\.2(\.[0-9]+)?\+deb[0-9]+`),
	},
}

// debian returns a series whose image and modules are in one package.
func debian(name string, release *regexp.Regexp, suites ...string) series {
	return series{name: name, suites: suites, packages: []string{"linux-image-"}, release: release}
}

// releases returns a pattern for releases of cloud kernels. They boot fastest and include WireGuard, tun, veth and netem.
func releases(version string) *regexp.Regexp {
	return regexp.MustCompile(`^` + version + `-cloud-amd64$`)
}

// selectSeries returns the series named in list, or all if list is empty.
func selectSeries(list string) ([]series, error) {
	if strings.TrimSpace(list) == "" {
		return matrix, nil
	}
	var out []series
	for name := range strings.FieldsSeq(strings.ReplaceAll(list, ",", " ")) {
		i := slices.IndexFunc(matrix, func(s series) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("KERNELS: unknown series %q, want one of %s", name, strings.Join(seriesNames(matrix), ", "))
		}
		out = append(out, matrix[i])
	}
	return out, nil
}

func seriesNames(list []series) []string {
	var names []string
	for _, s := range list {
		names = append(names, s.name)
	}
	return names
}

// newest returns the newest release for which names contains all packages of the series.
func (s series) newest(names []string) (string, bool) {
	have := map[string]int{}
	for _, name := range names {
		for _, prefix := range s.packages {
			if r, ok := strings.CutPrefix(name, prefix); ok && s.release.MatchString(r) {
				have[r]++
			}
		}
	}
	best := ""
	for r, n := range have {
		if n == len(s.packages) && (best == "" || compareReleases(r, best) > 0) {
			best = r
		}
	}
	return best, best != ""
}

// packageNames returns the packages that make up one release.
func (s series) packageNames(release string) []string {
	var names []string
	for _, prefix := range s.packages {
		names = append(names, prefix+release)
	}
	return names
}

var numbers = regexp.MustCompile(`[0-9]+`)

// compareReleases orders releases by the numbers in them: 5.10.0-9 comes before 5.10.0-46.
func compareReleases(a, b string) int {
	x, y := numbers.FindAllString(a, -1), numbers.FindAllString(b, -1)
	return slices.CompareFunc(x, y, func(s, t string) int {
		m, errM := strconv.Atoi(s)
		n, errN := strconv.Atoi(t)
		if errM != nil || errN != nil {
			return cmp.Compare(s, t)
		}
		return cmp.Compare(m, n)
	})
}

// unpacked is a kernel in the cache.
type unpacked struct {
	series  series
	release string
	image   string // bzImage
	modules string // lib/modules/RELEASE
}

// openUnpacked finds the image and the modules of a kernel whose packages were unpacked in dir.
func openUnpacked(s series, dir string) (*unpacked, error) {
	k := &unpacked{series: s}
	for _, pattern := range []string{"boot/vmlinuz-*", "lib/modules/*/vmlinuz", "usr/lib/modules/*/vmlinuz"} {
		if found, _ := filepath.Glob(filepath.Join(dir, pattern)); len(found) > 0 {
			k.image = found[0]
		}
	}
	for _, pattern := range []string{"lib/modules/*/kernel", "usr/lib/modules/*/kernel"} {
		if found, _ := filepath.Glob(filepath.Join(dir, pattern)); len(found) > 0 {
			k.modules = filepath.Dir(found[0])
		}
	}
	if k.image == "" || k.modules == "" {
		return nil, fmt.Errorf("kernel %s: no image or no modules in %s", s.name, dir)
	}
	k.release = filepath.Base(k.modules)
	return k, nil
}
