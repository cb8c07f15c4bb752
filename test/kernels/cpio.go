// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// File type bits of a cpio mode, as of stat(2).
const (
	modeDir     = 0o040000
	modeRegular = 0o100000
	modeSymlink = 0o120000
	modeChar    = 0o020000
)

const cpioTrailer = "TRAILER!!!"

// cpioWriter writes a cpio archive in the "newc" format (kernel Documentation/driver-api/early-userspace/buffer-format.rst).
// Parent directories are added when they are first needed. After the first error nothing is written, and Close returns it.
type cpioWriter struct {
	w    io.Writer
	err  error
	ino  uint32
	n    int64 // bytes written
	dirs map[string]bool
}

func newCPIOWriter(w io.Writer) *cpioWriter {
	return &cpioWriter{w: w, dirs: map[string]bool{".": true, "/": true}}
}

// Dir adds a directory and its parents.
func (c *cpioWriter) Dir(name string) {
	name = clean(name)
	if c.dirs[name] {
		return
	}
	c.Dir(path.Dir(name))
	c.dirs[name] = true
	c.entry(name, modeDir|0o755, 0, 0, nil)
}

// File adds a regular file with the permission bits perm.
func (c *cpioWriter) File(name string, perm uint32, data []byte) {
	c.Dir(path.Dir(clean(name)))
	c.entry(clean(name), modeRegular|perm, 0, 0, data)
}

// Symlink adds a symbolic link.
func (c *cpioWriter) Symlink(name, target string) {
	c.Dir(path.Dir(clean(name)))
	c.entry(clean(name), modeSymlink|0o777, 0, 0, []byte(target))
}

// CharDevice adds a character device node. This needs no privilege in an archive.
func (c *cpioWriter) CharDevice(name string, major, minor uint32) {
	c.Dir(path.Dir(clean(name)))
	c.entry(clean(name), modeChar|0o600, major, minor, nil)
}

// CopyFile adds a copy of a file of the host.
func (c *cpioWriter) CopyFile(name, hostPath string, perm uint32) {
	data, err := os.ReadFile(hostPath)
	if err != nil && c.err == nil {
		c.err = err
	}
	c.File(name, perm, data)
}

// Close writes the trailer. It does not close the underlying writer.
func (c *cpioWriter) Close() error {
	c.entry(cpioTrailer, 0, 0, 0, nil)
	return c.err
}

func (c *cpioWriter) entry(name string, mode, major, minor uint32, data []byte) {
	c.ino++
	const uid, gid, nlink, mtime, devMajor, devMinor, check = 0, 0, 1, 0, 0, 0, 0
	c.write([]byte(fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		c.ino, mode, uid, gid, nlink, mtime, len(data), devMajor, devMinor, major, minor, len(name)+1, check)))
	c.write([]byte(name + "\x00"))
	c.pad()
	c.write(data)
	c.pad()
}

// pad aligns the archive to 4 bytes.
func (c *cpioWriter) pad() {
	c.write(make([]byte, -c.n&3))
}

func (c *cpioWriter) write(b []byte) {
	if c.err != nil {
		return
	}
	n, err := c.w.Write(b)
	c.n += int64(n)
	if err != nil {
		c.err = fmt.Errorf("writing the archive: %w", err)
	}
}

// clean returns the name relative to the root, as the kernel's unpacker expects.
func clean(name string) string {
	if name = strings.TrimPrefix(path.Clean("/"+name), "/"); name == "" {
		return "."
	}
	return name
}
