// SPDX-License-Identifier: Apache-2.0

package underlay

// Counter is a Port that knows what the operating system has discarded in front of it, before any Recv could return it: because the
// buffer was full, by a filter (Features.Filter), or for a wrong checksum. It cannot tell these apart. What was coalesced
// counts as one.
type Counter interface {
	// SocketDrops stores what was discarded in front of lane i in lanes[i], as far as lanes reach, and returns what was in front of
	// all sources. The counts do not go back. After Close they stay what they were, or are zero if the sockets live on
	// with another Port, which then counts all that they had: until that one is open, and for good if it cannot be, whoever adds the
	// Ports up sees less than before. It may be called by any goroutine, at any time; it asks the operating system once per socket.
	SocketDrops(lanes []uint64) (sources uint64)
}
