// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

var (
	errExited = errors.New("the function ended its goroutine")
	errClosed = errors.New("the lab is closed")
)

// Host is one network namespace, mounted under /run/netns so that `ip netns exec` finds it. Its methods may be called
// by any goroutine until its Lab is closed.
type Host struct {
	name string

	mu        sync.Mutex
	ns        netns.NsHandle
	cableEnds int // number of cable ends created; gives the next device name
}

// Host creates a host. The name is 1 to 16 lower-case letters or digits and unique in the Lab. The loopback is up.
func (l *Lab) Host(name string) (*Host, error) {
	if !validName(name) {
		return nil, fmt.Errorf("creating host %q: not 1 to 16 lower-case letters or digits", name)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, fmt.Errorf("creating host %s: %w", name, errClosed)
	}
	h := &Host{name: l.name + "-" + name, ns: netns.None()}
	if _, err := os.Lstat(h.Path()); err == nil {
		return nil, fmt.Errorf("creating host %s: the lab already has a host of that name", name)
	}
	if err := h.create(); err != nil {
		return nil, errors.Join(fmt.Errorf("creating host %s: %w", name, explain(err)), h.close())
	}
	l.hosts = append(l.hosts, h)
	return h, nil
}

// Name returns the namespace's name, as `ip netns` lists it.
func (h *Host) Name() string { return h.name }

// Path returns the path at which the namespace is mounted.
func (h *Host) Path() string { return filepath.Join(netnsDir, h.name) }

// Do runs f with the calling thread in the host's namespace and returns its error. Sockets that f opens stay in the
// namespace; goroutines that it starts do not run in it.
func (h *Host) Do(f func() error) error {
	fd, err := h.dup()
	if err != nil {
		return fmt.Errorf("entering %s: %w", h.name, err)
	}
	defer fd.Close()
	return onThread(func() error {
		if err := netns.Set(fd); err != nil {
			return fmt.Errorf("entering %s: %w", h.name, explain(err))
		}
		return f()
	})
}

// SetUp adds addresses to a device in the host, sets its MTU, and brings it up. IPv6 addresses skip duplicate address
// detection, and can be used at once if the device has a carrier. An mtu of 0 keeps the device's MTU.
func (h *Host) SetUp(device string, mtu int, addrs ...netip.Prefix) error {
	return h.netlink(func(nl *netlink.Handle) error {
		link, err := nl.LinkByName(device)
		if err != nil {
			return fmt.Errorf("finding %s in %s: %w", device, h.name, err)
		}
		for _, a := range addrs {
			if err := addAddress(nl, link, a); err != nil {
				return fmt.Errorf("adding %s to %s in %s: %w", a, device, h.name, err)
			}
		}
		if mtu != 0 {
			if err := nl.LinkSetMTU(link, mtu); err != nil {
				return fmt.Errorf("setting the MTU of %s in %s to %d: %w", device, h.name, mtu, err)
			}
		}
		if err := nl.LinkSetUp(link); err != nil {
			return fmt.Errorf("bringing up %s in %s: %w", device, h.name, err)
		}
		if err := awaitLocal(nl, device, addrs); err != nil {
			return fmt.Errorf("bringing up %s in %s: %w", device, h.name, err)
		}
		return nil
	})
}

// localTimeout bounds the wait for a work item of the kernel.
const localTimeout = 20 * time.Second

