// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultDir is where wg(8) looks for the sockets of userspace devices.
const DefaultDir Dir = "/var/run/wireguard"

// Dir is a directory of device sockets, each named NAME.sock.
type Dir string

const suffix = ".sock"

// path returns the socket of an interface. The kernel must accept the name for an interface
// (net/core/dev.c, dev_valid_name), which also keeps it inside the directory.
func (d Dir) path(name string) (string, error) {
	bad := name == "" || name == "." || name == ".." || len(name) >= unix.IFNAMSIZ
	if bad || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == '/' || r == ':' || r == 0x7f }) {
		return "", &Error{Errno: unix.EINVAL, Err: fmt.Errorf("%q is not an interface name", name)}
	}
	return filepath.Join(string(d), name+suffix), nil
}
