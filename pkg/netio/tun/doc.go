// SPDX-License-Identifier: Apache-2.0

// Package tun is ropewalk's TUN device: multi-queue, with checksum and segmentation offloads.
//
// It holds the contract (Device, Queue) and the Linux implementation. Package tuntest has an in-memory Fake, and the
// contract test that both pass. It does I/O on /dev/net/tun and rtnetlink; it does not interpret packets beyond the virtio-net header.
//
// Start reading at Device in tun.go. The data path is queue.go. monitor.go follows the interface's state,
// also into other network namespaces. handover.go passes the queues to another process.
package tun
