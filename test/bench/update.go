// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
)

// defaultTable is the name of the table of measure.Measures in docs/dev/measurements.md.
const defaultTable = "bench-peers"

// errMarkers is wrapped when a document has not exactly one place for the table.
var errMarkers = errors.New("want one line <!-- TABLE:begin --> and below it one line <!-- TABLE:end -->")

// markers are the lines between which a table stands in a document.
func markers(name string) (begin, end []byte) {
	return fmt.Appendf(nil, "<!-- %s:begin -->\n", name), fmt.Appendf(nil, "<!-- %s:end -->\n", name)
}

// replaceBetween returns the document with the text between the markers of a name replaced; the
// markers stay.
func replaceBetween(document []byte, name string, table []byte) ([]byte, error) {
	begin, end := markers(name)
	if bytes.Count(document, begin) != 1 || bytes.Count(document, end) != 1 {
		return nil, fmt.Errorf("%w, with %s for TABLE", errMarkers, name)
	}
	from := bytes.Index(document, begin) + len(begin)
	to := bytes.Index(document, end)
	if to < from {
		return nil, fmt.Errorf("%w, with %s for TABLE", errMarkers, name)
	}
	return slices.Concat(document[:from], bytes.TrimRight(table, "\n"), []byte("\n"), document[to:]), nil
}

// updateFile replaces the table of a name in the file at path, or leaves the file as it was. A nil table only checks that it could.
func updateFile(path, name string, table []byte) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the document: %w", err)
	}
	updated, err := replaceBetween(old, name, table)
	if err != nil {
		return fmt.Errorf("updating %s: %w", path, err)
	}
	if table == nil {
		return nil
	}
	if err := os.WriteFile(path, updated, 0o644); err != nil {
		return fmt.Errorf("writing the document: %w", err)
	}
	return nil
}
