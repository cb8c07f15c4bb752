// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxReceiveCPUs is the largest number of CPUs in ReceiveCPUs.
const MaxReceiveCPUs = 256

// lastCPU is the highest CPU number accepted. The kernel's limit (NR_CPUS) is lower on every architecture.
const lastCPU = 8191

// ReceiveCPUs are the CPUs over which the kernel distributes received packets by flow (cpumap). The zero value is none.
type ReceiveCPUs struct {
	// Auto selects the CPUs automatically, and none where there is no benefit.
	Auto bool
	// List holds the CPU numbers, ascending and distinct; empty with Auto. It is immutable.
	List []int
}

// ErrReceiveCPUs means that ReceiveCPUs cannot be combined with the underlay mode.
var ErrReceiveCPUs = errors.New("rx-cpus is for UDP sockets: with underlay xdp, AF_XDP sockets receive the messages")

// CheckReceiveCPUs returns ErrReceiveCPUs for a mode that cannot be combined with c.
func CheckReceiveCPUs(mode UnderlayMode, c ReceiveCPUs) error {
	if mode == UnderlayXDP && c.On() {
		return ErrReceiveCPUs
	}
	return nil
}

// ParseReceiveCPUs parses "off", "auto", in any case, or a list in the kernel's format: "0-3,8".
func ParseReceiveCPUs(s string) (ReceiveCPUs, error) {
	switch {
	case strings.EqualFold(s, "off"):
		return ReceiveCPUs{}, nil
	case strings.EqualFold(s, "auto"):
		return ReceiveCPUs{Auto: true}, nil
	}
	list, ok := ParseCPUs(s, MaxReceiveCPUs)
	if !ok {
		return ReceiveCPUs{}, errReceiveCPUs
	}
	return ReceiveCPUs{List: list}, nil
}

// ParseCPUs parses a CPU list in the kernel's format, "0-3,8", and returns it ascending and distinct. ok is false for
// anything else, and for more than limit CPUs.
func ParseCPUs(s string, limit int) (list []int, ok bool) {
	for part := range strings.SplitSeq(s, ",") {
		first, last, ok := parseCPURange(part)
		if !ok || last-first >= limit {
			return nil, false
		}
		for cpu := first; cpu <= last; cpu++ {
			list = append(list, cpu)
		}
		slices.Sort(list)
		if list = slices.Compact(list); len(list) > limit {
			return nil, false
		}
	}
	return list, true
}

var errReceiveCPUs = fmt.Errorf("want off, auto or a list such as 0-3,8, of up to %d CPUs", MaxReceiveCPUs)

// parseCPURange parses "8" or "0-3".
func parseCPURange(s string) (first, last int, ok bool) {
	from, to, isRange := strings.Cut(strings.TrimSpace(s), "-")
	if !isRange {
		to = from
	}
	a, errA := strconv.ParseUint(from, 10, 16)
	b, errB := strconv.ParseUint(to, 10, 16)
	return int(a), int(b), errA == nil && errB == nil && a <= b && b <= lastCPU
}

// On reports whether any CPUs are configured.
func (r ReceiveCPUs) On() bool { return r.Auto || len(r.List) > 0 }

// Equal reports whether c and o are equal.
func (r ReceiveCPUs) Equal(o ReceiveCPUs) bool {
	return r.Auto == o.Auto && slices.Equal(r.List, o.List)
}

// String returns the shortest form that ParseReceiveCPUs parses.
func (r ReceiveCPUs) String() string {
	switch {
	case r.Auto:
		return "auto"
	case len(r.List) == 0:
		return "off"
	}
	return FormatCPUs(r.List)
}

// FormatCPUs formats ascending CPU numbers as the kernel does: "0-3,8".
func FormatCPUs(cpus []int) string {
	var b strings.Builder
	for i := 0; i < len(cpus); {
		end := i
		for end+1 < len(cpus) && cpus[end+1] == cpus[end]+1 {
			end++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(cpus[i]))
		if end > i {
			b.WriteString("-" + strconv.Itoa(cpus[end]))
		}
		i = end + 1
	}
	return b.String()
}

// MarshalText implements encoding.TextMarshaler with String.
func (r ReceiveCPUs) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler with ParseReceiveCPUs.
func (r *ReceiveCPUs) UnmarshalText(text []byte) (err error) {
	*r, err = ParseReceiveCPUs(string(text))
	return err
}

// ReceiveCPUsReport is a snapshot of the effect of ReceiveCPUs.
type ReceiveCPUsReport struct {
	Mode   ReceiveCPUs `json:"mode"`             // as configured
	CPUs   []int       `json:"cpus,omitempty"`   // CPUs in use; none: the kernel does not redistribute packets
	Device string      `json:"device,omitempty"` // the device whose packets are distributed
	Reason string      `json:"reason,omitempty"` // why none are in use, for display
}
