// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

// scaled formats v with three digits and a unit prefix: "4.21 G", "0 ".
func scaled(v float64, step float64, prefixes ...string) string {
	if v < 1 {
		v = 0 // below one per second
	}
	i := -1
	for i < len(prefixes)-1 && v >= step-0.5 {
		v, i = v/step, i+1
	}
	prefix := ""
	if i >= 0 {
		prefix = prefixes[i]
	}
	switch {
	case i < 0 || v >= 99.95:
		return fmt.Sprintf("%.0f %s", v, prefix)
	case v >= 9.995:
		return fmt.Sprintf("%.1f %s", v, prefix)
	}
	return fmt.Sprintf("%.2f %s", v, prefix)
}

// bits prints bytes per second as bits per second.
func bits(bytesPerSecond float64) string {
	return scaled(8*bytesPerSecond, 1000, "k", "M", "G", "T", "P") + "b/s"
}

// bytes prints a number of bytes.
func bytes(n uint64) string {
	return scaled(float64(n), 1024, "Ki", "Mi", "Gi", "Ti", "Pi", "Ei") + "B"
}

// count formats a number of events, or of events per second.
func count(v float64) string {
	return strings.TrimSuffix(scaled(v, 1000, "k", "M", "G", "T", "P", "E"), " ")
}

// average formats packets per train, "-" for none.
func average(v float64) string {
	switch {
	case v <= 0:
		return "-"
	case v >= 99.95:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

func percent(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }

// ageText formats an age in seconds with its two largest units; -1 is "never".
func ageText(seconds float64) string {
	d := time.Duration(min(seconds, 1e9)) * time.Second
	day := 24 * time.Hour
	switch {
	case seconds < 0:
		return "never"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/day, d%day/time.Hour)
}

// bar draws a share of width columns, in eighths of a column, or in whole columns for ASCII. A nonzero share is never empty.
func bar(share float64, width int, ascii bool) string {
	if !ascii {
		return term.FineBar(share, width)
	}
	n := int(min(max(share, 0), 1)*float64(width) + 0.5)
	if share > 0 {
		n = max(n, 1)
	}
	return strings.Repeat("#", n) + strings.Repeat(".", width-n)
}
