// SPDX-License-Identifier: Apache-2.0

// Package hostnet reads and changes the host's network configuration. It covers links, addresses,
// routes and policy rules over rtnetlink, NIC settings over ethtool's ioctls, and a few sysctls.
//
// Every function works in the network namespace of the calling thread. A caller that has entered
// another namespace must have locked its goroutine to the thread. Functions keep no state and may
// be called concurrently. Errors wrap the kernel's errno. Start reading at link.go for netlink and
// ethtool.go for NICs; watch.go reports route changes, and indexes.go new indexes of links.
//
// Not for other programs: it may change without notice.
package hostnet
