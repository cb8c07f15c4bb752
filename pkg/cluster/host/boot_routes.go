// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/atomicfile"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// The agent writes its rule and blackhole routes as input of `ip -batch` beside its state. A unit of the host
// (deploy/systemd/ropewalk-blackholes.service) applies them at boot, before the kubelet starts pods.

// bootRoutesFile returns the name of the file for an address family, in the key directory.
func bootRoutesFile(family hostnet.Family) string {
	return "blackholes-" + strings.ToLower(family.String())
}

// bootRoutes returns the file's content, or "" if nothing is to be dropped. Exemptions come first, and the rule that makes all of
// them effective comes last.
func (r *Routing) bootRoutes(family hostnet.Family) string {
	if r == nil || r.Cleartext {
		return ""
	}
	var b strings.Builder
	drops := false
	for _, k := range r.keys(false, nil) {
		if hostnet.FamilyOf(k.prefix.Addr()) != family {
			continue
		}
		switch {
		case k.kind == unix.RTN_BLACKHOLE:
			drops = true
			fmt.Fprintf(&b, "route replace blackhole %s table %d metric %d protocol %d\n", k.prefix, routeTable, blackholeMetric, routeProtocol)
		case family == hostnet.IPv4:
			fmt.Fprintf(&b, "route replace throw %s table %d scope host protocol %d\n", k.prefix, routeTable, routeProtocol)
		default:
			fmt.Fprintf(&b, "route replace throw %s table %d protocol %d\n", k.prefix, routeTable, routeProtocol)
		}
	}
	if !drops {
		return ""
	}
	fmt.Fprintf(&b, "rule add priority %d table %d protocol %d\n", rulePriority, routeTable, routeProtocol)
	return b.String()
}

// SaveBootRoutes writes or removes the files.
func (r *Routing) SaveBootRoutes(dir string) error {
	var errs []error
	for _, family := range hostnet.Families() {
		path := filepath.Join(dir, bootRoutesFile(family))
		text := r.bootRoutes(family)
		if text == "" {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
			continue
		}
		errs = append(errs, atomicfile.Replace(path, []byte(text)))
	}
	return errors.Join(errs...)
}
