// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// ErrName is the error for a path that does not end in an interface name and ".conf".
var ErrName = errors.New("the config file must be a valid interface name, followed by .conf")

// Locate interprets an argument as wg-quick does: a name alone is NAME.conf in dir, anything else is a path. It returns the
// path and the name of the interface. The file need not exist.
func Locate(dir, arg string) (path, name string, err error) {
	path = arg
	if regexp.MustCompile(`^[a-zA-Z0-9_=+.-]{1,15}$`).MatchString(arg) {
		path = filepath.Join(dir, arg+".conf")
	}
	match := regexp.MustCompile(`(?:^|/)([a-zA-Z0-9_=+.-]{1,15})\.conf$`).FindStringSubmatch(path)
	if match == nil {
		return "", "", fmt.Errorf("%s: %w", arg, ErrName)
	}
	return path, match[1], nil
}

// Load parses the file at path. It adds a warning if other users may read the file.
func Load(path string, dialect Dialect) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening configuration: %w", err)
	}
	defer f.Close()
	file, err := Parse(path, f, dialect)
	if err != nil {
		return nil, err
	}
	warning, err := accessWarning(path, f)
	if err != nil {
		return nil, fmt.Errorf("checking the permissions of %s: %w", path, err)
	}
	if warning != "" {
		file.Warnings = append([]string{warning}, file.Warnings...)
	}
	return file, nil
}

// LoadHooks is ParseHooks for the file at path.
func LoadHooks(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening configuration: %w", err)
	}
	defer f.Close()
	return ParseHooks(path, f)
}

// accessWarning follows wg-quick: a regular file is world accessible when other users have the same permission on it and on
// its directory.
func accessWarning(path string, f *os.File) (string, error) {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return "", err
	}
	dir, err := os.Stat(filepath.Dir(real))
	if err != nil {
		return "", err
	}
	const others fs.FileMode = 0o007
	if info.Mode()&dir.Mode()&others == 0 {
		return "", nil
	}
	return fmt.Sprintf("Warning: `%s' is world accessible", real), nil
}
