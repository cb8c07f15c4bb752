// SPDX-License-Identifier: Apache-2.0

// Package netlab builds small networks out of network namespaces, for the demo, for tests and for
// benchmarks. It has hosts, multi-queue cables (veth pairs) between them, cables with a delay, a
// rate and a queue, processes inside them, and packet captures. It needs no programs such as ip,
// ethtool or tcpdump, except nft for NAT and firewalls. It never changes a device that it did not
// create, but for those given to ConnectPorts.
//
// A Lab owns everything it created, and Close removes it. Sweep removes the labs of processes that were killed.
//
// Not for other programs: it may change without notice.
package netlab

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	netnsDir = "/run/netns"
	stateDir = "/run/ropewalk/netlab"
)

// ErrPrivileges is wrapped by the errors of New when the process may not create network
// namespaces. The errors of Capture wrap it when the process may not open packet sockets in them.
var ErrPrivileges = errors.New(
	"creating network namespaces needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN, and capturing in them CAP_NET_RAW: " +
		"run it with sudo")

// Lab is a set of hosts and cables. Its methods may be called by any goroutine.
type Lab struct {
	name string
	tag  string
	lock *os.File // held (flock) for as long as the Lab lives: Sweep removes only labs without this lock

	mu     sync.Mutex
	hosts  []*Host
	here   []*Host
	ports  []port // moved into hosts
	links  []*linkCopier
	closed bool
}

// New creates an empty Lab. The names of its namespaces begin with prefix, which is 1 to 16 lower-case letters or digits:
// "demo" gives "demo-3k9fa-left". New calls Sweep first. If privileges are missing, the error wraps ErrPrivileges.
func New(prefix string) (*Lab, error) {
	if !validName(prefix) {
		return nil, fmt.Errorf("creating a lab: prefix %q is not 1 to 16 lower-case letters or digits", prefix)
	}
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return nil, fmt.Errorf("creating a lab: %w", explain(err))
	}
	if err := Sweep(); err != nil {
		return nil, err
	}
	for {
		tag := strings.ToLower(rand.Text()[:5])
		name := prefix + "-" + tag
		lock, err := claim(filepath.Join(stateDir, name))
		if err != nil {
			return nil, fmt.Errorf("creating lab %s: %w", name, explain(err))
		}
		if lock != nil {
			return &Lab{name: name, tag: tag, lock: lock}, nil
		}
	}
}

// Name returns the Lab's unique name. The namespaces of its hosts are called Name()-host.
func (l *Lab) Name() string { return l.name }

// Tag returns the five random characters of the Lab's name, for other names that must be unique until the Lab is closed.
func (l *Lab) Tag() string { return l.tag }

// Close kills the processes that still run in the Lab's hosts, and removes its devices and namespaces. Further calls do
// nothing.
func (l *Lab) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	for _, k := range l.links {
		k.close()
	}
	var errs []error
	for i := range l.ports {
		errs = append(errs, l.ports[i].giveBack())
	}
	for i := len(l.hosts) - 1; i >= 0; i-- {
		errs = append(errs, l.hosts[i].close())
	}
	for _, h := range l.here {
		errs = append(errs, h.ns.Close())
	}
	errs = append(errs, release(l.lock))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing lab %s: %w", l.name, err)
	}
	return nil
}

func validName(s string) bool {
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 16
}

// explain adds the required privileges to a permission error.
func explain(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%w (%w)", ErrPrivileges, err)
	}
	return err
}
