// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// errOtherNetNS is the error for a predecessor in another network namespace. Sockets that the
// successor opened later, such as a new listen port, would be in its own namespace. The interface
// would stay in the other.
var errOtherNetNS = errors.New("the daemon is in another network namespace than this process")

// checkSocketNetNS fails if a socket is in another network namespace than the calling thread. It returns nil where the kernel does not
// report the namespace (SIOCGSKNS: Linux 4.10, CAP_NET_ADMIN).
func checkSocketNetNS(fd int) error {
	ns, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
	if err != nil {
		return nil
	}
	defer unix.Close(ns)
	var other unix.Stat_t
	if unix.Fstat(ns, &other) != nil {
		return nil
	}
	return compareNetNS(&other)
}

// checkProcessNetNS fails if a process is in another network namespace than the calling thread. Unlike checkSocketNetNS it can be
// called before the predecessor stops the tunnel. It returns nil where the namespace is unknown: the process is in another PID
// namespace (pid 0), or its /proc files cannot be read.
func checkProcessNetNS(pid int) error {
	if self, err := os.Readlink("/proc/self"); pid == 0 || err != nil || self != strconv.Itoa(os.Getpid()) {
		return nil // or /proc shows another PID namespace
	}
	var other unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &other) != nil {
		return nil
	}
	return compareNetNS(&other)
}

// compareNetNS fails if other is not the network namespace of the calling thread.
func compareNetNS(other *unix.Stat_t) error {
	var own unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/net", &own) != nil || other.Ino == own.Ino && other.Dev == own.Dev {
		return nil
	}
	return errOtherNetNS
}
