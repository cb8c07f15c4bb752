// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

// stageTitle returns the title of a stage's figures.
func stageTitle(stage string) string {
	switch stage {
	case StageCrypto:
		return "Crypto: ChaCha20-Poly1305, in place"
	case StageTUN:
		return "TUN: write and read rates of one core"
	case StageUnderlay:
		return "Underlay: send and receive rates of one core over UDP sockets"
	case StageRaw:
		return "The cable without a tunnel"
	case StageTunnel:
		return "The tunnel: both ends and the traffic on this machine"
	}
	return stage
}

// busyWarning is the load by other programs, in percent of all CPUs, from which the report warns.
const busyWarning = 5

// WriteTable writes the report for people, in aligned columns. Errors are w's.
func WriteTable(w io.Writer, r *Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, Linux %s %s\n", orUnknown(r.Machine.CPU), term.Count(r.Machine.Cores, "core"),
		r.Machine.Kernel, r.Machine.Arch)
	if r.Machine.Busy >= busyWarning {
		fmt.Fprintf(&b, "It was %.0f %% busy with something else before: figures are too low, and move.\n", r.Machine.Busy)
	}
	rows := make([][3]string, len(r.Figures))
	var widths [2]int
	for i, f := range r.Figures {
		rows[i] = figureRow(f)
		for c := range widths {
			widths[c] = max(widths[c], utf8.RuneCountInString(rows[i][c]))
		}
	}
	stage := ""
	for i, f := range r.Figures {
		if f.Stage != stage {
			stage = f.Stage
			fmt.Fprintf(&b, "\n%s\n", stageTitle(stage))
		}
		line := fmt.Sprintf("  %s  %s %s", pad(rows[i][0], widths[0], false), pad(rows[i][1], widths[1], true), rows[i][2])
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	if r.Verdict != nil {
		b.WriteString("\n" + strings.Join(r.Verdict.Text(r.Machine.Cores), "\n") + "\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	return nil
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown CPU"
	}
	return s
}

// figureRow returns the columns of a figure: its name, its value, and its unit with further values in parentheses.
func figureRow(f Figure) [3]string {
	if f.Error != "" {
		first, _, _ := strings.Cut(f.Error, "\n")
		return [3]string{f.What, "-", "not measured: " + first}
	}
	return [3]string{f.What, threeDigits(f.Value), f.Unit + beside(f)}
}

// beside returns the further values of a figure that the table shows, in parentheses.
func beside(f Figure) string {
	var list []string
	for _, c := range []struct{ key, format string }{
		{"kpps", "%s kpps"},
		{"cores", "%s cores"},
		{"p50_ms", "p50 %s"},
		{"p99_ms", "p99 %s"},
		{"next_kpps", nextFormat(f)},
	} {
		if v, ok := f.More[c.key]; ok {
			list = append(list, fmt.Sprintf(c.format, threeDigits(v)))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "  (" + strings.Join(list, ", ") + ")"
}

// nextFormat describes why the next higher rate failed: by loss, or because the generator did not reach it.
func nextFormat(f Figure) string {
	if loss, ok := f.More["next_loss_percent"]; ok && loss < testbed.MaxLoss {
		return "the generator does not reach %s"
	}
	return "%s is too much"
}

// threeDigits prints a figure with three significant digits, and no exponent.
func threeDigits(v float64) string {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	decimals := 2 - int(math.Floor(math.Log10(math.Abs(v))))
	return strconv.FormatFloat(v, 'f', min(max(decimals, 0), 6), 64)
}

// pad fills a cell with spaces up to width characters.
func pad(s string, width int, atLeft bool) string {
	fill := strings.Repeat(" ", max(width-utf8.RuneCountInString(s), 0))
	if atLeft {
		return fill + s
	}
	return s + fill
}
