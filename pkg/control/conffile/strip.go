// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Strip copies a file without the keys of wg-quick and ropewalk, otherwise byte for byte as
// `wg-quick strip` does. It keeps comments and the keys of wg(8), trims blanks from lines, and
// appends an empty line. It does not check the file: Parse does. It drops a byte-order mark, which
// wg-quick cannot handle. It writes nothing unless it has read the whole file: part of one looks
// like a file with fewer peers.
func Strip(w io.Writer, r io.Reader) error {
	var b bytes.Buffer
	lines := newLineScanner(r)
	lines.Split(scanRawLines)
	inInterface := false
	number := 1
	for ; lines.Scan(); number++ {
		line := lines.Text()
		if number == 1 {
			line = strings.TrimPrefix(line, "\ufeff")
		}
		key := quickName(line)
		if strings.HasPrefix(key, "[") {
			inInterface = strings.EqualFold(key, "[Interface]")
		}
		own := inInterface && IsQuickKey(key) || !inInterface && isOwnPeerKey(key)
		if !own {
			b.WriteString(strings.Trim(line, " \t"))
			b.WriteByte('\n')
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("reading line %d of the configuration to strip: longer than %d bytes", number, maxLine)
	} else if err != nil {
		return fmt.Errorf("reading the configuration to strip: %w", err)
	}
	b.WriteByte('\n')
	_, err := b.WriteTo(w)
	return err
}

// quickName returns a line's key as wg-quick finds it: the text before the first "=" or "#".
func quickName(line string) string {
	line, _, _ = strings.Cut(line, "#")
	line, _, _ = strings.Cut(line, "=")
	return strings.Trim(line, space)
}

// IsQuickKey reports whether name is a key of wg-quick or ropewalk, and not of wg(8).
func IsQuickKey(name string) bool {
	return slices.ContainsFunc(slices.Concat(quickKeys(), ropewalkKeys()), func(k key) bool { return strings.EqualFold(k.name, name) })
}

// isOwnPeerKey reports whether name is a key of ropewalk in [Peer].
func isOwnPeerKey(name string) bool {
	return slices.ContainsFunc(ropewalkPeerKeys(), func(k key) bool { return strings.EqualFold(k.name, name) })
}

// scanRawLines is bufio.ScanLines, but keeps carriage returns, as the shell does.
func scanRawLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}
