// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// AbsentLinks are the former indexes of links that were deleted, by name. Nobody changes it.
type AbsentLinks map[string]int

// WatchIndexes calls moved when a link that was deleted exists again under its name, with another index. It follows links of which used returns
// true when they are deleted, and those in absent, which it keeps up to date. It calls both from one goroutine, at first the
// caller's, until ctx ends. Lost messages (overruns) hide no link.
//
// WatchIndexes returns once it knows all links. It watches the network namespace of the calling thread, and costs nothing while no link
// changes.
func WatchIndexes(ctx context.Context, absent *atomic.Pointer[AbsentLinks], used func(index int) bool, moved func(name string, from, to int)) error {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return fmt.Errorf("subscribing to link changes: %w", err)
	}
	w := newIndexWatch(absent, used, moved, func() error {
		req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		return socket.Send(req)
	})
	receive := func() ([]syscall.NetlinkMessage, error) {
		messages, _, err := socket.Receive()
		return messages, err
	}
	if err := w.listFirst(receive); err != nil {
		socket.Close()
		return fmt.Errorf("listing the network interfaces: %w", err)
	}
	context.AfterFunc(ctx, socket.Close) // wakes Receive
	go w.run(ctx, receive)
	return nil
}

// indexWatch knows the indexes of all links by their messages. A listing also comes as messages,
// in order with changes.
type indexWatch struct {
	used  func(index int) bool
	moved func(name string, from, to int)
	send  func() error // requests a listing

	names   map[int]linkName
	gone    AbsentLinks                  // used links that were deleted
	absent  *atomic.Pointer[AbsentLinks] // a copy of gone
	round   int                          // of listings
	listing bool                         // one is under way
	stale   bool                         // messages were lost: another listing must follow
}

// linkName is the name of a link, and the last listing that had it.
type linkName struct {
	name  string
	round int
}

func newIndexWatch(absent *atomic.Pointer[AbsentLinks], used func(int) bool, moved func(string, int, int), send func() error) *indexWatch {
	w := &indexWatch{used: used, moved: moved, send: send, names: map[int]linkName{}, gone: AbsentLinks{}, absent: absent}
	if before := absent.Load(); before != nil {
		maps.Copy(w.gone, *before)
	}
	w.publish()
	return w
}

// publish copies gone for others.
func (w *indexWatch) publish() {
	absent := maps.Clone(w.gone)
	w.absent.Store(&absent)
}

// listFirst lists all links, again while messages are lost.
func (w *indexWatch) listFirst(receive func() ([]syscall.NetlinkMessage, error)) error {
	for attempt := 0; attempt < dumpAttempts && (attempt == 0 || w.stale); attempt++ {
		for w.list(); w.listing; {
			messages, err := receive()
			if errors.Is(err, unix.ENOBUFS) {
				w.listing, w.stale = false, true
				break
			}
			if err != nil {
				return err
			}
			w.read(messages)
		}
	}
	return nil
}

func (w *indexWatch) run(ctx context.Context, receive func() ([]syscall.NetlinkMessage, error)) {
	for ctx.Err() == nil {
		messages, err := receive()
		if err != nil { // above all ENOBUFS
			w.stale = true
		}
		w.read(messages)
		again := w.stale && !w.listing
		if (err != nil || again) && !pause(ctx, burstWindow) {
			return
		}
		if again {
			w.list()
		}
	}
}

// list requests a listing.
func (w *indexWatch) list() {
	w.round++
	w.listing = w.send() == nil
	w.stale = !w.listing
}

func (w *indexWatch) read(messages []syscall.NetlinkMessage) {
	for _, m := range messages {
		if w.listing && m.Header.Flags&unix.NLM_F_DUMP_INTR != 0 {
			w.stale = true
		}
		switch m.Header.Type {
		case unix.NLMSG_ERROR:
			w.listing, w.stale = false, true
		case unix.NLMSG_DONE:
			w.endListing()
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			index, name, ok := parseLinkName(m.Data)
			switch {
			case !ok:
			case m.Header.Type == unix.RTM_NEWLINK:
				w.add(index, name)
			default:
				w.remove(index)
			}
		}
	}
}

// endListing removes the links that a complete listing did not have.
func (w *indexWatch) endListing() {
	w.listing = false
	if w.stale {
		return
	}
	for index, n := range w.names {
		if n.round != w.round {
			w.remove(index)
		}
	}
}

// add notes a link that is new, was renamed, or has changed otherwise.
func (w *indexWatch) add(index int, name string) {
	w.names[index] = linkName{name, w.round}
	if from, ok := w.gone[name]; ok {
		delete(w.gone, name)
		w.publish()
		w.move(name, from, index)
	}
}

func (w *indexWatch) remove(index int) {
	n, ok := w.names[index]
	delete(w.names, index)
	for name, former := range w.gone {
		if !w.used(former) {
			delete(w.gone, name)
		}
	}
	if !ok || !w.used(index) {
		return
	}
	for to, other := range w.names {
		if other.name == n.name { // of a listing, which has new links first
			w.move(n.name, index, to)
			return
		}
	}
	w.gone[n.name] = index
	w.publish()
}

func (w *indexWatch) move(name string, from, to int) {
	if from != to { // a link may return from another network namespace
		w.moved(name, from, to)
	}
}

// parseLinkName returns the index and the name in a message about a link. Messages of bridges about their ports are none.
func parseLinkName(data []byte) (index int, name string, ok bool) {
	if len(data) < unix.SizeofIfInfomsg || data[0] != unix.AF_UNSPEC {
		return 0, "", false
	}
	attributes, err := nl.ParseRouteAttr(data[unix.SizeofIfInfomsg:])
	if err != nil {
		return 0, "", false
	}
	index = int(int32(binary.NativeEndian.Uint32(data[4:]))) // struct ifinfomsg: ifi_index
	for _, a := range attributes {
		if a.Attr.Type == unix.IFLA_IFNAME {
			return index, unix.ByteSliceToString(a.Value), true
		}
	}
	return 0, "", false
}
