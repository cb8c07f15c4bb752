// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestLoadWarnsOfWorldAccessibleFile(t *testing.T) {
	for _, tc := range []struct {
		dir, file os.FileMode
		warn      bool
	}{
		{0o755, 0o644, true},
		{0o755, 0o600, false},
		{0o700, 0o644, false},
		{0o711, 0o604, false}, // as in wg-quick: file and directory must share a permission
		{0o755, 0o640, false},
		{0o777, 0o602, true},
	} {
		dir := filepath.Join(t.TempDir(), "etc")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "wg0.conf")
		if err := os.WriteFile(path, []byte("[Interface]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chmod(path, tc.file), os.Chmod(dir, tc.dir)); err != nil {
			t.Fatal(err)
		}
		f, err := Load(path, Quick)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		if tc.warn {
			want = []string{fmt.Sprintf("Warning: `%s' is world accessible", path)}
		}
		if !slices.Equal(f.Warnings, want) {
			t.Errorf("%+v: got %q, want %q", tc, f.Warnings, want)
		}
	}
}

func TestLoadOfMissingFileIsErrNotExist(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "none.conf"), WG); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestLocateInterpretsArgumentsAsWGQuick(t *testing.T) {
	for _, tc := range []struct{ arg, path, name string }{
		{"wg0", "/etc/wireguard/wg0.conf", "wg0"},
		{"a=b+c_d-e.f", "/etc/wireguard/a=b+c_d-e.f.conf", "a=b+c_d-e.f"},
		{"./wg0.conf", "./wg0.conf", "wg0"},
		{"/x/y/home.conf", "/x/y/home.conf", "home"},
	} {
		path, name, err := Locate("/etc/wireguard", tc.arg)
		if path != tc.path || name != tc.name || err != nil {
			t.Errorf("%q: got %q, %q, error %v, want %q, %q, no error", tc.arg, path, name, err, tc.path, tc.name)
		}
	}
	for _, arg := range []string{"", "sixteen-bytes-xx", "/x/sixteen-bytes-xx.conf", "/x/wg0", "/x/wg 0.conf", "/x/.conf"} {
		if path, name, err := Locate("/etc/wireguard", arg); !errors.Is(err, ErrName) {
			t.Errorf("%q: got %q, %q, error %v, want %v", arg, path, name, err, ErrName)
		}
	}
}
