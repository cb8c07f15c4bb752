// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"fmt"
	"log/slog"
	"strings"
)

// DefaultMTU is the default of Config.MTU: what WireGuard fits into 1500 bytes over IPv6.
const DefaultMTU = 1420

// kernelQueueLen is the length in packets or trains that the kernel gives the queues of a new TUN (TUN_READQ_SIZE).
const kernelQueueLen = 500

// QueueLen returns the number of packets or trains that each of n queues holds for Read before the
// kernel drops (txqueuelen). A length that was set by hand has precedence. Their sum bounds the
// memory, as one train may have 64 KiB. A reader that empties the queues bounds the delay.
func QueueLen(n int) int { return max(8192/max(n, 2), kernelQueueLen) }

// MaxQueues is the largest number of queues of a TUN device (MAX_TAP_QUEUES in Linux).
const MaxQueues = 256

// The bounds of Config.MTU (ETH_MIN_MTU and ETH_MAX_MTU of Linux, which bound a TUN).
const (
	minMTU = 68
	maxMTU = 65535
)

// maxNameLen is the longest interface name in bytes (IFNAMSIZ less its zero).
const maxNameLen = 15

// Config holds the parameters of Open.
type Config struct {
	// Name is the interface's name; one %d in it is replaced by the lowest free number.
	Name string
	// Queues is the number of queues; 0 means one.
	Queues int
	// MTU is the largest inner packet in bytes, 68 to 65535; 0 means DefaultMTU. Below 1280 the interface has no
	// IPv6.
	MTU int
	// NoTSO and NoUSO disable TCP and UDP trains even where the kernel supports them. USO requires TSO.
	NoTSO bool
	NoUSO bool
	// BusyPoll lets Read busy-poll while traffic flows (package busypoll).
	BusyPoll bool
	// Log receives a message when Open waits for a name, and at level debug when it cannot find the interface's namespace. nil disables
	// it.
	Log *slog.Logger
	// Persist keeps the interface with its addresses and routes when the device closes or the
	// process exits (TUNSETPERSIST). Open then reuses an existing interface of that name, if it is
	// a multi-queue TUN that no process uses and Open has made persistent before. The number of
	// queues may differ from before. MTU is set again, or kept if it is 0. Remove deletes the
	// interface.
	Persist bool

	keepMTU bool // of a reused interface
}

// complete returns c with its defaults filled in, or an error for values that no kernel accepts.
func (c Config) complete() (Config, error) {
	c.Queues = max(c.Queues, 1)
	if c.MTU == 0 {
		c.MTU, c.keepMTU = DefaultMTU, true
	}
	if c.Queues > MaxQueues {
		return c, fmt.Errorf("opening %d queues: a TUN device has at most %d", c.Queues, MaxQueues)
	}
	if c.MTU < minMTU || c.MTU > maxMTU {
		return c, fmt.Errorf("MTU %d is out of range: a TUN device allows %d to %d", c.MTU, minMTU, maxMTU)
	}
	return c, CheckName(c.Name)
}

// CheckName returns an error for names that the kernel refuses for interfaces (dev_valid_name,
// devinet_sysctl_register), itself only with EINVAL. One "%d" stands for a number that the kernel
// chooses. A valid name is also valid for a file in a directory.
func CheckName(name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return fmt.Errorf("interface name %q is invalid", name)
	case name == "all" || name == "default":
		return fmt.Errorf("interface name %q is reserved in /proc/sys/net/ipv4/conf", name)
	case len(name) > maxNameLen:
		return fmt.Errorf("interface name %q is %d bytes long, at most %d are allowed", name, len(name), maxNameLen)
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == '/' || r == ':' }):
		return fmt.Errorf("interface name %q contains a space, slash, colon or control character", name)
	case strings.Contains(name, "%") && (strings.Count(name, "%") != 1 || !strings.Contains(name, "%d")):
		return fmt.Errorf("interface name %q may contain one %%d and no other %%", name)
	}
	return nil
}
