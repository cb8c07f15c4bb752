// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

const (
	// recheckDelay is the time between an event from another namespace and a second check. The kernel sends some
	// events before the change is complete.
	recheckDelay = time.Second
	// pollInterval is the time between checks of an interface in another namespace that sends no events.
	pollInterval = 10 * time.Second
)

// monitor follows the interface's state, also into other network namespaces. Creating a WireGuard
// tunnel in one namespace and moving it into another is a common setup. In another namespace the
// monitor opens a netlink socket only for the time of a check. A permanent socket would keep the
// namespace and the interface alive after the namespace's last process.
type monitor struct {
	fd      int               // of one queue, to query the interface's namespace
	deleted <-chan struct{}   // has a token when a queue finds that the interface was deleted
	origin  string            // id of the namespace where it was opened, "" before Linux 5.2
	nsids   *nsidSubscription // nil if events of other namespaces cannot be received
	polling bool              // no events arrive from the interface's current namespace
	events  chan Event
	last    Event        // the last one sent
	log     *slog.Logger // nil for none
	index   atomic.Int32 // of the interface, 0 while it is in another namespace
	done    chan struct{}
	ended   chan struct{}

	netNS atomic.Uint64 // the interface's hostnet.Namespace at the last check, 0 if unknown

	link *link // at start; nil if the interface is in another namespace

	dropQueries chan chan uint64 // answered with drops
	drops       uint64           // of run until ended is closed; see DropCounter
}

// startMonitor configures the interface and starts to follow it.
func startMonitor(fd int, deleted <-chan struct{}, name string, c *Config) (*monitor, error) {
	l, err := followLink(nil, name)
	if err != nil {
		return nil, err
	}
	if err := l.configure(c); err != nil {
		l.close()
		return nil, err
	}
	m := newMonitor(fd, deleted, c.Log)
	m.link = l
	m.index.Store(int32(l.index))
	// On an error (Linux before 5.2, or no privilege) origin stays empty: a return of the interface to its first namespace is not
	// recognised.
	at, err := m.locate()
	switch {
	case err == nil:
		m.origin = at.id
		at.close()
	case c.Log != nil:
		c.Log.Debug("network namespace of the interface is unknown: if it is moved to another namespace and back, it still counts as moved", "interface", name, "error", err)
	}
	m.send(l.state)
	m.start()
	return m, nil
}

func newMonitor(fd int, deleted <-chan struct{}, log *slog.Logger) *monitor {
	return &monitor{
		fd: fd, deleted: deleted, log: log, events: make(chan Event, 1), done: make(chan struct{}), ended: make(chan struct{}),
		dropQueries: make(chan chan uint64),
	}
}

func (m *monitor) start() {
	var err error
	if m.nsids, err = openNSIDSubscription(); err != nil {
		m.nsids = nil // fall back to polling
	}
	if m.netNS.Load() == 0 {
		if at, err := m.locate(); err == nil { // else it stays unknown
			at.close()
		}
	}
	go m.run()
}

func (m *monitor) close() {
	close(m.done)
	<-m.ended
	if m.nsids != nil {
		m.nsids.close()
	}
}

func (m *monitor) run() {
	defer close(m.ended)
	defer close(m.events)
	if m.last.Up { // a persistent or a given interface
		m.disableRedirects()
	}
	l := m.link
	if l == nil { // the interface was in another namespace at start
		l = m.followMove()
	}
	for l != nil {
		m.follow(l)
		l.close()
		l = m.followMove()
	}
}

// follow reports changes until the interface leaves the link's namespace, the subscription ends or misses a change, or
// the monitor is closed. The subscription ends on overrun, when changes arrive faster than they are read.
func (m *monitor) follow(l *link) {
	m.index.Store(int32(l.index))
	defer m.index.Store(0)
	m.report(l, l.state)
	for {
		select {
		case <-m.done:
			m.updateDrops(l)
			return
		case answer := <-m.dropQueries:
			answer <- m.updateDrops(l)
		case <-l.missed:
			return
		case u, ok := <-l.changes:
			switch {
			case !ok, l.isAbout(&u) && u.Header.Type == unix.RTM_DELLINK:
				return
			case l.isAbout(&u):
				m.report(l, eventOf(u.Attrs()))
			}
		}
	}
}

// report sends a state that differs from the last one.
func (m *monitor) report(l *link, e Event) {
	if e.Up && !m.last.Up || e.MTU >= packet.IPv6MinMTU && m.last.MTU < packet.IPv6MinMTU {
		l.disableLinkLocal() // Linux deletes the IPv6 state below this MTU, and creates it anew above
	}
	if e.Up && !m.last.Up {
		m.disableRedirects()
	}
	if e != m.last {
		m.send(e)
	}
}

