// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// udpOwner is the owner of a UDP port. Sockets of the kernel have no process.
type udpOwner struct {
	inode   uint64
	process string // "wireguard-go (process 123)", empty if unknown
}

// udpPorts returns the bound UDP ports of the calling thread's network namespace.
func udpPorts() (map[uint16]udpOwner, error) {
	owners := map[uint16]udpOwner{}
	for _, name := range []string{"udp", "udp6"} {
		f, err := os.Open("/proc/thread-self/net/" + name)
		if errors.Is(err, fs.ErrNotExist) && name == "udp6" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("listing UDP sockets: %w", err)
		}
		err = readSockets(f, owners)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("listing UDP sockets: %w", err)
		}
	}
	return owners, nil
}

// readSockets parses the kernel's table (Linux, Documentation/networking/proc_net_tcp.rst). It skips lines that it cannot
// parse, such as the heading.
func readSockets(r io.Reader, owners map[uint16]udpOwner) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 {
			continue
		}
		_, hex, _ := strings.Cut(fields[1], ":")
		port, err := strconv.ParseUint(hex, 16, 16)
		inode, inodeErr := strconv.ParseUint(fields[9], 10, 64)
		if err == nil && inodeErr == nil {
			owners[uint16(port)] = udpOwner{inode: inode}
		}
	}
	return lines.Err()
}

// findProcess returns the process that has a socket, or "" if none is found among the processes
// that this one may inspect.
func findProcess(inode uint64) string {
	want := fmt.Sprintf("socket:[%d]", inode)
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to == want {
			dir := filepath.Dir(filepath.Dir(link))
			name, _ := os.ReadFile(filepath.Join(dir, "comm"))
			return fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(name)), filepath.Base(dir))
		}
	}
	return ""
}
