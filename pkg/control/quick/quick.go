// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
)

// DefaultDir is the directory of configurations that are named without a path.
const DefaultDir = "/etc/wireguard"

// Errors that callers distinguish. Their messages are wg-quick's. ErrUnresponsive is for a daemon that does not answer in time, or whose
// listen queue is full.
var (
	ErrExists       = errors.New("already exists")
	ErrNotWireGuard = errors.New("is not a WireGuard interface")
	ErrNoFile       = errors.New("does not exist")
	ErrUnresponsive = errors.New("its daemon does not answer")
)

// Interface is an interface and its configuration file.
type Interface struct {
	Name string
	Path string // of the file, without symbolic links
	File *conffile.File
	// Metrics is the address of the metrics in place of the file's; "" for none.
	Metrics string
	// Arguments of `ropewalk run` that follow those for keys of the file.
	Arguments []string
}

// Find interprets an argument as wg-quick does, and returns the file's path, without symbolic links, and the interface's name. A bare name
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

// Open finds and reads an interface's file. The caller prints File.Warnings.
func Open(dir, arg string) (Interface, error) {
	return open(dir, arg, func(path string) (*conffile.File, error) { return conffile.Load(path, conffile.Quick) })
}

// OpenHooks is Open for a file with mistakes: the File has only Table, PreDown and PostDown, for Down.
func OpenHooks(dir, arg string) (Interface, error) { return open(dir, arg, conffile.LoadHooks) }

func open(dir, arg string, load func(path string) (*conffile.File, error)) (Interface, error) {
	path, name, err := Find(dir, arg)
	if err != nil {
		return Interface{}, err
	}
	file, err := load(path)
	if err != nil {
		return Interface{}, err
	}
	return Interface{Name: name, Path: path, File: file}, nil
}
