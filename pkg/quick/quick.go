// SPDX-License-Identifier: Apache-2.0

// Package quick brings tunnel interfaces up and down from wg-quick(8)'s files, with ropewalk's engine where wg-quick
// has the kernel's. Plan decides, with values only, which steps to take and in which order; a Runner takes them, and
// undoes them in reverse when one fails. What it leaves on the host (addresses, routes, rules, nftables or iptables
// rules, resolvconf entries) is what wg-quick leaves, so either tool can take down what the other brought up.
package quick

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ropewalk/ropewalk/pkg/conffile"
)

// DefaultDir is where configurations named without a path are.
const DefaultDir = "/etc/wireguard"

// Errors that callers tell apart. Their messages are wg-quick's.
var (
	ErrExists       = errors.New("already exists")
	ErrNotWireGuard = errors.New("is not a WireGuard interface")
	ErrNoFile       = errors.New("does not exist")
)

// Interface is an interface and the file that describes it.
type Interface struct {
	Name string
	Path string // of the file, without symbolic links
	File *conffile.File
}

// Find returns the file that wg-quick's argument means, without symbolic links, and the interface's name. A bare name
// means NAME.conf in dir. Errors: ErrNoFile, conffile.ErrName.
func Find(dir, arg string) (path, name string, err error) {
	path, name, err = conffile.Locate(dir, arg)
	if err != nil {
		return "", "", err
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", "", fmt.Errorf("`%s' %w", path, ErrNoFile)
	}
	real, err := filepath.EvalSymlinks(path)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return "", "", fmt.Errorf("finding the configuration of %s: %w", name, err)
	}
	return real, name, nil
}

// Open finds and reads an interface's file. The caller shows File.Warnings.
func Open(dir, arg string) (Interface, error) {
	path, name, err := Find(dir, arg)
	if err != nil {
		return Interface{}, err
	}
	file, err := conffile.Load(path, conffile.Quick)
	if err != nil {
		return Interface{}, err
	}
	return Interface{Name: name, Path: path, File: file}, nil
}
