// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// abroad hears what happens to an interface in other network namespaces, from a socket in its first one
// (NETLINK_LISTEN_ALL_NSID, Linux 4.2): one in theirs would keep them alive. The kernel tells it of namespaces that have
// a number in the socket's, and tells nobody without CAP_NET_BROADCAST. That a namespace comes to its end it does not
// tell: the number goes first.
type abroad struct {
	handle   *netlink.Handle // for the numbers
	listener                 // in no group while the interface is at home
	heard    chan struct{}   // has a token when something may have happened

	nsid, index atomic.Int64 // what to hear of, anyone while nsid is anywhere
}

// anywhere is no number of a namespace.
const anywhere = -1

// openAbroad is for the namespace of the calling thread.
func openAbroad() (*abroad, error) {
	if !canHearAll() {
		return nil, fmt.Errorf("listening to other namespaces: %w (needs CAP_NET_BROADCAST)", unix.EPERM)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	a := &abroad{listener: listener{socket: os.NewFile(uintptr(fd), "netlink")}, heard: make(chan struct{}, 1)}
	// Without an address, the socket passes for the kernel, which does not hear itself.
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listening to other namespaces: %w", err), a.socket.Close())
	}
	if a.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, errors.Join(fmt.Errorf("opening a netlink socket: %w", err), a.socket.Close())
	}
	return a, nil
}

func canHearAll() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_NET_BROADCAST) != 0
}

func (a *abroad) close() {
	a.handle.Close()
	_ = a.socket.Close()
}

// begin starts to listen: to changes of links, and to new addresses, which the kernel may make later than it reports the
// change that makes it do so.
func (a *abroad) begin() error {
	a.nsid.Store(anywhere)
	if err := a.eachGroup(unix.NETLINK_ADD_MEMBERSHIP); err != nil {
		return fmt.Errorf("subscribing to link changes: %w", errors.Join(err, a.eachGroup(unix.NETLINK_DROP_MEMBERSHIP)))
	}
	if err := a.listener.begin(16<<10, a.hear); err != nil {
		return errors.Join(err, a.eachGroup(unix.NETLINK_DROP_MEMBERSHIP))
	}
	return nil
}

// end stops listening. What is left to be read is for nobody, and harmless to begin's next listener.
func (a *abroad) end() {
	_ = a.eachGroup(unix.NETLINK_DROP_MEMBERSHIP)
	a.listener.end()
}

func (a *abroad) eachGroup(option int) error {
	raw, err := a.socket.SyscallConn()
	if err != nil {
		return err
	}
	var errs []error
	err = raw.Control(func(fd uintptr) {
		for _, group := range []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV6_IFADDR} {
			errs = append(errs, unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, option, group))
		}
	})
	return errors.Join(append(errs, err)...)
}

// heed narrows what is heard to the interface of that index in that namespace, and to the interface's return home. The
// namespace gets a number if it has none yet.
func (a *abroad) heed(ns netns.NsHandle, index int) error {
	number, err := a.handle.GetNetNsIdByFd(int(ns))
	if err == nil && number == anywhere {
		if err = a.handle.SetNetNsIdByFd(int(ns), anywhere); err == nil || errors.Is(err, unix.EEXIST) {
			number, err = a.handle.GetNetNsIdByFd(int(ns))
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("numbering a namespace: %w", err)
	case number == anywhere:
		return fmt.Errorf("numbering a namespace: %w", unix.ENOENT)
	}
	a.index.Store(int64(index))
	a.nsid.Store(int64(number))
	return nil
}

// hear leaves a token for what concerns the interface, and for messages that the kernel had to discard.
func (a *abroad) hear(message, control []byte, err error) (more bool) {
	if err != nil || a.concerns(message, control) {
		select {
		case a.heard <- struct{}{}:
		default:
		}
	}
	return true
}

// concerns tells whether a message may be about the interface. One that cannot be read may.
func (a *abroad) concerns(message, control []byte) bool {
	all, err := syscall.ParseNetlinkMessage(message)
	if err != nil {
		return true
	}
	number, foreign := origin(control)
	watched := a.nsid.Load()
	for i := range all {
		kind, data := all[i].Header.Type, all[i].Data
		switch {
		case len(data) < 8: // struct ifinfomsg, struct ifaddrmsg: the index follows four bytes
		case !foreign && kind == unix.RTM_NEWLINK, foreign && watched == anywhere:
			return true
		case foreign && number == watched && int64(binary.NativeEndian.Uint32(data[4:])) == a.index.Load():
			return true
		}
	}
	return false
}

// origin returns the number of the namespace that a message is from; the socket's own has none.
func origin(control []byte) (number int64, foreign bool) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return anywhere, false
	}
	for _, c := range messages {
		if c.Header.Level == unix.SOL_NETLINK && c.Header.Type == unix.NETLINK_LISTEN_ALL_NSID && len(c.Data) >= 4 {
			number = int64(int32(binary.NativeEndian.Uint32(c.Data)))
			return number, number != anywhere
		}
	}
	return anywhere, false
}
