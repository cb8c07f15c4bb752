// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Uname returns what uname -r and uname -v print.
func Uname() (release, version string) {
	var name unix.Utsname
	_ = unix.Uname(&name) // fails only for a bad address
	return unix.ByteSliceToString(name.Release[:]), unix.ByteSliceToString(name.Version[:])
}

// Upstream returns the release of kernel.org in the texts of uname -r and uname -v. Debian's 5.10.0-46-amd64 has the number of the ABI alone,
// and the upstream release in its version: "#1 SMP Debian 5.10.259-1 (2026-07-01)". Raspberry Pi OS puts an epoch before it:
// "#1 SMP PREEMPT Debian 1:6.12.94-1+rpt1 (2026-07-01)".
func Upstream(release, version string) string {
	_, debian, found := strings.Cut(version, " Debian ")
	if !found {
		return release
	}
	if epoch, rest, ok := strings.Cut(debian, ":"); ok && isNumber(epoch) {
		debian = rest
	}
	upstream, _, _ := strings.Cut(debian, "-")
	return upstream
}

// Release has the numbers of a release.
type Release struct {
	Major, Minor int
	Patch        int // -1: there is none
}

// Parse reads the numbers of "6.12.3-amd64" or "7.2-rc1". ok is false without a major and a minor number.
func Parse(release string) (r Release, ok bool) {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 || !isNumber(parts[0]) {
		return r, false
	}
	r.Patch = -1
	var err error
	if r.Major, err = strconv.Atoi(parts[0]); err != nil {
		return r, false
	}
	if r.Minor, ok = leadingNumber(parts[1]); ok && len(parts) > 2 {
		if patch, numbered := leadingNumber(parts[2]); numbered {
			r.Patch = patch
		}
	}
	return r, ok
}

// Before reports whether the release precedes major.minor.
func (r Release) Before(major, minor int) bool {
	return r.Major < major || r.Major == major && r.Minor < minor
}

// leadingNumber reads the digits at the beginning of a text.
func leadingNumber(s string) (n int, ok bool) {
	digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
	n, err := strconv.Atoi(s[:digits])
	return n, err == nil
}

// isNumber reports whether a text has digits and nothing else.
func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
