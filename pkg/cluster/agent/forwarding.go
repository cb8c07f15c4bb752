// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// checkForwarding implements Network.CheckForwarding. IPv4 packets are forwarded if the interface through which they arrive allows it, IPv6
// packets also need that of all interfaces (Documentation/networking/ip-sysctl.rst).
func checkForwarding(tunnel string, of []netip.Prefix) error {
	names := map[hostnet.Family]string{hostnet.IPv4: "ipv4/conf/" + tunnel + "/forwarding", hostnet.IPv6: "ipv6/conf/all/forwarding"}
	for _, family := range hostnet.Families() {
		name := names[family]
		if !slices.ContainsFunc(of, func(p netip.Prefix) bool { return hostnet.FamilyOf(p.Addr()) == family }) {
			continue
		}
		text, err := os.ReadFile("/proc/sys/net/" + name)
		if err != nil {
			return fmt.Errorf("reading whether %s packets are forwarded: %w", family, err)
		}
		if strings.TrimSpace(string(text)) == "0" {
			return fmt.Errorf("%s packets are not forwarded (sysctl net/%s is 0)", family, name)
		}
	}
	return nil
}
