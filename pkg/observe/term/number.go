// SPDX-License-Identifier: Apache-2.0

package term

import "fmt"

// Short formats n in at most 7 columns.
func Short(n uint64) string {
	if n < 1_000_000 {
		return Thousands(n)
	}
	v, unit := float64(n)/1e6, "M"
	for _, next := range []string{"G", "T", "P", "E"} {
		if v >= 1000 {
			v, unit = v/1000, next
		}
	}
	return fmt.Sprintf("%.*f %s", 2-min(len(fmt.Sprint(int(v)))-1, 2), v, unit)
}

// BitRate formats bits per second with three digits.
func BitRate(v float64) string { return WithUnit(v, "bit/s") }

// PacketRate formats packets per second.
func PacketRate(v float64) string {
	if v < 1000 {
		return fmt.Sprintf("%.0f packets/s", v)
	}
	return fmt.Sprintf("%.0f kpps", v/1000)
}

// WithUnit formats v with three digits and an SI prefix.
func WithUnit(v float64, unit string) string {
	for _, p := range []struct {
		factor float64
		prefix string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= p.factor {
			return fmt.Sprintf("%.2f %s%s", v/p.factor, p.prefix, unit)
		}
	}
	return fmt.Sprintf("%.0f %s", v, unit)
}

// Thousands formats n with thousands separators.
func Thousands(n uint64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Percent formats n as a percentage of of, "-" if of is 0.
func Percent(n, of uint64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(n)/float64(of))
}

// Count returns n with a noun, such as "1 port" or "2 ports".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
