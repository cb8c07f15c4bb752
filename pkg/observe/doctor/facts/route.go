// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"strconv"
	"strings"
)

// route is one route of a routing table.
type route struct {
	device    string
	metric    uint64
	byDefault bool // and not a reject route
}

// defaultRoute returns the device of the best default route of a table; "" for none.
func (s source) defaultRoute(path string, parse func(fields []string) (route, bool)) string {
	text, err := s.text(path)
	if err != nil {
		return ""
	}
	var best route
	for line := range strings.Lines(text) {
		r, ok := parse(strings.Fields(line))
		if ok && r.byDefault && r.device != "lo" && (best.device == "" || r.metric < best.metric) {
			best = r
		}
	}
	return best.device
}

// Flags of routes (include/uapi/linux/route.h).
const (
	routeUp     = 1
	routeReject = 0x200
)

// parseRoute4 reads a line of /proc/net/route: "eth0 00000000 0200A8C0 0003 0 0 100 00000000 0 0 0".
func parseRoute4(fields []string) (route, bool) {
	if len(fields) < 8 {
		return route{}, false
	}
	flags, err := strconv.ParseUint(fields[3], 16, 32)
	metric, metricErr := strconv.ParseUint(fields[6], 10, 32)
	all := isZero(fields[1]) && isZero(fields[7])
	return route{fields[0], metric, all && flags&(routeUp|routeReject) == routeUp}, err == nil && metricErr == nil
}

// parseRoute6 reads a line of /proc/net/ipv6_route: destination, its length, source, its length, gateway, metric,
// references, uses, flags, device.
func parseRoute6(fields []string) (route, bool) {
	if len(fields) < 10 {
		return route{}, false
	}
	flags, err := strconv.ParseUint(fields[8], 16, 32)
	metric, metricErr := strconv.ParseUint(fields[5], 16, 32)
	all := isZero(fields[0]) && isZero(fields[1]) && isZero(fields[3])
	return route{fields[9], metric, all && flags&(routeUp|routeReject) == routeUp}, err == nil && metricErr == nil
}

func isZero(digits string) bool { return digits != "" && strings.Trim(digits, "0") == "" }
