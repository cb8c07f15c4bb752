// SPDX-License-Identifier: Apache-2.0

package plot

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// glyphWidth is the mean advance of a sans-serif glyph in em, and monoWidth that of a monospaced one: there is no font to
// ask.
const (
	glyphWidth = 0.56
	monoWidth  = 0.61
)

func textWidth(s string) float64 {
	return float64(utf8.RuneCountInString(s)) * textSize * glyphWidth
}

// wrap breaks a text at spaces into lines of at most so many glyphs; a word that is longer has a line of its own.
func wrap(s string, glyphs int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(s) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= glyphs:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// number prints a figure with three digits, and thousands as k, M and so on.
func number(v float64) string {
	if v == 0 {
		return "0"
	}
	abs := math.Abs(v)
	for _, u := range []struct {
		factor float64
		suffix string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, "k"}} {
		if abs >= u.factor*0.9995 {
			factor := u.factor
			if u.suffix == "k" {
				factor = 1e3
			}
			return digits(v/factor) + u.suffix
		}
	}
	return digits(v)
}

// digits prints three significant digits without trailing zeros after the point.
func digits(v float64) string {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	if abs := math.Abs(r); abs < 1e-4 || abs >= 1e6 {
		return strconv.FormatFloat(r, 'g', 3, 64)
	}
	if math.Abs(v) >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(r, 'f', -1, 64)
}

// coordinate prints a pixel with one decimal at most.
func coordinate(v float64) string {
	s := strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
	if s == "-0" {
		return "0"
	}
	return s
}
