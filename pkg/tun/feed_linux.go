// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"fmt"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// subscriptionBuffer, in bytes, holds some hundred changes of other interfaces while the reader is held up.
const subscriptionBuffer = 1 << 20

// linkFeed is a subscription to what happens to one link.
type linkFeed struct {
	listener
	index   int
	changes chan linkChange // closed when changes were lost
	done    chan struct{}
}

// linkChange is a state the link came to have, or its end.
type linkChange struct {
	state Event
	gone  bool
}

// openFeed has the kernel collect what happens in namespace ns, nil for that of the calling thread, until the feed begins.
func openFeed(ns *netns.NsHandle) (*linkFeed, error) {
	at := netns.None()
	if ns != nil {
		at = *ns
	}
	s, err := nl.SubscribeAt(at, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return nil, fmt.Errorf("subscribing to link changes: %w", err)
	}
	defer s.Close()
	if err := s.SetReceiveBufferSize(subscriptionBuffer, false); err != nil {
		return nil, fmt.Errorf("subscribing to link changes: %w", err)
	}
	fd, err := unix.FcntlInt(uintptr(s.GetFd()), unix.F_DUPFD_CLOEXEC, 0) // to be read with a deadline
	if err != nil {
		return nil, fmt.Errorf("subscribing to link changes: %w", err)
	}
	return &linkFeed{
		listener: listener{socket: os.NewFile(uintptr(fd), "netlink")},
		changes:  make(chan linkChange, 16), done: make(chan struct{}),
	}, nil
}

// begin starts to deliver what the kernel has collected of a link, and what follows.
func (f *linkFeed) begin(index int) error {
	f.index = index
	return f.listener.begin(nl.RECEIVE_BUFFER_SIZE, f.hear)
}

// close returns when nobody listens any more.
func (f *linkFeed) close() {
	close(f.done)
	f.end()
	_ = f.socket.Close()
}

// hear delivers what is about the link. A message that was lost may have been: that breaks the subscription.
func (f *linkFeed) hear(message, _ []byte, err error) (more bool) {
	messages, unread := syscall.ParseNetlinkMessage(message)
	if err != nil || unread != nil {
		close(f.changes)
		return false
	}
	for i := range messages {
		c, ok := changeOf(&messages[i], f.index)
		if !ok {
			continue
		}
		select {
		case f.changes <- c:
		case <-f.done:
			return false
		}
	}
	return true
}

// changeOf reads a message about a link, false for one about anything else. One of a family is about a bridge's port.
func changeOf(m *syscall.NetlinkMessage, index int) (c linkChange, ok bool) {
	if kind := m.Header.Type; kind != unix.RTM_NEWLINK && kind != unix.RTM_DELLINK || len(m.Data) < unix.SizeofIfInfomsg {
		return linkChange{}, false
	}
	if info := nl.DeserializeIfInfomsg(m.Data); int(info.Index) != index || info.Family != unix.AF_UNSPEC {
		return linkChange{}, false
	}
	if m.Header.Type == unix.RTM_DELLINK {
		return linkChange{gone: true}, true
	}
	header := unix.NlMsghdr(m.Header)
	l, err := netlink.LinkDeserialize(&header, m.Data)
	if err != nil {
		return linkChange{}, false
	}
	return linkChange{state: stateOf(l.Attrs())}, true
}
