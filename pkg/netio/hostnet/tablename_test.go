// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"testing"
	"testing/fstest"
)

func TestTableNamesResolveAsInIproute2(t *testing.T) {
	root := fstest.MapFS{
		"etc/iproute2/rt_tables":             {Data: []byte("# reserved\n255\tlocal\n254 main\n0x64 hexed\n7 blue # sky\nbroken\nx bad\n")},
		"etc/iproute2/rt_tables.d/vpn.conf":  {Data: []byte("4711 vpn\n")},
		"etc/iproute2/rt_tables.d/README":    {Data: []byte("5 readme\n")},
		"usr/share/iproute2/rt_tables":       {Data: []byte("8 blue\n9 green\n")},
		"usr/lib/iproute2/rt_tables.d/a.txt": {Data: []byte("6 text\n")},
	}
	for table, want := range map[string]uint32{
		"123": 123, "0x7b": 123, "4294967295": 4294967295, "main": 254, "local": 255, "default": 253,
		"hexed": 100, "blue": 7, "vpn": 4711, "green": 9,
	} {
		if got, err := TableNumber(root, table); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", table, got, err, want)
		}
	}
	for _, table := range []string{"", "pink", "bad", "broken", "readme", "text", "4294967296", "-1"} {
		if got, err := TableNumber(root, table); !errors.Is(err, ErrNoTable) {
			t.Errorf("%q: got %d, %v, want ErrNoTable", table, got, err)
		}
	}
	if got, err := TableNumber(fstest.MapFS{}, "main"); err != nil || got != 254 {
		t.Errorf("main without files: got %d, %v", got, err)
	}
}

func FuzzScanTables(f *testing.F) {
	f.Add([]byte("254 main\n0x64\thexed # comment\n"), "main")
	f.Add([]byte("x y z\n\x00 \xff\n"), "y")
	f.Fuzz(func(t *testing.T, file []byte, name string) {
		root := fstest.MapFS{"etc/iproute2/rt_tables": {Data: file}}
		if _, err := TableNumber(root, name); err != nil && !errors.Is(err, ErrNoTable) {
			t.Error(err)
		}
	})
}
