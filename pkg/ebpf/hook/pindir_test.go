// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDirectoriesOfOtherUsersAreRejected(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give files away")
	}
	for _, tt := range []struct {
		name    string
		prepare func(root, dir string) error
		want    string // "" for none
	}{
		{"nothing there", func(string, string) error { return nil }, ""},
		{"everybody may write to the root", func(root, _ string) error { return os.Chmod(root, 0o777|os.ModeSticky) }, ""},
		{"everybody may rename in the root", func(root, _ string) error { return os.Chmod(root, 0o777) }, "chmod 700"},
		{"another's root", func(root, _ string) error { return os.Chown(root, 4711, 0) }, "belongs to user 4711"},
		{"ours", func(_, dir string) error { return os.MkdirAll(dir, 0o700) }, ""},
		{"another's", func(_, dir string) error {
			return errors.Join(os.MkdirAll(dir, 0o700), os.Chown(filepath.Dir(dir), 4711, 0))
		}, "/a belongs to user 4711"},
		{"another's below", func(_, dir string) error {
			return errors.Join(os.MkdirAll(dir, 0o700), os.Chown(dir, 4711, 0))
		}, "/a/b belongs to user 4711"},
		{"others may write", func(_, dir string) error {
			return errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o770))
		}, "other users can write to"},
		{"a link", func(root, dir string) error { return os.Symlink(root, filepath.Dir(dir)) }, "/a is not a directory"},
		{"a file", func(_, dir string) error { return os.WriteFile(filepath.Dir(dir), nil, 0o600) }, "/a is not a directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "a", "b")
			if err := tt.prepare(root, dir); err != nil {
				t.Fatal(err)
			}
			for _, err := range []error{CheckPinDir(root, dir), MakePinDir(root, dir)} {
				if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want %q", err, tt.want)
				}
			}
			st, err := os.Stat(dir)
			if tt.want == "" && (err != nil || st.Mode().Perm() != 0o700) {
				t.Errorf("got %v, error %v", st, err)
			}
		})
	}
}
