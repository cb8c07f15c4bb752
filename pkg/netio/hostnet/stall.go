// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
)

// stallRange is a range of stable kernel releases. The fix is in release last+1.
type stallRange struct{ major, minor, first, last int }

// stallRanges are the releases with CVE-2026-52945.
func stallRanges() []stallRange {
	return []stallRange{{5, 15, 186, 200}, {6, 1, 142, 163}, {6, 6, 94, 126}, {6, 12, 34, 73}}
}

// WireGuardStall returns "" if the receive path of this kernel's WireGuard has no known stall.
// Otherwise it returns the release that has the fix. With CVE-2026-52945, the receive queue of a
// peer can stop until the interface is restarted, most likely with threaded NAPI. It recognises
// releases of kernel.org and of Debian. Other distributions number theirs differently.
func WireGuardStall() string {
	return wireGuardStall(kernel.Uname())
}

// wireGuardStall is WireGuardStall for the texts of uname -r and uname -v.
func wireGuardStall(release, version string) string {
	is, ok := kernel.Parse(kernel.Upstream(release, version))
	for _, r := range stallRanges() {
		if ok && is.Major == r.major && is.Minor == r.minor && is.Patch >= r.first && is.Patch <= r.last {
			return fmt.Sprintf("%d.%d.%d", r.major, r.minor, r.last+1)
		}
	}
	return ""
}
