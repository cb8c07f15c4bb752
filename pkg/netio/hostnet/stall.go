// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"fmt"
	"regexp"

	"golang.org/x/sys/unix"
)

// stallRange is a range of stable kernel releases. The fix is in release last+1.
type stallRange struct{ major, minor, first, last int }

// stallRanges are the releases with CVE-2026-52945.
func stallRanges() []stallRange {
	return []stallRange{{5, 15, 186, 200}, {6, 1, 142, 163}, {6, 6, 94, 126}, {6, 12, 34, 73}}
}

// debianVersion finds the version of the upstream kernel in uname -v. On Debian, uname -r has only the number of the ABI. Raspberry Pi
// OS puts an epoch before the version.
var debianVersion = regexp.MustCompile(`Debian (?:\d+:)?(\d+\.\d+\.\d+)`)

// WireGuardStall returns "" if the receive path of this kernel's WireGuard has no known stall. Otherwise it returns the release that
// has the fix: with CVE-2026-52945, the receive queue of a peer can stop until the interface is restarted, most likely with threaded
// NAPI. It recognises releases of kernel.org and of Debian. Other distributions number theirs differently.
func WireGuardStall() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return ""
	}
	return wireGuardStall(unix.ByteSliceToString(name.Release[:]), unix.ByteSliceToString(name.Version[:]))
}

// wireGuardStall is WireGuardStall for the texts of uname -r and uname -v.
func wireGuardStall(release, version string) string {
	if m := debianVersion.FindStringSubmatch(version); m != nil {
		release = m[1]
	}
	var major, minor, patch int
	if n, _ := fmt.Sscanf(release, "%d.%d.%d", &major, &minor, &patch); n != 3 {
		return ""
	}
	for _, r := range stallRanges() {
		if major == r.major && minor == r.minor && patch >= r.first && patch <= r.last {
			return fmt.Sprintf("%d.%d.%d", major, minor, r.last+1)
		}
	}
	return ""
}
