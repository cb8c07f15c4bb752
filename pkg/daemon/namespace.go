// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// errElsewhere says that the other daemon is in another network namespace: what is opened later, such as another port, would be here,
// and what there is stays there.
var errElsewhere = errors.New("the daemon is in another network namespace than this process")

// livesHere looks whether a socket is of the calling thread's network namespace. Where that cannot be known (SIOCGSKNS, Linux 4.10,
// CAP_NET_ADMIN) it is taken for granted.
func livesHere(fd int) error {
	ns, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
	if err != nil {
		return nil
	}
	defer unix.Close(ns)
	var there unix.Stat_t
	if unix.Fstat(ns, &there) != nil {
		return nil
	}
	return isHere(&there)
}

// worksHere looks whether a process is in the calling thread's network namespace. It is asked before the tunnel stops, and livesHere
// once it is here. Where that cannot be known, as the process is in another PID namespace (0) or its files are not to be seen, it
// is taken for granted.
func worksHere(pid int) error {
	if self, err := os.Readlink("/proc/self"); pid == 0 || err != nil || self != strconv.Itoa(os.Getpid()) {
		return nil // or the filesystem numbers processes otherwise than the kernel tells us
	}
	var there unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &there) != nil {
		return nil
	}
	return isHere(&there)
}

func isHere(there *unix.Stat_t) error {
	var here unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/net", &here) != nil || there.Ino == here.Ino && there.Dev == here.Dev {
		return nil
	}
	return errElsewhere
}
