// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxReceiveCPUs is how many processors ReceiveCPUs may name.
const MaxReceiveCPUs = 256

// lastCPU is the highest number that a processor may have: the kernel's limit (NR_CPUS) is below it everywhere.
const lastCPU = 8191

// ReceiveCPUs says over which processors the kernel spreads its share of receiving (cpumap), by flow. The zero value is none.
type ReceiveCPUs struct {
	// Auto leaves the processors to what is found, and whether there is anything to gain.
	Auto bool
	// List holds their numbers, ascending, each once; none with Auto. It is not changed once made.
	List []int
}

// ErrReceiveCPUs says that ReceiveCPUs and an underlay contradict each other.
var ErrReceiveCPUs = errors.New("receive CPUs are for UDP sockets: with underlay xdp, AF_XDP sockets have the messages before")

// CheckReceiveCPUs refuses what cannot be together.
func CheckReceiveCPUs(mode UnderlayMode, c ReceiveCPUs) error {
	if mode == UnderlayXDP && c.On() {
		return ErrReceiveCPUs
	}
	return nil
}

// ParseReceiveCPUs reads "off", "auto", in any case, or a list as the kernel writes them: "0-3,8".
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

// ParseCPUs reads numbers of processors as the kernel writes them, "0-3,8", and returns them ascending, each once; ok is false for
// anything else, and for more than most.
func ParseCPUs(s string, most int) (list []int, ok bool) {
	for part := range strings.SplitSeq(s, ",") {
		first, last, ok := parseCPURange(part)
		if !ok || last-first >= most {
			return nil, false
		}
		for cpu := first; cpu <= last; cpu++ {
			list = append(list, cpu)
		}
		slices.Sort(list)
		if list = slices.Compact(list); len(list) > most {
			return nil, false
		}
	}
	return list, true
}

var errReceiveCPUs = fmt.Errorf("want off, auto or a list such as 0-3,8, of up to %d CPUs", MaxReceiveCPUs)

// parseCPURange reads "8" or "0-3".
func parseCPURange(s string) (first, last int, ok bool) {
	from, to, isRange := strings.Cut(strings.TrimSpace(s), "-")
	if !isRange {
		to = from
	}
	a, errA := strconv.ParseUint(from, 10, 16)
	b, errB := strconv.ParseUint(to, 10, 16)
	return int(a), int(b), errA == nil && errB == nil && a <= b && b <= lastCPU
}

// On tells whether any are wanted.
func (c ReceiveCPUs) On() bool { return c.Auto || len(c.List) > 0 }

// Equal tells whether c and o say the same.
func (c ReceiveCPUs) Equal(o ReceiveCPUs) bool {
	return c.Auto == o.Auto && slices.Equal(c.List, o.List)
}

// String is what ParseReceiveCPUs reads, in its shortest form.
func (c ReceiveCPUs) String() string {
	switch {
	case c.Auto:
		return "auto"
	case len(c.List) == 0:
		return "off"
	}
	return FormatCPUs(c.List)
}

// FormatCPUs writes ascending numbers of processors as the kernel does: "0-3,8".
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
func (c ReceiveCPUs) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler with ParseReceiveCPUs.
func (c *ReceiveCPUs) UnmarshalText(text []byte) (err error) {
	*c, err = ParseReceiveCPUs(string(text))
	return err
}

// ReceiveCPUsReport says what became of ReceiveCPUs, at one moment.
type ReceiveCPUsReport struct {
	Mode   ReceiveCPUs `json:"mode"`             // as configured
	CPUs   []int       `json:"cpus,omitempty"`   // that share the work now; none: the kernel's share stays where it is
	Device string      `json:"device,omitempty"` // whose packets they are
	Reason string      `json:"reason,omitempty"` // why none do, for people
}
