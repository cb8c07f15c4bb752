// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// persistentAlias is the ifalias of interfaces that Open has made persistent. Interfaces without it belong to other
// programs.
const persistentAlias = "ropewalk: persistent"

// The reasons for which an existing interface is neither reused nor removed.
var (
	errNotReusable = errors.New("not a persistent interface of ropewalk")
	errInUse       = errors.New("the interface is in use")
)

// attachFirst creates the interface with its first queue, or reuses a persistent one.
func attachFirst(c *Config) (fd int, name string, err error) {
	fd, name, err = attachQueue(c.Name, true)
	if !c.Persist || !errors.Is(err, unix.EBUSY) {
		return fd, name, err
	}
	if _, err := findPersistent(c.Name, 0); err != nil {
		return -1, "", fmt.Errorf("reusing interface %s: %w", c.Name, err)
	}
	if fd, name, err = attachQueue(c.Name, false); err != nil {
		return -1, "", err
	}
	l, err := findPersistent(c.Name, 1)
	if err != nil { // another process attached at the same time
		_ = unix.Close(fd)
		return -1, "", fmt.Errorf("reusing interface %s: %w", c.Name, err)
	}
	if c.keepMTU {
		c.MTU = l.Attrs().MTU
	}
	return fd, name, nil
}

// findPersistent returns the persistent interface of that name if at most that many of its queues are in use. Errors
// satisfy errors.Is(err, syscall.EBUSY), except netlink.LinkNotFoundError.
func findPersistent(name string, queues int) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("finding interface %s: %w", name, err)
	}
	t, ok := l.(*netlink.Tuntap)
	const flags = netlink.TUNTAP_MULTI_QUEUE
	switch {
	case !ok, t.Mode != netlink.TUNTAP_MODE_TUN, t.NonPersist, t.Attrs().Alias != persistentAlias, t.Flags&flags == 0:
		return nil, fmt.Errorf("%w: %w", errNotReusable, syscall.EBUSY)
	case t.Queues > queues:
		return nil, fmt.Errorf("%w: %d of its queues are open, probably in another process: %w", errInUse, t.Queues-queues, syscall.EBUSY)
	}
	return l, nil
}

// markPersistent marks the interface, so that Open may reuse it.
func (l *link) markPersistent() error {
	if err := l.handle.LinkSetAlias(l.ref(), persistentAlias); err != nil {
		return fmt.Errorf("marking the interface as persistent: %w", err)
	}
	return nil
}

// persist makes the interface stay after its descriptors are closed.
func (d *device) persist() error {
	if err := unix.IoctlSetInt(d.queues[0].fd, unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("making interface %s persistent: %w", d.name, err)
	}
	return nil
}

// HoldCarrier keeps the carrier of a persistent interface until the result is closed, also while no process serves the interface. Without
// a carrier some hosts skip its routes (the sysctl ignore_routes_with_linkdown), or remove them. The result is a queue that is detached: it gets no packets.
// It does not prevent Open, Remove or the deletion of the interface. The interface must be in the network namespace of the calling thread.
func HoldCarrier(name string) (io.Closer, error) {
	fd, err := detachedQueue(name)
	if err != nil {
		return nil, fmt.Errorf("holding the carrier of interface %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func detachedQueue(name string) (int, error) {
	if _, err := findPersistent(name, MaxQueues); err != nil {
		return -1, err
	}
	fd, _, err := attachQueue(name, false)
	if err != nil {
		return -1, err
	}
	request, err := unix.NewIfreq("")
	if err == nil { // at once: a daemon may be serving the interface, and packets would wait in this queue
		request.SetUint16(unix.IFF_DETACH_QUEUE)
		err = unix.IoctlIfreq(fd, unix.TUNSETQUEUE, request)
	}
	if err == nil {
		_, err = findPersistent(name, MaxQueues) // it may have been deleted, and created by attachQueue
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// Remove deletes a persistent interface, in the network namespace of the calling thread. A daemon that serves it notices, and ends. An
// interface that Open has not made persistent is an error that satisfies errors.Is(err, syscall.EBUSY). A missing interface is no
// error.
func Remove(name string) error {
	l, err := findPersistent(name, MaxQueues)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(l)
	}
	if err != nil {
		return fmt.Errorf("removing interface %s: %w", name, err)
	}
	return nil
}
