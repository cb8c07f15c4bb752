// SPDX-License-Identifier: Apache-2.0

package underlay

// Counter is a Port that counts the datagrams that the operating system discarded before any Recv could return them, or
// after Send had reported success. The reasons of the former are a full buffer, a filter (Features.Filter) or a wrong
// checksum; the count does not distinguish them.
type Counter interface {
	// SocketDrops stores the drops of lane i in lanes[i], as far as lanes reaches, and returns the sum of the drops of
	// all sources. The counts never decrease while the Port is open. After Close they keep their values. If another
	// Port took the sockets over, only the excess of Datagrams over Buffers remains: that Port then counts all drops of
	// its sockets. Until it is open, and for good if Open fails, the sum over the Ports is smaller than before. Any
	// goroutine may call it at any time. It costs one system call per socket.
	SocketDrops(lanes []SocketDrops) (sources SocketDrops)
}

// SocketDrops counts the drops at a socket.
type SocketDrops struct {
	// Buffers is the kernel's count, in which a coalesced train is one.
	Buffers uint64
	// Datagrams estimates the datagrams in them, at least one each.
	Datagrams uint64
	// Unsent counts datagrams that a lane passed to the network without an error, and that never left.
	Unsent uint64
}

// Add adds other to d.
func (d *SocketDrops) Add(other SocketDrops) {
	d.Buffers += other.Buffers
	d.Datagrams += other.Datagrams
	d.Unsent += other.Unsent
}
