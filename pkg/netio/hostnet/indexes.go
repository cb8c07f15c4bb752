// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"context"
	"fmt"
	"maps"
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
// true when they are deleted, and those in absent, which it keeps up to date. It calls both from one goroutine, at first the
// caller's, until ctx ends. It compares listings of all links, so lost messages (overruns) hide no link. Messages
// tell it of links that exist between two listings.
//
// WatchIndexes returns once it knows all links. It watches the network namespace of the calling thread, and costs nothing while no link
// changes.
func WatchIndexes(ctx context.Context, absent *atomic.Pointer[AbsentLinks], used func(index int) bool, moved func(name string, from, to int)) error {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return fmt.Errorf("subscribing to link changes: %w", err)
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE) // which stays in the namespace
	if err != nil {
		socket.Close()
		return fmt.Errorf("listing the network interfaces: %w", err)
	}
	w := newIndexWatch(absent, used, moved)
	list := func() error {
		links, err := Dump(handle.LinkList)
		if err == nil {
			w.compare(links)
		}
		return err
	}
	if err := list(); err != nil {
		socket.Close()
		handle.Close()
		return fmt.Errorf("listing the network interfaces: %w", err)
	}
	context.AfterFunc(ctx, handle.Close)
	watchSocket(ctx, socket, w.note, func() {
		for list() != nil && pause(ctx, relistPause) {
		}
	})
	return nil
}

// note takes a message, and reports whether it is about a link. It may run at the same time as compare.
func (w *indexWatch) note(kind uint16, data []byte) bool {
	if !isLinkChange(kind, data) {
		return false
	}
	if l, err := netlink.LinkDeserialize(nil, data); err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.names[l.Attrs().Index] = l.Attrs().Name
	}
	return true
}

// isLinkChange reports whether a message is about a link. Messages of bridges about their ports are none.
func isLinkChange(_ uint16, data []byte) bool {
	return len(data) >= unix.SizeofIfInfomsg && data[0] == unix.AF_UNSPEC
}

// indexWatch knows the links of the last listing, and of messages since then.
type indexWatch struct {
	used   func(index int) bool
	moved  func(name string, from, to int)
	mu     sync.Mutex
	names  map[int]string               // guarded by mu
	gone   AbsentLinks                  // used links that were deleted
	absent *atomic.Pointer[AbsentLinks] // a copy of gone
}

func newIndexWatch(absent *atomic.Pointer[AbsentLinks], used func(int) bool, moved func(string, int, int)) *indexWatch {
	w := &indexWatch{used: used, moved: moved, names: map[int]string{}, gone: AbsentLinks{}, absent: absent}
	if before := absent.Load(); before != nil {
		maps.Copy(w.gone, *before)
	}
	return w
}

// compare finds links that were deleted since the last listing, and links that exist again.
func (w *indexWatch) compare(links []netlink.Link) {
	names, indexes := map[int]string{}, map[string]int{}
	for _, l := range links {
		a := l.Attrs()
		names[a.Index], indexes[a.Name] = a.Name, a.Index
	}
	w.mu.Lock()
	before := w.names
	w.names = maps.Clone(names)
	w.mu.Unlock()
	for index, name := range before {
		if _, exists := names[index]; exists {
			continue
		}
		maps.DeleteFunc(w.gone, func(_ string, former int) bool { return !w.used(former) })
		if w.used(index) {
			w.gone[name] = index
		}
	}
	again := AbsentLinks{}
	for name, from := range w.gone {
		if _, exists := indexes[name]; exists {
			again[name] = from
			delete(w.gone, name)
		}
	}
	absent := maps.Clone(w.gone)
	w.absent.Store(&absent)
	for name, from := range again {
		if to := indexes[name]; to != from { // a link may return from another network namespace
			w.moved(name, from, to)
		}
	}
}
