// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// A Namespace is a network namespace, by its inode in the kernel's nsfs. 0 is an unknown one.
type Namespace uint64

// CurrentNamespace returns the network namespace of the calling thread.
func CurrentNamespace() (Namespace, error) {
	ns, err := namespaceAt("/proc/thread-self/ns/net")
	if err != nil {
		return 0, fmt.Errorf("identifying the network namespace: %w", err)
	}
	return ns, nil
}

func namespaceAt(path string) (Namespace, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, err
	}
	return Namespace(st.Ino), nil
}

// namedNamespaces is where ip-netns(8) keeps its namespaces.
const namedNamespaces = "/run/netns"

// path returns a file of the namespace: one of ip-netns, else one of a process.
func (n Namespace) path() (string, error) {
	for _, pattern := range []string{namedNamespaces + "/*", "/proc/[0-9]*/ns/net"} {
		paths, _ := filepath.Glob(pattern) // fails for malformed patterns only
		for _, path := range paths {
			if at, err := namespaceAt(path); err == nil && at == n {
				return path, nil
			}
		}
	}
	return "", errors.New("no visible process and no name of ip-netns(8) belongs to it")
}

// String returns the name that ip-netns(8) knows, else a process in the namespace, else the inode as readlink(1) prints it.
func (n Namespace) String() string {
	path, err := n.path()
	if err != nil {
		return fmt.Sprintf("net:[%d]", uint64(n))
	}
	if name, ok := strings.CutPrefix(path, namedNamespaces+"/"); ok {
		return name
	}
	return "of process " + strings.Split(path, "/")[2]
}

// Enter returns a command prefix that executes a program in the namespace.
func (n Namespace) Enter() string {
	path, err := n.path()
	if err != nil {
		path = "FILE"
	}
	if name, ok := strings.CutPrefix(path, namedNamespaces+"/"); ok {
		return "ip netns exec " + name
	}
	return "nsenter --net=" + path
}

// Do calls f on a thread in the namespace. It needs CAP_SYS_ADMIN.
func (n Namespace) Do(f func() error) error {
	path, err := n.path()
	if err == nil {
		err = n.do(path, f)
	}
	if err != nil {
		return fmt.Errorf("in network namespace %s: %w", n, err)
	}
	return nil
}

func (n Namespace) do(path string, f func() error) error {
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &st); err != nil {
		return err
	}
	if Namespace(st.Ino) != n { // the process has moved, or the name was given to another one
		return fmt.Errorf("%s has become another namespace", path)
	}
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("entering it: %w", err)
			return
		}
		result <- f()
	}()
	return <-result
}
