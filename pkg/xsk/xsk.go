// SPDX-License-Identifier: Apache-2.0

// Package xsk is AF_XDP: whole Ethernet frames between one queue of a network device and memory that the process shares
// with the kernel (the UMEM), without the kernel's network stack between them. It moves frames in batches, allocates
// nothing on the way, and knows neither what is in them nor the XDP program that directs them here: the owner of the
// program puts Socket.FD into its map.
//
// # Two halves
//
// A Socket has two halves, each for one goroutine (they may be the same one), which share no memory that is written:
//
//	receive:   Receive → read Frame in place → Refill          Poll(FD) and WakeRx between batches
//	transmit:  Reserve → write Frame in place → Submit → WakeTx
//
// Each half has frames of its own. So one cannot starve the other, nothing is locked, and, because every ring is large
// enough for all frames of its half, no ring is ever too full for what is put into it. The kernel answers for a frame
// by naming it, and package and kernel both trust no name: a ledger of one byte per frame says who has it, and a name
// that does not fit is counted and ignored, so that a mistake never makes two owners of one frame.
//
// # One UMEM for each Socket
//
// The kernel lets sockets of several queues share one UMEM (XDP_SHARED_UMEM). It pays for those who forward frames from
// one queue to another without a copy. A lane takes frames from its queue and gives them to its TUN, so sharing would
// give nothing, and would cost a common pool of frames (a lock, or a partition, which is what separate UMEMs are), one
// mode and one set of options for all, and the order in which sockets close.
//
// # What passes by
//
// Frames that are sent go straight to the driver: no qdisc, tc, netfilter or packet socket sees them. They leave by
// the transmit queue of the Socket's queue number.
package xsk

// Desc names a frame and what of it is filled. It has the layout of struct xdp_desc.
type Desc struct {
	// Addr is the offset in the UMEM of the frame's first filled byte.
	Addr uint64
	// Len is how many bytes are filled.
	Len uint32
	// Options are the kernel's: see More and Socket.OffloadChecksum.
	Options uint32
}

// Bits of Desc.Options (linux/if_xdp.h).
const (
	optionContinued = 1 << 0 // XDP_PKT_CONTD
	optionMetadata  = 1 << 1 // XDP_TX_METADATA
)

// More reports whether the packet goes on in the next Desc, as packets larger than a frame do with Config.MultiBuffer.
func (d Desc) More() bool { return d.Options&optionContinued != 0 }

// SetMore says whether the packet goes on in the next Desc.
func (d *Desc) SetMore(more bool) {
	d.Options &^= optionContinued
	if more {
		d.Options |= optionContinued
	}
}

// MaxFragments is the largest number of frames in one packet that is sent: in copy mode the kernel makes it a packet of
// MAX_SKB_FRAGS pages, which is at least 17, and what needs more it drops without ever giving its frames back. A
// zero-copy driver may take fewer (Capabilities.MaxFragments).
const MaxFragments = 17

// Mode says how frames come from and to the device.
type Mode uint8

const (
	// Auto is zero-copy where driver and device do it, else copy.
	Auto Mode = iota
	// ZeroCopy has the device read and write the UMEM itself. It needs a driver for it and an XDP program that is
	// attached natively.
	ZeroCopy
	// Copy has the kernel copy each frame once. Every device does it that takes a native XDP program.
	Copy
	// Generic is Copy beneath an XDP program in generic (SKB) mode, which every device takes. There a veth numbers
	// queues in its own way: what leaves one end by queue i > 0 arrives at the other on queue i-1.
	Generic
)

// String returns the mode's stable name, as used in metric labels.
func (m Mode) String() string {
	switch m {
	case Auto:
		return "auto"
	case ZeroCopy:
		return "zerocopy"
	case Copy:
		return "copy"
	case Generic:
		return "generic"
	}
	return "unknown"
}

// Features are what a Socket found it can do when it was opened.
type Features struct {
	// Mode is ZeroCopy, Copy or Generic.
	Mode Mode
	// HugePages says that the UMEM lies in huge pages.
	HugePages bool
	// BusyPoll says that WakeRx and WakeTx drive the device, as Config.BusyPoll asked.
	BusyPoll bool
	// MultiBuffer says that a packet may take several frames (Linux 6.6).
	MultiBuffer bool
	// TxChecksum says that OffloadChecksum works (Linux 6.8).
	TxChecksum bool
	// TxBudget is how many frames one WakeTx hands over per system call in copy mode: 32 before Linux 6.17.
	TxBudget int
}

// Stats are counters since the Socket was opened. Those of the kernel are XDP_STATISTICS.
type Stats struct {
	// Received and Sent count frames that Receive returned and Submit took.
	Received, Sent uint64
	// Completed counts frames that the kernel gave back after sending.
	Completed uint64
	// Rejected counts frames that Submit refused: empty, longer than a frame, or of a packet that is malformed.
	Rejected uint64
	// Misowned counts frames that were named by someone who did not have them, the caller or the kernel. It stays zero.
	Misowned uint64
	// TxRefused counts frames that the device dropped instead of sending them.
	TxRefused uint64
	// RxWakes and TxWakes count system calls.
	RxWakes, TxWakes uint64

	// RxDropped counts packets that the kernel dropped: larger than a frame, or no frame to be had.
	RxDropped uint64
	// RxRingFull counts packets dropped because Receive was not called for too long.
	RxRingFull uint64
	// FillEmpty counts how often the kernel found no frame to receive into.
	FillEmpty uint64
	// RxInvalid and TxInvalid count frames whose names the kernel refused. They stay zero.
	RxInvalid, TxInvalid uint64
	// TxEmpty counts how often the kernel was woken, or asked itself, with nothing to send.
	TxEmpty uint64
}

// Frames says where the frames of a Socket are. The sum, without TxDone, is Config.RxFrames + Config.TxFrames.
type Frames struct {
	// RxKernel are in the fill ring, in the device or in the RX ring.
	RxKernel int
	// RxUser were returned by Receive and not yet given to Refill.
	RxUser int
	// TxFree are there for Reserve.
	TxFree int
	// TxUser were returned by Reserve and not yet given to Submit or Release.
	TxUser int
	// TxKernel are in the TX ring, in the device or in the completion ring.
	TxKernel int
	// TxDone are those of TxKernel that are in the completion ring, where Reserve takes them when it runs short.
	TxDone int
}

// Idle reports whether every frame is where it is while nothing is received or sent.
func (f Frames) Idle() bool { return f.RxUser == 0 && f.TxUser == 0 && f.TxKernel == f.TxDone }
