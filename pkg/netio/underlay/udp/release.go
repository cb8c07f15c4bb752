// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"strings"

	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
)

// groUsable reports whether UDP_GRO is usable on a kernel of this release (uname -r). It is not before 5.12, although
// the option can be set (wireguard-go commit c92064f uses the same limit). This cannot be probed, so the release
// decides. An unreadable release counts as new.
func groUsable(release string) bool {
	r, ok := kernel.Parse(release)
	return !ok || !r.Before(5, 12)
}

// selectionReplaceable reports whether a kernel (uname -r, uname -v) can replace or remove a
// classic reuseport program while datagrams arrive. Before commit 18fc650ccd7f the kernel frees
// the old program while other CPUs run it (CVE-2026-52910). A peer's hello suffices to trigger a
// replacement. This cannot be probed, so the release decides, by the CVE's record. Releases that
// are unreadable, ended without the fix, or use a distribution's own numbering count as
// vulnerable. Attaching the first program of a group, and closing its last sockets, were always
// safe.
func selectionReplaceable(release, version string) bool {
	candidate := isReleaseCandidate(release)
	release = kernel.Upstream(release, version)
	r, ok := kernel.Parse(release)
	if !ok || candidate || isReleaseCandidate(release) {
		return false
	}
	if !r.Before(7, 1) {
		return true
	}
	first, known := map[[2]int]int{ // first patch level with the fix, for each maintained series
		{5, 10}: 259, {5, 15}: 210, {6, 1}: 176, {6, 6}: 143, {6, 12}: 94, {6, 18}: 36, {7, 0}: 13,
	}[[2]int{r.Major, r.Minor}]
	return known && r.Patch >= first
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
