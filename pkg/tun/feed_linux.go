// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
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

// hear delivers what is about the link. A message that is lost may be, too: that breaks the subscription.
func (f *linkFeed) hear(message, _ []byte, err error) (more bool) {
	if err == nil {
		err = f.deliver(message)
	}
	if err != nil && !errors.Is(err, errEnded) {
		close(f.changes)
	}
	return err == nil
}

// deliver returns errEnded when nobody takes changes any more.
func (f *linkFeed) deliver(message []byte) error {
	messages, err := syscall.ParseNetlinkMessage(message)
	if err != nil {
		return err
	}
	for i := range messages {
		if !isAbout(&messages[i], f.index) {
			continue
		}
		c, err := changeOf(&messages[i])
		if err != nil {
			return err
		}
		select {
		case f.changes <- c:
		case <-f.done:
			return errEnded
		}
	}
	return nil
}

// isAbout tells whether a message is about a link itself. One of a family is about a bridge's port.
func isAbout(m *syscall.NetlinkMessage, index int) bool {
	if kind := m.Header.Type; kind != unix.RTM_NEWLINK && kind != unix.RTM_DELLINK || len(m.Data) < unix.SizeofIfInfomsg {
		return false
	}
	info := nl.DeserializeIfInfomsg(m.Data)
	return int(info.Index) == index && info.Family == unix.AF_UNSPEC
}

// changeOf reads a message about a link.
func changeOf(m *syscall.NetlinkMessage) (linkChange, error) {
	if m.Header.Type == unix.RTM_DELLINK {
		return linkChange{gone: true}, nil
	}
	header := unix.NlMsghdr(m.Header)
	l, err := netlink.LinkDeserialize(&header, m.Data)
	if err != nil {
		return linkChange{}, fmt.Errorf("reading a link message: %w", err)
	}
	return linkChange{state: stateOf(l.Attrs())}, nil
}
