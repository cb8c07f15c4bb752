// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"strconv"
	"strings"
)

// groUsable says whether a kernel of this release (uname -r) has a UDP_GRO fit for use. It is not before 5.12, although
// the option can be set (wireguard-go commit c92064f draws the same line). That cannot be probed, so the release
// decides; an unreadable one counts as new.
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
	if err != nil || major < 0 {
		return 0, 0, false
	}
	minor, err = strconv.Atoi(rest[:digits])
	return major, minor, err == nil
}
