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

// Strip copies a file without wg-quick's keys and ropewalk's, else byte for byte as `wg-quick strip` does: comments and the keys of wg(8)
// stay, lines lose the blanks around them, and an empty line follows. It does not check what it copies; Parse does.
// A byte-order mark, which wg-quick would trip over, is dropped.
func Strip(w io.Writer, r io.Reader) error {
	b := bufio.NewWriter(w)
	lines := newLines(io.LimitReader(r, maxFile))
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
		if !inInterface || !IsQuickKey(key) {
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
	return b.Flush()
}

// quickName is what wg-quick takes for a line's key: all before the first "=" or "#".
func quickName(line string) string {
	line, _, _ = strings.Cut(line, "#")
	line, _, _ = strings.Cut(line, "=")
	return strings.Trim(line, space)
}

// IsQuickKey reports whether wg-quick or ropewalk has a key of that name, which wg(8) has not.
func IsQuickKey(name string) bool {
	return slices.ContainsFunc(slices.Concat(quickKeys(), ownKeys()), func(k key) bool { return strings.EqualFold(k.name, name) })
}

// scanRawLines is bufio.ScanLines without its care for carriage returns, which the shell does not take either.
func scanRawLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}
