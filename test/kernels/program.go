// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// libraryDirs are the directories of shared libraries on Debian.
var libraryDirs = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/lib", "/usr/lib"}

// addProgram adds a program of the host as /usr/bin/NAME, with its shared libraries.
func addProgram(c *cpioWriter, name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	libraries, err := sharedLibraries(path)
	if err != nil {
		return err
	}
	c.CopyFile("/usr/bin/"+name, path, 0o755)
	for in, host := range libraries {
		c.CopyFile(in, host, 0o755)
	}
	return nil
}

// sharedLibraries returns the interpreter and all shared libraries of an ELF file: host paths by path in the machine. The paths in
// the machine are the interpreter's default ones, because the machine has no ld.so.cache.
func sharedLibraries(path string) (map[string]string, error) {
	found := map[string]string{}
	todo := []string{path}
	for len(todo) > 0 {
		interpreter, needed, err := dynamic(todo[0])
		if err != nil {
			return nil, fmt.Errorf("reading the dependencies of %s: %w", todo[0], err)
		}
		todo = todo[1:]
		if interpreter != "" {
			found[interpreter] = interpreter
		}
		for _, name := range needed {
			in := "/lib/x86_64-linux-gnu/" + name
			if found[in] != "" {
				continue
			}
			if found[in], err = findLibrary(name); err != nil {
				return nil, fmt.Errorf("finding %s, a dependency of %s: %w", name, path, err)
			}
			todo = append(todo, found[in])
		}
	}
	return found, nil
}

func findLibrary(name string) (string, error) {
	for _, dir := range libraryDirs {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fs.ErrNotExist
}

// dynamic returns an ELF file's interpreter, if any, and its needed libraries.
func dynamic(path string) (interpreter string, needed []string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if s := f.Section(".interp"); s != nil {
		text, err := s.Data()
		if err != nil {
			return "", nil, err
		}
		interpreter = string(text[:max(len(text)-1, 0)]) // without its NUL
	}
	needed, err = f.ImportedLibraries()
	return interpreter, needed, err
}
