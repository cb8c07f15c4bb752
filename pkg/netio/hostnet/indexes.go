// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"context"
	"fmt"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// AbsentLinks are the former indexes of links that were deleted, by name. Nobody changes it.
type AbsentLinks map[string]int

// relistPause is the time after which a listing that failed is repeated.
const relistPause = time.Second

// WatchIndexes calls moved when a link that was deleted exists again under its name, with another index. It follows links of which used returns
// true when they are deleted, and those in absent, which it keeps up to date. It calls moved from one goroutine, at first the
// caller's, until ctx ends. used must be safe for concurrent use.
//
// It compares listings of all links, so lost messages (overruns) hide no link. It lists links only after
// messages about the links that it follows, since other links may change often.
//
// WatchIndexes returns once it knows all links. It watches the network namespace of the calling thread.
func WatchIndexes(ctx context.Context, absent *atomic.Pointer[AbsentLinks], used func(index int) bool, moved func(name string, from, to int)) error {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return fmt.Errorf("subscribing to link changes: %w", err)
	}
	lister, err := newLinkLister()
	if err != nil {
		socket.Close()
		return fmt.Errorf("listing the network interfaces: %w", err)
	}
	w := newIndexWatch(absent, used, moved)
	if err := w.update(lister.list); err != nil {
		socket.Close()
		lister.close()
		return fmt.Errorf("listing the network interfaces: %w", err)
	}
	context.AfterFunc(ctx, lister.close)
	watchSocket(ctx, socket, w.note, func() {
		for w.update(lister.list) != nil && pause(ctx, relistPause) {
		}
	})
	return nil
}

// linkLister lists the links of one network namespace. It is safe for concurrent use.
type linkLister struct {
	mu     sync.Mutex
	handle *netlink.Handle // nil once closed: a closed Handle opens sockets in the namespace of any thread
}

// newLinkLister returns a linkLister of the calling thread's network namespace.
func newLinkLister() (*linkLister, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	return &linkLister{handle: handle}, err
}

// list returns all links. The error is os.ErrClosed after close.
func (l *linkLister) list() ([]netlink.Link, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handle == nil {
		return nil, os.ErrClosed
	}
	return Dump(l.handle.LinkList)
}

func (l *linkLister) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handle.Close()
	l.handle = nil
}

// indexWatch knows the links of the last listing, and of messages since then.
type indexWatch struct {
	used   func(index int) bool
	moved  func(name string, from, to int)
	absent *atomic.Pointer[AbsentLinks] // a copy of gone

	mu        sync.Mutex
	names     map[int]string
	gone      AbsentLinks // used links that were deleted
	deletions int         // messages about deleted links that were used
	unsettled bool        // a listing is under way, or misses the last of deletions
}

func newIndexWatch(absent *atomic.Pointer[AbsentLinks], used func(int) bool, moved func(string, int, int)) *indexWatch {
	w := &indexWatch{used: used, moved: moved, names: map[int]string{}, gone: AbsentLinks{}, absent: absent}
	if before := absent.Load(); before != nil {
		maps.Copy(w.gone, *before)
	}
	return w
}

// note takes a message, and reports whether the links must be listed. It may run at the same time as
// update. Messages of bridges about their ports do not matter.
func (w *indexWatch) note(kind uint16, data []byte) bool {
	if len(data) < unix.SizeofIfInfomsg || data[0] != unix.AF_UNSPEC {
		return false
	}
	l, err := netlink.LinkDeserialize(nil, data)
	if err != nil {
		return true
	}
	index, name := l.Attrs().Index, l.Attrs().Name
	used := kind == unix.RTM_DELLINK && w.used(index)
	w.mu.Lock()
	defer w.mu.Unlock()
	if kind == unix.RTM_DELLINK && !used {
		delete(w.names, index)
		return false
	}
	w.names[index] = name
	if used {
		w.deletions++
		w.unsettled = true
	}
	_, gone := w.gone[name]
	return w.unsettled || gone
}

// update compares a listing with the links that are known. Links that are added meanwhile cause another
// one, since this listing may lack them.
func (w *indexWatch) update(list func() ([]netlink.Link, error)) error {
	w.mu.Lock()
	w.unsettled = true
	deletions := w.deletions
	w.mu.Unlock()
	links, err := list()
	if err != nil {
		return err
	}
	for name, m := range w.compare(links, deletions) {
		w.moved(name, m.from, m.to)
	}
	return nil
}

// move is a change of the index of a link.
type move struct{ from, to int }

// compare finds links that were deleted since the last listing, and returns links that exist again.
// deletions is w.deletions before the listing.
func (w *indexWatch) compare(links []netlink.Link, deletions int) map[string]move {
	w.mu.Lock()
	defer w.mu.Unlock()
	names, indexes := map[int]string{}, map[string]int{}
	for _, l := range links {
		a := l.Attrs()
		names[a.Index], indexes[a.Name] = a.Name, a.Index
	}
	for index, name := range w.names {
		if _, exists := names[index]; exists {
			continue
		}
		maps.DeleteFunc(w.gone, func(_ string, former int) bool { return !w.used(former) })
		if w.used(index) {
			w.gone[name] = index
		}
	}
	w.names, w.unsettled = names, w.deletions != deletions
	moves := map[string]move{}
	for name, from := range w.gone {
		to, exists := indexes[name]
		if !exists {
			continue
		}
		delete(w.gone, name)
		if to != from { // a link may return from another network namespace
			moves[name] = move{from, to}
		}
	}
	absent := maps.Clone(w.gone)
	w.absent.Store(&absent)
	return moves
}
