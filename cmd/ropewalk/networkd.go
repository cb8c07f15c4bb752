// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// networkdState is a file that systemd-networkd writes when it runs. On other hosts tmpfiles.d(5)
// creates the directory.
const networkdState = "run/systemd/netif/state"

// networkdWarnings warns of the routing rules for a default route that systemd-networkd removes at
// each of its starts. Packets then leave outside of the tunnel. There is no warning if the host
// with the file system root does not run systemd-networkd.
func networkdWarnings(root fs.FS, f *conffile.File) []string {
	if _, err := fs.Stat(root, networkdState); err != nil || !needsRules(f) || keepsRules(root) {
		return nil
	}
	return []string{"Warning: AllowedIPs: systemd-networkd removes the routing rules for the default route when it restarts, so packets would leave in the clear: " +
		"set ManageForeignRoutingPolicyRules=no in networkd.conf(5)"}
}

// needsRules reports whether up adds routing rules: for a default route, unless it has a table of its own.
func needsRules(f *conffile.File) bool {
	if table := f.Interface.Table; table != "" && table != "auto" {
		return false
	}
	return slices.ContainsFunc(f.Peers, func(p conffile.Peer) bool {
		return slices.ContainsFunc(p.AllowedIPs, func(a config.AllowedIP) bool { return !a.Remove && a.Prefix.Bits() == 0 })
	})
}

// keepsRules reports whether a file of networkd's configuration keeps the rules of other programs.
func keepsRules(root fs.FS) bool {
	for _, dir := range []string{"etc", "run", "usr/local/lib", "usr/lib"} {
		dropIns, _ := fs.Glob(root, path.Join(dir, "systemd/networkd.conf.d/*.conf")) // the pattern is valid
		if slices.ContainsFunc(append(dropIns, path.Join(dir, "systemd/networkd.conf")), func(name string) bool { return setsOff(root, name, "ManageForeignRoutingPolicyRules") }) {
			return true
		}
	}
	return false
}

// setsOff reports whether a file of systemd sets a key to a false value. It reports false for a file that cannot be read.
func setsOff(root fs.FS, name, key string) bool {
	f, err := root.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		k, value, _ := strings.Cut(lines.Text(), "=")
		if strings.TrimSpace(k) == key && slices.Contains([]string{"no", "n", "false", "f", "off", "0"}, strings.ToLower(strings.TrimSpace(value))) {
			return true
		}
	}
	return false
}
