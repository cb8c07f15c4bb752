// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
)

const (
	beginMarker = "<!-- bench-peers:begin -->"
	endMarker   = "<!-- bench-peers:end -->"
)

// errMarkers is wrapped when a document has not exactly one place for the table.
var errMarkers = errors.New("want one line " + beginMarker + " and below it one line " + endMarker)

// replaceBetween returns the document with what stands between the markers replaced; the markers stay.
func replaceBetween(document, table []byte) ([]byte, error) {
	begin, end := []byte(beginMarker+"\n"), []byte(endMarker+"\n")
	if bytes.Count(document, begin) != 1 || bytes.Count(document, end) != 1 {
		return nil, errMarkers
	}
	from := bytes.Index(document, begin) + len(begin)
	to := bytes.Index(document, end)
	if to < from {
		return nil, errMarkers
	}
	return slices.Concat(document[:from], bytes.TrimRight(table, "\n"), []byte("\n"), document[to:]), nil
}

// updateFile replaces the table in the file at path, or leaves the file as it was. A nil table only checks that it could.
func updateFile(path string, table []byte) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the document: %w", err)
	}
	updated, err := replaceBetween(old, table)
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
