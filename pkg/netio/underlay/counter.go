// SPDX-License-Identifier: Apache-2.0

package underlay

// Counter is a Port that counts the datagrams that the operating system discarded before any Recv could return them.
// The reasons are a full buffer, a filter (Features.Filter) or a wrong checksum; the count does not distinguish them. A
// coalesced train counts as one.
type Counter interface {
	// SocketDrops stores the drops of lane i in lanes[i], as far as lanes reaches, and returns the sum of the drops of
	// all sources. The counts never decrease while the Port is open. After Close they keep their values. They are zero
	// if another Port took the sockets over: that Port then counts all drops of its sockets. Until it is open, and for
	// good if Open fails, the sum over the Ports is smaller than before. Any goroutine may call it at any time. It
	// costs one system call per socket.
	SocketDrops(lanes []uint64) (sources uint64)
}
