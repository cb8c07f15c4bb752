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

// nsidSubscription receives events of an interface in other network namespaces, from a socket in its original one
// (NETLINK_LISTEN_ALL_NSID, Linux 4.2). A socket in the other namespace would keep that namespace alive. The kernel
// delivers events only from namespaces that have an nsid in the socket's namespace, and only with CAP_NET_BROADCAST.
// It does not report the end of a namespace, because it removes the nsid first.
type nsidSubscription struct {
	netlink  *netlink.Handle // to query and assign nsids
	listener                 // member of no group while the interface is in its original namespace
	events   chan struct{}   // has a token when the interface may have changed

	nsid, index atomic.Int64 // the filter; none while nsid is anywhere
}

// nsidNotAssigned is the kernel's NETNSA_NSID_NOT_ASSIGNED.
const nsidNotAssigned = -1

// openNSIDSubscription opens the socket in the network namespace of the calling thread.
func openNSIDSubscription() (*nsidSubscription, error) {
	if !hasNetBroadcast() {
		return nil, fmt.Errorf("subscribing to events of other namespaces: %w (needs CAP_NET_BROADCAST)", unix.EPERM)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	a := &nsidSubscription{listener: listener{socket: os.NewFile(uintptr(fd), "netlink")}, events: make(chan struct{}, 1)}
	// Unbound, the socket has the kernel's port id, to which the kernel sends no events.
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("subscribing to events of other namespaces: %w", err), a.socket.Close())
	}
	if a.netlink, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, errors.Join(fmt.Errorf("opening a netlink socket: %w", err), a.socket.Close())
	}
	return a, nil
}

func hasNetBroadcast() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_NET_BROADCAST) != 0
}

func (s *nsidSubscription) close() {
	s.netlink.Close()
	_ = s.socket.Close()
}

// subscribe joins the groups of link changes and IPv6 addresses. The kernel may add an address later than it reports
// the link change that causes it.
func (s *nsidSubscription) subscribe() error {
	s.nsid.Store(nsidNotAssigned)
	if err := s.eachGroup(unix.NETLINK_ADD_MEMBERSHIP); err != nil {
		return fmt.Errorf("subscribing to link changes: %w", errors.Join(err, s.eachGroup(unix.NETLINK_DROP_MEMBERSHIP)))
	}
	if err := s.start(16<<10, s.handle); err != nil {
		return errors.Join(err, s.eachGroup(unix.NETLINK_DROP_MEMBERSHIP))
	}
	return nil
}

// unsubscribe leaves the groups and stops reading. Unread messages may reach the next subscribe, which is harmless.
func (s *nsidSubscription) unsubscribe() {
	_ = s.eachGroup(unix.NETLINK_DROP_MEMBERSHIP)
	s.stop()
}

func (s *nsidSubscription) eachGroup(option int) error {
	raw, err := s.socket.SyscallConn()
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

// filter limits the events to the interface with that index in that namespace, and to the interface's return to the
// original namespace. It assigns an nsid if the namespace has none.
func (s *nsidSubscription) filter(ns netns.NsHandle, index int) error {
	number, err := s.netlink.GetNetNsIdByFd(int(ns))
	if err == nil && number == nsidNotAssigned {
		if err = s.netlink.SetNetNsIdByFd(int(ns), nsidNotAssigned); err == nil || errors.Is(err, unix.EEXIST) {
			number, err = s.netlink.GetNetNsIdByFd(int(ns))
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("assigning an nsid: %w", err)
	case number == nsidNotAssigned:
		return fmt.Errorf("assigning an nsid: %w", unix.ENOENT)
	}
	s.index.Store(int64(index))
	s.nsid.Store(int64(number))
	return nil
}

// handle signals an event for messages that match, and for lost messages.
func (s *nsidSubscription) handle(message, control []byte, err error) (more bool) {
	if err != nil || s.matches(message, control) {
		select {
		case s.events <- struct{}{}:
		default:
		}
	}
	return true
}

// matches reports whether a message may concern the interface. A malformed message may.
func (s *nsidSubscription) matches(message, control []byte) bool {
	all, err := syscall.ParseNetlinkMessage(message)
	if err != nil {
		return true
	}
	nsid, other := sourceNSID(control)
	watched := s.nsid.Load()
	for i := range all {
		kind, data := all[i].Header.Type, all[i].Data
		switch {
		case len(data) < 8: // struct ifinfomsg, struct ifaddrmsg: the index follows four bytes
		case !other && kind == unix.RTM_NEWLINK, other && watched == nsidNotAssigned:
			return true
		case other && nsid == watched && int64(binary.NativeEndian.Uint32(data[4:])) == s.index.Load():
			return true
		}
	}
	return false
}

// sourceNSID returns the nsid of a message's source namespace, and whether that is another namespace than the
// socket's.
func sourceNSID(control []byte) (nsid int64, other bool) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nsidNotAssigned, false
	}
	for _, c := range messages {
		if c.Header.Level == unix.SOL_NETLINK && c.Header.Type == unix.NETLINK_LISTEN_ALL_NSID && len(c.Data) >= 4 {
			nsid = int64(int32(binary.NativeEndian.Uint32(c.Data)))
			return nsid, nsid != nsidNotAssigned
		}
	}
	return nsidNotAssigned, false
}