// disableRedirects stops the kernel from sending ICMP redirects for packets that it forwards from one peer to another one.
func (m *monitor) disableRedirects() {
	at, err := m.locate()
	if err != nil {
		return // without the privilege to enter the namespace
	}
	defer at.close()
	at.run(func() {
		all, err := hostnet.DisableRedirects(at.name)
		switch log := m.log; {
		case log == nil:
		case err != nil && hostnet.Forwards(at.name):
			log.Warn("disabling ICMP redirects failed: hosts get them if this host forwards packets from one peer to another one", "interface", at.name, "error", err)
		case all:
			log.Info("ICMP redirects disabled in this network namespace, as by the in-kernel WireGuard", "interface", at.name, "sysctl", "net.ipv4.conf.all.send_redirects")
		}
	})
}

// send replaces an unread event. It never blocks, because the monitor is the only sender.
func (m *monitor) send(e Event) {
	m.last = e
	select {
	case <-m.events:
	default:
	}
	m.events <- e
}

// followMove reports the interface's state until it is back in its original namespace, and returns its link there. It
// returns nil when the interface was deleted or the monitor closed. Without the privilege to enter the interface's
// namespace there are no events, except that the channel is closed at the end.
func (m *monitor) followMove() *link {
	select {
	case <-m.done:
		return nil
	default:
	}
	var events <-chan struct{}
	nsids := m.nsids
	if m.polling = true; nsids != nil && nsids.subscribe() == nil {
		defer nsids.unsubscribe()
		events = nsids.events
	} else {
		nsids = nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for last, changed := "", true; ; {
		select {
		case <-m.done:
			m.updateDrops(nil)
			return nil
		case answer := <-m.dropQueries:
			answer <- m.updateDrops(nil)
			continue
		case <-m.deleted:
		case <-events:
			changed = true
		case <-timer.C:
		}
		l, at, err := m.check(last, nsids)
		if l != nil || errors.Is(err, unix.EBADFD) {
			return l
		}
		last = at
		// While the interface is down, nobody may read its queues, and so nobody notices that it was deleted with its namespace.
		if wait := nextCheck(changed, m.polling || err != nil || !m.last.Up); wait != 0 {
			timer.Reset(wait)
		}
		changed = false
	}
}

// nextCheck returns the longest wait before the next check, 0 for no limit. A check may also have failed because the
// interface was just being moved.
func nextCheck(changed, polling bool) time.Duration {
	switch {
	case changed:
		return recheckDelay
	case polling:
		return pollInterval
	}
	return 0
}

// check returns the interface's link if it is in its original namespace. Otherwise it reports the state, keeps
// nothing open, and returns the id of the interface's namespace. It disables link-local addresses if that namespace
// differs from last, or if the kernel has generated one since. nsids, if not nil, is then filtered for the interface.
func (m *monitor) check(last string, nsids *nsidSubscription) (l *link, id string, err error) {
	at, err := m.locate()
	if err != nil {
		return nil, last, err
	}
	defer at.close()
	if at.id == m.origin {
		if l, err = followLink(&at.ns, at.name); err == nil {
			l.disableLinkLocal()
		}
		return l, at.id, err
	}
	l, err = openLink(&at.ns, at.name)
	if err != nil { // it may have been moved or renamed meanwhile
		return nil, last, err
	}
	defer l.close()
	if at.id != last && nsids != nil {
		m.polling = nsids.filter(at.ns, l.index) != nil
		if err := l.find(at.name); err != nil { // again: the state may have changed before the filter was set
			return nil, last, err
		}
	}
	if at.id != last || l.removeLinkLocal() {
		l.disableLinkLocal()
	}
	m.report(l, l.state)
	return nil, at.id, nil
}

// location is the interface's namespace and name. While it is open, the namespace lives.
type location struct {
	ns   netns.NsHandle
	id   string
	name string
}

func (l *location) close() { _ = l.ns.Close() }

// run runs f on a thread in the namespace, if this process may enter it. To be in it already needs no privilege.
func (l *location) run(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with this goroutine
		here, err := netns.Get()
		if err != nil {
			return
		}
		defer here.Close()
		if here.Equal(l.ns) || netns.Set(l.ns) == nil {
			f()
		}
	}()
	<-done
}

// locate queries the interface's namespace (TUNGETDEVNETNS, Linux 5.2) and name by the queue's descriptor. EBADFD
// means that the interface was deleted. Any other error is transient or a missing privilege. The caller closes the
// location.
func (m *monitor) locate() (*location, error) {
	fd, err := unix.IoctlRetInt(m.fd, unix.TUNGETDEVNETNS)
	if err != nil {
		return nil, fmt.Errorf("querying the interface's network namespace (TUNGETDEVNETNS): %w", err)
	}
	ns := netns.NsHandle(fd)
	request, err := unix.NewIfreq("")
	if err == nil {
		err = unix.IoctlIfreq(m.fd, unix.TUNGETIFF, request)
	}
	if err != nil {
		_ = ns.Close()
		return nil, fmt.Errorf("querying the interface's name: %w", err)
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil {
		m.netNS.Store(st.Ino)
	}
	return &location{ns: ns, id: ns.UniqueId(), name: request.Name()}, nil
}
