// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// maxFile is the largest part of a file that is read, in bytes.
const maxFile = 4 << 20

// source reads files of a host below a root: /proc, /sys, /dev. For any content it returns an error or a value within
// bounds.
type source struct{ root fs.FS }

// text returns a file's text without surrounding white space.
func (s source) text(path string) (string, error) {
	f, err := s.root.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return "", fmt.Errorf("reading /%s: %w", path, err)
	}
	return strings.TrimSpace(string(b)), nil
}

func (s source) number(path string) (int, error) {
	text, err := s.text(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("reading /%s: invalid number %q", path, shorten(text))
	}
	return n, nil
}

// names lists the entries of a directory.
func (s source) names(path string) ([]string, error) {
	entries, err := fs.ReadDir(s.root, path)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// cpus reads a CPU list.
func (s source) cpus(path string) ([]int, error) { return s.parsed(path, parseList) }

// mask reads a CPU bitmap.
func (s source) mask(path string) ([]int, error) { return s.parsed(path, ParseMask) }

func (s source) parsed(path string, parse func(string) ([]int, error)) ([]int, error) {
	text, err := s.text(path)
	if err != nil {
		return nil, err
	}
	list, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("reading /%s: %w", path, err)
	}
	return list, nil
}

// maxCPUs is the largest NR_CPUS of Linux.
const maxCPUs = 8192

// parseList reads "0-3,8" (cpulist_parse of Linux); empty text is no CPUs.
func parseList(text string) ([]int, error) {
	if text == "" {
		return nil, nil
	}
	var list []int
	for part := range strings.SplitSeq(text, ",") {
		first, last, ok := parseRange(part)
		if !ok {
			return nil, fmt.Errorf("invalid CPU list %q", shorten(text))
		}
		for cpu := first; cpu <= last; cpu++ {
			list = append(list, cpu)
		}
		slices.Sort(list)
		list = slices.Compact(list)
	}
	return list, nil
}

// parseRange parses "8" or "0-3".
func parseRange(s string) (first, last int, ok bool) {
	from, to, isRange := strings.Cut(s, "-")
	if !isRange {
		to = from
	}
	a, errA := strconv.ParseUint(from, 10, 16)
	b, errB := strconv.ParseUint(to, 10, 16)
	return int(a), int(b), errA == nil && errB == nil && a <= b && b < maxCPUs
}

// ParseMask reads a CPU bitmap such as "00000000,0000000f", most significant word first.
func ParseMask(text string) ([]int, error) {
	words := strings.Split(text, ",")
	if len(words) > maxCPUs/32 {
		return nil, fmt.Errorf("invalid CPU bitmap %q", shorten(text))
	}
	var list []int
	for i := range words {
		word := words[len(words)-1-i]
		bits, err := strconv.ParseUint(word, 16, 32)
		if err != nil {
			return nil, fmt.Errorf("invalid CPU bitmap %q", shorten(text))
		}
		for bit := range 32 {
			if bits>>bit&1 != 0 {
				list = append(list, 32*i+bit)
			}
		}
	}
	return list, nil
}

// Mask returns the bitmap that ParseMask reads, for rps_cpus.
func Mask(cpus []int) string {
	var words []uint32
	for _, c := range cpus {
		for len(words) <= c/32 {
			words = append(words, 0)
		}
		words[c/32] |= 1 << (c % 32)
	}
	if len(words) == 0 {
		return "0"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%x", words[len(words)-1])
	for i := len(words) - 2; i >= 0; i-- {
		fmt.Fprintf(&b, ",%08x", words[i])
	}
	return b.String()
}

// shorten truncates quoted text in an error message.
func shorten(text string) string {
	const most = 60
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}
