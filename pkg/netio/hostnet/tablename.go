// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoTable is wrapped by the error for an undefined routing table name.
var ErrNoTable = errors.New("no such routing table")

// TableNumber returns the number of a routing table given as a number (decimal, 0x or leading 0
// for octal, as iproute2 reads them) or by name. The names come from iproute2's rt_tables files in
// root. root is the host's file system, os.DirFS("/").
func TableNumber(root fs.FS, table string) (uint32, error) {
	if n, err := strconv.ParseUint(table, 0, 32); err == nil {
		return uint32(n), nil
	}
	for _, file := range tableFiles(root) {
		n, ok, err := lookUpTable(root, file, table)
		if ok || err != nil {
			return n, err
		}
	}
	switch table { // built into iproute2
	case "main":
		return MainTable, nil
	case "local":
		return unix.RT_TABLE_LOCAL, nil
	case "default":
		return unix.RT_TABLE_DEFAULT, nil
	}
	return 0, fmt.Errorf("looking up routing table %q: %w", table, ErrNoTable)
}

// tableFiles returns iproute2's files, the administrator's first.
func tableFiles(root fs.FS) []string {
	var files []string
	for _, dir := range []string{"etc/iproute2", "usr/lib/iproute2", "usr/share/iproute2"} {
		files = append(files, path.Join(dir, "rt_tables"))
		more, err := fs.Glob(root, path.Join(dir, "rt_tables.d/*.conf"))
		if err == nil {
			files = append(files, more...)
		}
	}
	return files
}

func lookUpTable(root fs.FS, file, name string) (n uint32, found bool, err error) {
	f, err := root.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("looking up routing table %q: %w", name, err)
	}
	defer f.Close()
	n, found = scanTables(f, name)
	return n, found, nil
}

// scanTables finds a name in lines of "number name". It ignores lines it cannot parse, as iproute2 does.
func scanTables(r io.Reader, name string) (uint32, bool) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(line)
		if len(fields) != 2 || fields[1] != name {
			continue
		}
		if n, err := strconv.ParseUint(fields[0], 0, 32); err == nil {
			return uint32(n), true
		}
	}
	return 0, false
}
