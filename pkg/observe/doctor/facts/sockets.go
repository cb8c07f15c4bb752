// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// sockets lists the UDP sockets of the thread's network namespace. It needs a kernel with udp_diag
// (CONFIG_INET_UDP_DIAG).
func sockets() ([]Socket, error) {
	var all []Socket
	for _, family := range hostnet.Families() {
		list, err := hostnet.Dump(func() ([]*netlink.Socket, error) { return netlink.SocketDiagUDP(uint8(family)) })
		if err != nil {
			return nil, fmt.Errorf("listing the %s UDP sockets: %w", family, err)
		}
		for _, s := range list {
			addr, _ := netip.AddrFromSlice(s.ID.Source)
			all = append(all, Socket{Addr: netip.AddrPortFrom(addr.Unmap(), s.ID.SourcePort), Inode: uint64(s.INode)})
		}
	}
	return all, nil
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