// awaitLocal returns when the host receives what is sent to the IPv6 addresses. The kernel adds their local routes in a work item
// (addrconf_dad_work in net/ipv6/addrconf.c), and forwards such packets before. Without a carrier it does not begin.
func awaitLocal(nl *netlink.Handle, device string, addrs []netip.Prefix) error {
	link, err := nl.LinkByName(device)
	if err != nil || link.Attrs().RawFlags&unix.IFF_LOWER_UP == 0 {
		return err
	}
	deadline := time.Now().Add(localTimeout)
	for _, a := range addrs {
		for a.Addr().Is6() {
			routes, err := nl.RouteGet(a.Addr().AsSlice())
			if err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("no local route to %v after %v", a.Addr(), localTimeout)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

func addAddress(nl *netlink.Handle, link netlink.Link, a netip.Prefix) error {
	addr, err := netlink.ParseAddr(a.String())
	if err != nil {
		return err
	}
	if a.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	return nl.AddrAdd(link, addr)
}

func (h *Host) create() error {
	if err := shareNamespaces(); err != nil {
		return err
	}
	err := onThread(func() (err error) {
		h.ns, err = netns.NewNamed(h.name)
		return err
	})
	if err != nil {
		return err
	}
	return h.SetUp("lo", 0)
}

// netlink calls f with a netlink socket in the host's namespace.
func (h *Host) netlink(f func(*netlink.Handle) error) error {
	fd, err := h.dup()
	if err != nil {
		return fmt.Errorf("opening netlink in %s: %w", h.name, err)
	}
	defer fd.Close()
	return onNetlink(fd, f)
}

func onNetlink(ns netns.NsHandle, f func(*netlink.Handle) error) error {
	var nl *netlink.Handle
	// NewHandleAt restores the thread's namespace, but ignores a failure to do so. onThread handles that failure.
	err := onThread(func() (err error) {
		nl, err = netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return fmt.Errorf("opening netlink: %w", explain(err))
	}
	defer nl.Close()
	return f(nl)
}

// dup returns a duplicate of the namespace's descriptor, which stays open when the Lab is closed.
func (h *Host) dup() (netns.NsHandle, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ns.IsOpen() {
		return netns.None(), errClosed
	}
	fd, err := unix.FcntlInt(uintptr(h.ns), unix.F_DUPFD_CLOEXEC, 0)
	return netns.NsHandle(fd), err
}

func (h *Host) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := removeNamespace(h.name)
	if h.ns.IsOpen() {
		err = errors.Join(err, h.ns.Close())
	}
	return err
}

func (h *Host) nextDevice() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cableEnds++
	return fmt.Sprintf("cable%d", h.cableEnds-1)
}

// onThread runs f on a locked thread and then restores the thread's namespace, even if f ends its goroutine. If restoring
// fails, the thread stays locked and ends with the goroutine, so no other goroutine runs in the wrong namespace.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errExited
		defer func() { done <- err }()
		runtime.LockOSThread()
		original, nsErr := netns.Get()
		if nsErr != nil {
			err = fmt.Errorf("reading the thread's namespace: %w", nsErr)
			return
		}
		defer func() {
			if netns.Set(original) == nil {
				runtime.UnlockOSThread()
			}
			original.Close()
		}()
		err = f()
	}()
	return <-done
}

// RemoveLink deletes a device of the host.
func (h *Host) RemoveLink(device string) error {
	return h.netlink(func(nl *netlink.Handle) error {
		link, err := nl.LinkByName(device)
		if err != nil {
			return err
		}
		return nl.LinkDel(link)
	})
}

// removeLinks deletes the devices of the namespace at path. The kernel would delete them too, but only later, and the other
// ends of their cables would stay until then.
func removeLinks(path string) error {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	return onNetlink(ns, func(nl *netlink.Handle) error {
		links, err := listLinks(nl)
		if err != nil {
			return fmt.Errorf("listing devices: %w", err)
		}
		for _, link := range links {
			// Devices that cannot be deleted (lo, the fallback tunnel devices) disappear with the namespace.
			_ = nl.LinkDel(link)
		}
		return nil
	})
}

// listLinks lists the devices, and tries again if a concurrent change interrupted the netlink dump.
func listLinks(nl *netlink.Handle) ([]netlink.Link, error) {
	for range 10 {
		links, err := nl.LinkList()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return links, err
		}
	}
	return nil, netlink.ErrDumpInterrupted
}
