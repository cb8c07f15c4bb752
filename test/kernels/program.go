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

// libraryDirs are where Debian keeps shared libraries.
var libraryDirs = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/lib", "/usr/lib"}

// addProgram adds a program of the host as /usr/bin/NAME, with the shared libraries that it needs.
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

// sharedLibraries returns the interpreter and all libraries of an ELF file, path in the machine to path on the host. The
// machine has them where the interpreter looks without a cache.
func sharedLibraries(path string) (map[string]string, error) {
	found := map[string]string{}
	todo := []string{path}
	for len(todo) > 0 {
		interpreter, needed, err := dynamic(todo[0])
		if err != nil {
			return nil, fmt.Errorf("reading what %s needs: %w", todo[0], err)
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
				return nil, fmt.Errorf("%s needs %s: %w", path, name, err)
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

// dynamic returns an ELF file's interpreter, if it names one, and the libraries that it names.
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
