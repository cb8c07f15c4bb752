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

// subscriptionBuffer is the socket's receive buffer in bytes. It holds some hundred changes of other interfaces while
// the reader is delayed.
const subscriptionBuffer = 1 << 20

// linkSubscription receives the changes of one link.
type linkSubscription struct {
	listener
	index   int
	changes chan linkChange // closed when messages were lost (overrun)
	done    chan struct{}
}

// linkChange is a new state of the link, or its removal.
type linkChange struct {
	state Event
	gone  bool
}

// openLinkSubscription subscribes to link changes in namespace ns; nil is the namespace of the calling thread. The
// socket buffers messages until subscribe is called.
func openLinkSubscription(ns *netns.NsHandle) (*linkSubscription, error) {
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
	fd, err := unix.FcntlInt(uintptr(s.GetFd()), unix.F_DUPFD_CLOEXEC, 0) // os.File reads it with a deadline
	if err != nil {
		return nil, fmt.Errorf("subscribing to link changes: %w", err)
	}
	return &linkSubscription{
		listener: listener{socket: os.NewFile(uintptr(fd), "netlink")},
		changes:  make(chan linkChange, 16), done: make(chan struct{}),
	}, nil
}

// subscribe starts to deliver the buffered and all later changes of a link.
func (s *linkSubscription) subscribe(index int) error {
	s.index = index
	return s.start(nl.RECEIVE_BUFFER_SIZE, s.handle)
}

// close returns after the reading goroutine has ended.
func (s *linkSubscription) close() {
	close(s.done)
	s.stop()
	_ = s.socket.Close()
}

// handle delivers the changes of the link. A lost message may have been one, so it ends the subscription.
func (s *linkSubscription) handle(message, _ []byte, err error) (more bool) {
	if err == nil {
		err = s.deliver(message)
	}
	if err != nil && !errors.Is(err, errStopped) {
		close(s.changes)
	}
	return err == nil
}

// deliver returns errStopped when the receiver is closed.
func (s *linkSubscription) deliver(message []byte) error {
	messages, err := syscall.ParseNetlinkMessage(message)
	if err != nil {
		return err
	}
	for i := range messages {
		if !isLinkMessage(&messages[i], s.index) {
			continue
		}
		c, err := parseLinkChange(&messages[i])
		if err != nil {
			return err
		}
		select {
		case s.changes <- c:
		case <-s.done:
			return errStopped
		}
	}
	return nil
}

// isLinkMessage reports whether a message is about the link itself. AF_BRIDGE messages are about a bridge port.
func isLinkMessage(m *syscall.NetlinkMessage, index int) bool {
	if kind := m.Header.Type; kind != unix.RTM_NEWLINK && kind != unix.RTM_DELLINK || len(m.Data) < unix.SizeofIfInfomsg {
		return false
	}
	info := nl.DeserializeIfInfomsg(m.Data)
	return int(info.Index) == index && info.Family == unix.AF_UNSPEC
}

// parseLinkChange parses an RTM_NEWLINK or RTM_DELLINK message.
func parseLinkChange(m *syscall.NetlinkMessage) (linkChange, error) {
	if m.Header.Type == unix.RTM_DELLINK {
		return linkChange{gone: true}, nil
	}
	header := unix.NlMsghdr(m.Header)
	l, err := netlink.LinkDeserialize(&header, m.Data)
	if err != nil {
		return linkChange{}, fmt.Errorf("parsing a link message: %w", err)
	}
	return linkChange{state: eventOf(l.Attrs())}, nil
}
