// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// monitor follows the interface's state, also into another network namespace: creating a tunnel in one and moving it
// into another is an everyday use of WireGuard.
type monitor struct {
	fd     int // of one queue, to ask where the interface is
	events chan Event
	last   Event // the last one sent
	done   chan struct{}
	ended  chan struct{}

	mu   sync.Mutex
	link *link // nil once the interface is gone
}

// startMonitor configures the interface and begins to follow it.
func startMonitor(fd int, name string, c *Config) (*monitor, error) {
	l, err := openLink(nil, name)
	if err != nil {
		return nil, err
	}
	if err := l.configure(c); err != nil {
		l.close()
		return nil, err
	}
	m := &monitor{
		fd: fd, link: l,
		events: make(chan Event, 1), done: make(chan struct{}), ended: make(chan struct{}),
	}
	m.send(l.state)
	go m.run()
	return m, nil
}

func (m *monitor) close() {
	close(m.done)
	<-m.ended
}

func (m *monitor) run() {
	defer close(m.ended)
	defer close(m.events)
	for l := m.link; l != nil; l = m.link {
		m.follow(l)
		next := m.rejoin()
		m.mu.Lock()
		m.link = next
		m.mu.Unlock()
		l.close()
	}
}

// follow reports changes until the interface leaves the link's namespace, the subscription breaks, as it does when
// changes come faster than they are read, or the monitor is closed.
func (m *monitor) follow(l *link) {
	m.report(l.state)
	for {
		select {
		case <-m.done:
			return
		case u, ok := <-l.updates:
			if !ok {
				return
			}
			if int(u.Index) != l.index || u.Family != unix.AF_UNSPEC {
				continue
			}
			if u.Header.Type == unix.RTM_DELLINK {
				return
			}
			m.report(stateOf(u.Attrs()))
		}
	}
}

// report sends a state that differs from the last one.
func (m *monitor) report(e Event) {
	if e != m.last {
		m.send(e)
	}
}

// send replaces an event that nobody has read yet. It never blocks, as nobody else sends.
func (m *monitor) send(e Event) {
	m.last = e
	select {
	case <-m.events:
	default:
	}
	m.events <- e
}

// relocations bounds how often rejoin asks again when the interface was moved or renamed while it looked.
const relocations = 8

// rejoin returns the link in the namespace where the interface is now; nil when it is gone or the monitor closed.
func (m *monitor) rejoin() *link {
	select {
	case <-m.done:
		return nil
	default:
	}
	for range relocations {
		l, err := m.locate()
		if err == nil {
			return l
		}
		if errors.Is(err, unix.EBADFD) {
			return nil
		}
		if !errors.As(err, new(netlink.LinkNotFoundError)) {
			break
		}
	}
	<-m.done // it lives where we may not look: no events, but not the end either
	return nil
}

// locate asks the descriptor for the interface's namespace (TUNGETDEVNETNS, Linux 5.2) and name; EBADFD says that it
// was deleted.
func (m *monitor) locate() (*link, error) {
	fd, err := unix.IoctlRetInt(m.fd, unix.TUNGETDEVNETNS)
	if err != nil {
		return nil, fmt.Errorf("asking for the interface's namespace: %w", err)
	}
	ns := netns.NsHandle(fd)
	defer ns.Close()
	request, err := unix.NewIfreq("")
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlIfreq(m.fd, unix.TUNGETIFF, request); err != nil {
		return nil, fmt.Errorf("asking for the interface's name: %w", err)
	}
	return openLink(&ns, request.Name())
}

func (m *monitor) setTrainLimit(bytes int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.link == nil {
		return os.ErrClosed
	}
	return m.link.setTrainLimit(bytes)
}
