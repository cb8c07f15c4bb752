// SPDX-License-Identifier: Apache-2.0

package term

import "strings"

// Bar draws a share, 0 to 1, of width columns. empty fills the rest.
func Bar(share float64, width int, empty string) string {
	n := int(min(max(share, 0), 1)*float64(width) + 0.5)
	return strings.Repeat("█", n) + strings.Repeat(empty, width-n)
}

// FineBar draws a share, 0 to 1, of width columns in eighths of a column. A nonzero share draws at least one eighth.
func FineBar(share float64, width int) string {
	eighths := int(min(max(share, 0), 1)*float64(width)*8 + 0.5)
	if share > 0 {
		eighths = max(eighths, 1)
	}
	bar := strings.Repeat("█", eighths/8)
	if part := eighths % 8; part > 0 {
		bar += string(rune(0x2590 - part)) // from ▏, one eighth, to ▉
	}
	return bar + strings.Repeat(" ", width-(eighths+7)/8)
}
