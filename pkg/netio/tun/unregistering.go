// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The kernel unregisters the interface of a killed process some time after the signal. It frees
// the memory first, then detaches the queues one by one with a grace period each (synchronize_net
// in __tun_detach). It unregisters the interface with the last queue. A daemon that replaces the
// killed one may still find the interface.

const (
	unregisterTimeout = 2 * time.Second
	unregisterRetry   = 20 * time.Millisecond
)

// attachFirstWithRetry is attachFirst, but waits while an interface of that name may be unregistering. An interface that a live process
// has looks the same.
func attachFirstWithRetry(c *Config) (fd int, name string, err error) {
	deadline, logged := time.Now().Add(unregisterTimeout), false
	for ; ; time.Sleep(unregisterRetry) {
		fd, name, err = attachFirst(c)
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EEXIST) || time.Now().After(deadline) || !isReusable(c.Name) {
			return fd, name, err
		}
		if !logged && c.Log != nil {
			c.Log.Info("interface name is in use, waiting until the kernel removes the interface of a process that has just ended: after the timeout the start fails",
				"interface", c.Name, "timeout", unregisterTimeout, "hint", "if it stays and no container uses it: ip link delete "+c.Name)
			logged = true
		}
	}
}

// isReusable reports whether the interface is of a kind that Open creates: deleted with its process, or persistent
// and reusable afterwards. An interface deleted meanwhile may have been.
func isReusable(name string) bool {
	l, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return true
	}
	t, ok := l.(*netlink.Tuntap)
	return ok && t.Mode == netlink.TUNTAP_MODE_TUN && t.Flags&netlink.TUNTAP_MULTI_QUEUE != 0 &&
		(t.NonPersist || t.Attrs().Alias == persistentAlias && t.Queues > 0)
}
