// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"fmt"
	"log/slog"
	"strings"
)

// The defaults of Config.
const (
	DefaultMTU      = 1420 // what WireGuard fits into 1500 bytes over IPv6
	DefaultQueueLen = 500
)

// MaxQueues is the largest number of queues a TUN has (MAX_TAP_QUEUES of Linux).
const MaxQueues = 256

// The bounds of Config.MTU (ETH_MIN_MTU and ETH_MAX_MTU of Linux, which bound a TUN).
const (
	minMTU = 68
	maxMTU = 65535
)

// maxName is the longest interface name in bytes (IFNAMSIZ less its zero).
const maxName = 15

// Config says how to create a Device.
type Config struct {
	// Name is the interface's name; one %d in it is replaced by the lowest free number.
	Name string
	// Queues is the number of queues; 0 is one.
	Queues int
	// MTU is the largest inner packet in bytes, 68 to 65535; 0 is DefaultMTU. Below 1280 there is no IPv6.
	MTU int
	// QueueLen is how many packets or trains wait in each queue for Read, before the kernel drops; 0 is
	// DefaultQueueLen. It bounds the delay a busy device adds.
	QueueLen int
	// NoTSO and NoUSO leave TCP and UDP trains off even where the kernel has them. There is no USO without TSO.
	NoTSO bool
	NoUSO bool
	// Linger has Read hold its processor while traffic flows (package linger).
	Linger bool
	// Log gets a line when Open has to wait for a name; nil for none.
	Log *slog.Logger
	// Persist leaves the interface, its addresses and routes where they are when the device closes or the process dies, and
	// adopts one of that name that was left so: one that is a multi-queue TUN, that no process uses, and that Open has
	// made persistent. Queues are not bound to their number before, MTU and QueueLen are set anew. Remove deletes it.
	Persist bool
}

// complete returns c with its defaults filled in, or an error for what no kernel would take.
func (c Config) complete() (Config, error) {
	c.Queues = max(c.Queues, 1)
	if c.MTU == 0 {
		c.MTU = DefaultMTU
	}
	if c.QueueLen == 0 {
		c.QueueLen = DefaultQueueLen
	}
	if c.Queues > MaxQueues {
		return c, fmt.Errorf("opening %d queues: a TUN has at most %d", c.Queues, MaxQueues)
	}
	if c.MTU < minMTU || c.MTU > maxMTU {
		return c, fmt.Errorf("MTU %d is not one of a TUN, which are %d to %d", c.MTU, minMTU, maxMTU)
	}
	return c, checkName(c.Name)
}

// checkName applies the kernel's rules for interface names (dev_valid_name, devinet_sysctl_register), which it
// reports as a bare EINVAL.
func checkName(name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return fmt.Errorf("interface name %q is not a name", name)
	case name == "all" || name == "default":
		return fmt.Errorf("interface name %q is reserved: /proc/sys/net/ipv4/conf has it for another use", name)
	case len(name) > maxName:
		return fmt.Errorf("interface name %q is %d bytes long, at most %d are allowed", name, len(name), maxName)
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == '/' || r == ':' }):
		return fmt.Errorf("interface name %q has a space, slash, colon or control character", name)
	case strings.Contains(name, "%") && (strings.Count(name, "%") != 1 || !strings.Contains(name, "%d")):
		return fmt.Errorf("interface name %q may have one %%d and no other %%", name)
	}
	return nil
}
