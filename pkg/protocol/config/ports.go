// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strconv"
	"strings"
	"syscall" //nolint:depguard // EINVAL is a value here; no system call is made

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// PortsError is the error for an unusable range of source ports. It satisfies errors.Is(err, syscall.EINVAL).
type PortsError struct{ message string }

// Error implements error.
func (e *PortsError) Error() string { return e.message }

// Unwrap returns syscall.EINVAL, which UAPI clients receive.
func (e *PortsError) Unwrap() error { return syscall.EINVAL }

func portsErrorf(format string, args ...any) error { return &PortsError{fmt.Sprintf(format, args...)} }

// MinSpreadPort is the first port that is not privileged (net.ipv4.ip_unprivileged_port_start's default).
const MinSpreadPort = 1024

// ParsePorts parses a range such as "61000-61999" and checks it with CheckPorts. Errors are *PortsError and quote only
// numbers.
func ParsePorts(s string) (spread.Ports, error) {
	first, last, ok := strings.Cut(s, "-")
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if !ok || errA != nil || errB != nil {
		return spread.Ports{}, portsErrorf("want two ports, such as %v", spread.DefaultPorts)
	}
	p := spread.Ports{First: uint16(a), Last: uint16(b)}
	if a > b {
		return spread.Ports{}, portsErrorf("range %v ends before it begins", p)
	}
	return p, CheckPorts(p, 0)
}

// CheckPorts reports why a device with that listen port, 0 if unknown yet, cannot send from the
// range. The range must not be empty. It must not contain privileged ports, which belong to other
// services, nor the listen port, which is not used for spread flows. The error is nil or a
// *PortsError.
func CheckPorts(p spread.Ports, listen uint16) error {
	switch {
	case p.Len() == 0:
		return portsErrorf("range %v is empty", p)
	case p.First < MinSpreadPort:
		return portsErrorf("range %v has privileged ports, below %d, in it", p, MinSpreadPort)
	case p.Contains(listen):
		return portsErrorf("range %v has the listen port, %d, in it", p, listen)
	}
	return nil
}
