// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// The sysctls of ephemeral ports (Linux's ip-sysctl documentation). They also apply to IPv6.
const (
	localPortRange     = "/proc/sys/net/ipv4/ip_local_port_range"
	localReservedPorts = "/proc/sys/net/ipv4/ip_local_reserved_ports"
)

// LocalPorts are the ephemeral ports, which the kernel assigns to sockets that bind to none: Range without Reserved.
type LocalPorts struct {
	Range    spread.Ports   // ip_local_port_range
	Reserved []spread.Ports // ip_local_reserved_ports
}

// ReadLocalPorts reads the ephemeral ports of the calling thread's network namespace.
func ReadLocalPorts() (LocalPorts, error) {
	local, err := os.ReadFile(localPortRange)
	if err != nil {
		return LocalPorts{}, fmt.Errorf("reading the range of ephemeral ports: %w", err)
	}
	reserved, err := os.ReadFile(localReservedPorts)
	if err != nil {
		return LocalPorts{}, fmt.Errorf("reading the reserved ports: %w", err)
	}
	return parseLocalPorts(string(local), string(reserved))
}

// parseLocalPorts parses values such as "32768 60999" and "8080,9148-9150".
func parseLocalPorts(local, reserved string) (LocalPorts, error) {
	var l LocalPorts
	if _, err := fmt.Sscan(local, &l.Range.First, &l.Range.Last); err != nil {
		return LocalPorts{}, fmt.Errorf("parsing the range of ephemeral ports %q: %w", local, err)
	}
	for item := range strings.FieldsFuncSeq(reserved, func(r rune) bool { return r == ',' || r == '\n' }) {
		first, last, ok := strings.Cut(item, "-")
		if !ok {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 16)
		b, errB := strconv.ParseUint(last, 10, 16)
		if errA != nil || errB != nil {
			return LocalPorts{}, fmt.Errorf("parsing the reserved ports: %q is no port or range", item)
		}
		l.Reserved = append(l.Reserved, spread.Ports{First: uint16(a), Last: uint16(b)})
	}
	return l, nil
}

// Contains reports whether the port is ephemeral: the kernel may assign it to any socket.
func (l LocalPorts) Contains(port uint16) bool {
	for _, r := range l.Reserved {
		if r.Contains(port) {
			return false
		}
	}
	return l.Range.Contains(port)
}

// EphemeralRange returns the smallest range that covers the ephemeral ones of ports. It is empty if there are none.
func (l LocalPorts) EphemeralRange(ports []uint16) (found spread.Ports) {
	for _, p := range ports {
		switch {
		case !l.Contains(p):
		case found == spread.Ports{}:
			found = spread.Ports{First: p, Last: p}
		default:
			found = spread.Ports{First: min(found.First, p), Last: max(found.Last, p)}
		}
	}
	return found
}

// ReserveCommand returns the sysctl command that reserves ports in addition to the ports already reserved.
func (l LocalPorts) ReserveCommand(ports spread.Ports) string {
	var b strings.Builder
	b.WriteString("sysctl -w net.ipv4.ip_local_reserved_ports=")
	for _, r := range l.Reserved { // the command replaces the whole list
		b.WriteString(r.String() + ",")
	}
	return b.String() + ports.String()
}
