// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/ropewalk/ropewalk/pkg/spread"
)

// PortsError is a range of source ports that cannot be used. errors.Is finds syscall.EINVAL in it.
type PortsError struct{ fault string }

// Error says what is wrong with the range.
func (e *PortsError) Error() string { return e.fault }

// Unwrap returns syscall.EINVAL, which is what a UAPI client sees.
func (e *PortsError) Unwrap() error { return syscall.EINVAL }

func badPorts(format string, args ...any) error { return &PortsError{fmt.Sprintf(format, args...)} }

// MinSpreadPort is the first port that is not privileged (net.ipv4.ip_unprivileged_port_start's default).
const MinSpreadPort = 1024

// ParsePorts reads a range such as "61000-61999" and checks it with CheckPorts. Errors are *PortsError, and quote nothing
// but numbers.
func ParsePorts(s string) (spread.Ports, error) {
	first, last, ok := strings.Cut(s, "-")
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if !ok || errA != nil || errB != nil {
		return spread.Ports{}, badPorts("want two ports, such as %v", spread.DefaultPorts)
	}
	p := spread.Ports{First: uint16(a), Last: uint16(b)}
	if a > b {
		return spread.Ports{}, badPorts("range %v ends before it begins", p)
	}
	return p, CheckPorts(p, 0)
}

// CheckPorts tells why a device that listens on that port, 0 for one not known yet, cannot send from the range: the
// range is empty, it has privileged ports in it, which belong to other services, or the listen port, from which no flow
// leaves that has been given a port. The error is nil or a *PortsError.
func CheckPorts(p spread.Ports, listen uint16) error {
	switch {
	case p.Len() == 0:
		return badPorts("range %v is empty", p)
	case p.First < MinSpreadPort:
		return badPorts("range %v has privileged ports, below %d, in it", p, MinSpreadPort)
	case p.Contains(listen):
		return badPorts("range %v has the listen port, %d, in it", p, listen)
	}
	return nil
}
