// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// sockets lists the UDP sockets of the thread's network namespace.
func (s source) sockets() ([]Socket, error) {
	var all []Socket
	for _, file := range []string{"udp", "udp6"} {
		text, err := s.text("proc/thread-self/net/" + file)
		if errors.Is(err, fs.ErrNotExist) && file == "udp6" { // no IPv6
			continue
		}
		if err != nil {
			return nil, err
		}
		list, err := parseSockets(text)
		if err != nil {
			return nil, fmt.Errorf("reading /proc/net/%s: %w", file, err)
		}
		all = append(all, list...)
	}
	return all, nil
}

// parseSockets reads /proc/net/udp or udp6 (proc_pid_net(5)). The first line is a heading.
func parseSockets(text string) ([]Socket, error) {
	var list []Socket
	_, text, _ = strings.Cut(text, "\n")
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) < 10 {
			return nil, fmt.Errorf("invalid socket line %q", shorten(line))
		}
		addr, err := parseSocketAddr(fields[1])
		if err != nil {
			return nil, err
		}
		inode, err := strconv.ParseUint(fields[9], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("invalid inode %q", shorten(fields[9]))
		}
		list = append(list, Socket{Addr: addr, Inode: inode})
	}
	return list, nil
}

// parseSocketAddr reads "0100007F:CA6C": 32-bit words in native byte order, and the port.
func parseSocketAddr(text string) (netip.AddrPort, error) {
	bad := fmt.Errorf("invalid address %q", shorten(text))
	word, portHex, ok := strings.Cut(text, ":")
	b, err := hex.DecodeString(word)
	port, portErr := strconv.ParseUint(portHex, 16, 16)
	if !ok || err != nil || portErr != nil || len(b)%4 != 0 {
		return netip.AddrPort{}, bad
	}
	for i := 0; i < len(b); i += 4 { // all supported architectures are little-endian
		slices.Reverse(b[i : i+4])
	}
	addr, ok := netip.AddrFromSlice(b)
	if !ok {
		return netip.AddrPort{}, bad
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), nil
}

// setOwners sets the process of each wanted socket. Processes of other users need CAP_SYS_PTRACE.
func (s source) setOwners(list []Socket, wanted func(Socket) bool) {
	byLink := map[string]int{}
	for i, socket := range list {
		if wanted(socket) && socket.Inode != 0 {
			byLink[fmt.Sprintf("socket:[%d]", socket.Inode)] = i
		}
	}
	if len(byLink) == 0 {
		return
	}
	s.processes(func(pid int, comm string) {
		dir := fmt.Sprintf("proc/%d/fd", pid)
		names, _ := s.names(dir)
		for _, name := range names {
			target, err := fs.ReadLink(s.root, dir+"/"+name)
			if i, ok := byLink[target]; ok && err == nil {
				list[i].PID, list[i].Process = pid, comm
			}
		}
	})
}

// processes calls f for each visible process.
func (s source) processes(f func(pid int, comm string)) {
	names, _ := s.names("proc")
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if comm, err := s.text("proc/" + name + "/comm"); err == nil {
			f(pid, shorten(comm))
		}
	}
}

// isRunning reports whether a process with this name exists.
func (s source) isRunning(name string) (found bool, err error) {
	if _, err := s.names("proc"); err != nil {
		return false, err
	}
	s.processes(func(_ int, comm string) { found = found || comm == name })
	return found, nil
}
