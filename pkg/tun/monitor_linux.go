// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	// lookAgain is how long after a change abroad there is another look: the kernel reports some before it is done.
	lookAgain = time.Second
	// blindInterval is how often the interface is looked at abroad where nothing can be heard of it.
	blindInterval = 10 * time.Second
)

// monitor follows the interface's state, also into another network namespace: creating a tunnel in one and moving it
// into another is an everyday use of WireGuard. There it only looks in when it hears of something: a socket left there
// would keep the namespace, and with it the interface, alive after the last process of its owner.
type monitor struct {
	fd     int             // of one queue, to ask where the interface is
	lost   <-chan struct{} // has a token when a queue has found that the interface is gone
	home   string          // identity of the namespace where it was made, "" before Linux 5.2
	abroad *abroad         // nil where nothing can be heard of other namespaces
	deaf   bool            // nothing is heard of the one where the interface is
	events chan Event
	last   Event // the last one sent
	done   chan struct{}
	ended  chan struct{}

	mu   sync.Mutex
	link *link // nil while the interface is away
	gone bool  // the interface, or the monitor
}

// startMonitor configures the interface and begins to follow it.
func startMonitor(fd int, lost <-chan struct{}, name string, c *Config) (*monitor, error) {
	l, err := followLink(nil, name)
	if err != nil {
		return nil, err
	}
	if err := l.configure(c); err != nil {
		l.close()
		return nil, err
	}
	m := newMonitor(fd, lost)
	m.link = l
	if at, err := m.locate(); err == nil {
		m.home = at.id
		at.close()
	}
	m.send(l.state)
	m.begin()
	return m, nil
}

func newMonitor(fd int, lost <-chan struct{}) *monitor {
	return &monitor{
		fd: fd, lost: lost, events: make(chan Event, 1), done: make(chan struct{}), ended: make(chan struct{}),
	}
}

func (m *monitor) begin() {
	var err error
	if m.abroad, err = openAbroad(); err != nil {
		m.abroad = nil // it looks at intervals then
	}
	go m.run()
}

func (m *monitor) close() {
	close(m.done)
	<-m.ended
	if m.abroad != nil {
		m.abroad.close()
	}
}

func (m *monitor) run() {
	defer close(m.ended)
	defer close(m.events)
	l := m.link
	if l == nil { // it was abroad from the beginning
		l = m.wander()
		m.settle(l, l == nil)
	}
	for l != nil {
		m.follow(l)
		m.settle(nil, false)
		l.close()
		l = m.wander()
		m.settle(l, l == nil)
	}
}

// settle says which link SetTrainLimit is to use.
func (m *monitor) settle(l *link, gone bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.link, m.gone = l, gone
}

// follow reports changes until the interface leaves the link's namespace, the subscription breaks, as it does when
// changes come faster than they are read, or the monitor is closed.
func (m *monitor) follow(l *link) {
	m.report(l, l.state)
	for {
		select {
		case <-m.done:
			return
		case c, ok := <-l.feed.changes:
			if !ok || c.gone {
				return
			}
			m.report(l, c.state)
		}
	}
}

// report sends a state that differs from the last one.
func (m *monitor) report(l *link, e Event) {
	if e.Up && !m.last.Up || e.MTU >= ipv6MinMTU && m.last.MTU < ipv6MinMTU {
		l.silence() // IPv6 may have begun anew
	}
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

// wander reports the interface's state until it is in its first namespace, and returns its link there; nil when it is gone
// or the monitor closed. An interface that lives where we may not look has no events, but an end.
func (m *monitor) wander() *link {
	select {
	case <-m.done:
		return nil
	default:
	}
	var heard <-chan struct{}
	ears := m.abroad
	if m.deaf = true; ears != nil && ears.begin() == nil {
		defer ears.end()
		heard = ears.heard
	} else {
		ears = nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for last, changed := "", true; ; {
		select {
		case <-m.done:
			return nil
		case <-m.lost:
		case <-heard:
			changed = true
		case <-timer.C:
		}
		l, at, err := m.look(last, ears)
		if l != nil || errors.Is(err, unix.EBADFD) {
			return l
		}
		last = at
		if wait := pause(changed, m.deaf || err != nil); wait != 0 {
			timer.Reset(wait)
		}
		changed = false
	}
}

// pause returns how long to wait at most before another look, 0 for ever. A look may also have failed because the
// interface was just on its way.
func pause(changed, blind bool) time.Duration {
	switch {
	case changed:
		return lookAgain
	case blind:
		return blindInterval
	}
	return 0
}

// look returns the interface's link if it is at home. Elsewhere it reports the state, silences the interface if last is
// another namespace or if something woke it since, keeps nothing open and returns the namespace's identity. ears are to
// heed it there, nil for none.
func (m *monitor) look(last string, ears *abroad) (l *link, id string, err error) {
	at, err := m.locate()
	if err != nil {
		return nil, last, err
	}
	defer at.close()
	if at.id == m.home {
		if l, err = followLink(&at.ns, at.name); err == nil {
			l.silence()
		}
		return l, at.id, err
	}
	l, err = openLink(&at.ns, at.name)
	if err != nil { // it may have moved on, or have another name, by now
		return nil, last, err
	}
	defer l.close()
	if at.id != last && ears != nil {
		m.deaf = ears.heed(at.ns, l.index) != nil
		if err := l.find(at.name); err != nil { // again, so that no change falls between
			return nil, last, err
		}
	}
	if at.id != last || l.removeKernelAddresses() {
		l.silence()
	}
	m.report(l, l.state)
	return nil, at.id, nil
}

// place is where the interface is; while it is open the namespace lives.
type place struct {
	ns   netns.NsHandle
	id   string
	name string
}

func (p *place) close() { _ = p.ns.Close() }

// locate asks the descriptor for the interface's namespace (TUNGETDEVNETNS, Linux 5.2) and name; EBADFD says that it
// was deleted, any other error passes or is about privileges. The caller closes the place.
func (m *monitor) locate() (*place, error) {
	fd, err := unix.IoctlRetInt(m.fd, unix.TUNGETDEVNETNS)
	if err != nil {
		return nil, fmt.Errorf("asking for the interface's namespace: %w", err)
	}
	ns := netns.NsHandle(fd)
	request, err := unix.NewIfreq("")
	if err == nil {
		err = unix.IoctlIfreq(m.fd, unix.TUNGETIFF, request)
	}
	if err != nil {
		_ = ns.Close()
		return nil, fmt.Errorf("asking for the interface's name: %w", err)
	}
	return &place{ns: ns, id: ns.UniqueId(), name: request.Name()}, nil
}

// setTrainLimit works at home and away. It holds the lock throughout, so that the descriptor outlives it.
func (m *monitor) setTrainLimit(bytes int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.gone:
		return os.ErrClosed
	case m.link != nil:
		return m.link.setTrainLimit(bytes)
	}
	at, err := m.locate()
	if err != nil {
		return goneOr(err)
	}
	defer at.close()
	l, err := openLink(&at.ns, at.name)
	if err != nil {
		return err
	}
	defer l.close()
	return l.setTrainLimit(bytes)
}
