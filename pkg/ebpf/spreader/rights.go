// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"errors"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

// explainRights returns the capabilities that this thread lacks, after an error of permission, and else "".
func explainRights(err error) string {
	missing := lackedCapabilities()
	if !errors.Is(err, fs.ErrPermission) || len(missing) == 0 {
		return ""
	}
	return " (this process lacks " + strings.Join(missing, ", ") + ": run it as root, or with these capabilities)"
}

// lackedCapabilities returns the capabilities that Attach needs and this thread lacks; nil if they cannot be read.
func lackedCapabilities() []string {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&header, &data[0]) != nil {
		return nil
	}
	return missingCapabilities(uint64(data[1].Effective)<<32 | uint64(data[0].Effective))
}

// missingCapabilities returns the capabilities that Attach needs and that are not among the
// effective ones. CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON (capabilities(7)).
func missingCapabilities(effective uint64) (names []string) {
	has := func(c int) bool { return effective>>c&1 != 0 }
	if !has(unix.CAP_NET_ADMIN) {
		names = append(names, "CAP_NET_ADMIN")
	}
	if !has(unix.CAP_BPF) && !has(unix.CAP_SYS_ADMIN) {
		names = append(names, "CAP_BPF")
	}
	if !has(unix.CAP_PERFMON) && !has(unix.CAP_SYS_ADMIN) {
		names = append(names, "CAP_PERFMON")
	}
	return names
}
