// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"strconv"
	"strings"
)

// groUsable reports whether UDP_GRO is usable on a kernel of this release (uname -r). It is not before 5.12, although
// the option can be set (wireguard-go commit c92064f uses the same limit). This cannot be probed, so the release
// decides. An unreadable release counts as new.
func groUsable(release string) bool {
	major, minor, ok := parseRelease(release)
	return !ok || major > 5 || major == 5 && minor >= 12
}

// parseRelease reads the first two numbers of "6.12.3-amd64" or "7.2-rc1".
func parseRelease(release string) (major, minor int, ok bool) {
	first, rest, found := strings.Cut(release, ".")
	if !found {
		return 0, 0, false
	}
	digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
	major, err := strconv.Atoi(first)
	if err != nil || first[0] < '0' { // a sign
		return 0, 0, false
	}
	minor, err = strconv.Atoi(rest[:digits])
	return major, minor, err == nil
}

// selectionReplaceable reports whether a kernel (uname -r, uname -v) can replace or remove a classic reuseport program
// while datagrams arrive. Before commit 18fc650ccd7f the kernel frees the old program while other CPUs run it
// (CVE-2026-52910), and a peer's hello suffices to trigger a replacement. This cannot be probed, so the release
// decides, by the CVE's record. Releases that are unreadable, ended without the fix, or use a distribution's own
// numbering count as vulnerable. Attaching the first program of a group, and closing its last sockets, were always
// safe.
func selectionReplaceable(release, version string) bool {
	candidate := isReleaseCandidate(release)
	// Debian's 5.10.0-46-amd64 has the upstream release in its version: "#1 SMP Debian 5.10.259-1 (2026-07-01)".
	// Raspberry Pi OS puts an epoch before it: "#1 SMP PREEMPT Debian 1:6.12.94-1+rpt1 (2026-07-01)".
	if _, debian, found := strings.Cut(version, " Debian "); found {
		release, _, _ = strings.Cut(strings.TrimPrefix(debian, "1:"), "-")
	}
	major, minor, ok := parseRelease(release)
	if !ok || candidate || isReleaseCandidate(release) {
		return false
	}
	if major > 7 || major == 7 && minor >= 1 {
		return true
	}
	first, known := map[[2]int]int{ // first patch level with the fix, for each maintained series
		{5, 10}: 259, {5, 15}: 210, {6, 1}: 176, {6, 6}: 143, {6, 12}: 94, {6, 18}: 36, {7, 0}: 13,
	}[[2]int{major, minor}]
	patch, numbered := parsePatch(release)
	return known && numbered && patch >= first
}

// isReleaseCandidate reports whether a kernel is a release candidate, in any notation: "7.1-rc1", Debian's "7.1~rc1",
// Fedora's "7.1.0-0.rc1.20260501git", Ubuntu's "7.1.0-070100rc1-generic". An "-arch1" is not one.
func isReleaseCandidate(release string) bool {
	for _, rest := range strings.Split(release, "rc")[1:] {
		if rest != "" && rest[0] >= '0' && rest[0] <= '9' {
			return true
		}
	}
	return false
}

// parsePatch reads the third number of "6.12.94-amd64".
func parsePatch(release string) (patch int, ok bool) {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 3 {
		return 0, false
	}
	digits := len(parts[2]) - len(strings.TrimLeft(parts[2], "0123456789"))
	patch, err := strconv.Atoi(parts[2][:digits])
	return patch, err == nil
}
