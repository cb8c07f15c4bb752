// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/mdlayher/genetlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// subscribeQueues subscribes to the changes that ethtool's netlink family announces, in the calling thread's network
// namespace. rtnetlink does not announce changes of the number of a device's queues. Kernels without
// CONFIG_ETHTOOL_NETLINK do not announce them at all.
func subscribeQueues() (*nl.NetlinkSocket, error) {
	family, err := ethtoolFamily()
	if err != nil {
		return nil, fmt.Errorf("looking up ethtool's netlink family: %w", err)
	}
	socket, err := nl.Subscribe(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("subscribing to changes of NIC queues (ethtool netlink): %w", err)
	}
	if err := joinMonitor(socket, family); err != nil {
		socket.Close()
		return nil, fmt.Errorf("subscribing to changes of NIC queues (ethtool netlink): %w", err)
	}
	return socket, nil
}

func ethtoolFamily() (genetlink.Family, error) {
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return genetlink.Family{}, err
	}
	defer conn.Close()
	return conn.GetFamily(unix.ETHTOOL_GENL_NAME)
}

// joinMonitor subscribes a socket to ethtool's monitor group. nl.Subscribe supports only groups up to 32, and the
// numbers of generic netlink groups can be higher.
func joinMonitor(socket *nl.NetlinkSocket, family genetlink.Family) error {
	i := slices.IndexFunc(family.Groups, func(g genetlink.MulticastGroup) bool { return g.Name == unix.ETHTOOL_MCGRP_MONITOR_NAME })
	if i < 0 {
		return errors.ErrUnsupported
	}
	return unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(family.Groups[i].ID))
}

// recordQueues is record for ethtool's messages. Each begins with a generic netlink header, whose first byte is the
// command.
func (w *watcher) recordQueues(messages []syscall.NetlinkMessage, err error) (matters bool) {
	matters = err != nil
	for i := range messages {
		data := messages[i].Data
		matters = matters || len(data) > 0 && data[0] == unix.ETHTOOL_MSG_CHANNELS_NTF
	}
	if matters {
		w.mu.Lock()
		w.changed = true
		w.mu.Unlock()
	}
	return matters
}
