// SPDX-License-Identifier: Apache-2.0

package xsk

// Desc describes a frame and its filled part. It has the layout of struct xdp_desc.
type Desc struct {
	// Addr is the offset in the UMEM of the frame's first filled byte.
	Addr uint64
	// Len is the number of filled bytes.
	Len uint32
	// Options are kernel flags: see Socket.OffloadChecksum.
	Options uint32
}

// optionMetadata is a bit of Desc.Options (XDP_TX_METADATA in linux/if_xdp.h).
const optionMetadata = 1 << 1

// Mode is the AF_XDP mode of a Socket.
type Mode uint8

const (
	// Auto is zero-copy where driver and device support it, else copy.
	Auto Mode = iota
	// ZeroCopy has the device read and write the UMEM itself. It needs a driver for it and an XDP program that is
	// attached natively.
	ZeroCopy
	// Copy has the kernel copy each frame once. Every device does it that takes a native XDP program.
	Copy
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
	}
	return "unknown"
}

// Features are the capabilities that a Socket found when it was opened.
type Features struct {
	// Mode is ZeroCopy or Copy.
	Mode Mode
	// TxChecksum: OffloadChecksum works (Linux 6.8).
	TxChecksum bool
}

// Stats are counters since Open. The second group is XDP_STATISTICS from the kernel.
type Stats struct {
	// Received and Sent count frames that Receive returned and Submit accepted.
	Received, Sent uint64
	// Completed counts frames that the kernel returned after sending.
	Completed uint64
	// Rejected counts frames that Submit rejected: empty, or longer than a frame.
	Rejected uint64
	// FrameOwnershipErrors counts descriptors of frames that the caller or the kernel did not own. It should stay zero.
	FrameOwnershipErrors uint64
	// TxRefused counts frames that the device dropped instead of sending.
	TxRefused uint64

	// RxDropped counts packets that the kernel dropped: larger than a frame, or no free frame.
	RxDropped uint64
	// RxRingFull counts packets dropped because Receive was not called for too long.
	RxRingFull uint64
	// RxInvalid and TxInvalid count descriptors that the kernel rejected. They should stay zero. The frames of RxInvalid were
	// for receiving, and held no packet (__xp_alloc in net/xdp/xsk_buff_pool.c).
	RxInvalid, TxInvalid uint64
}

// Frames counts where the frames of a Socket are. The sum, without TxDone, is Config.RxFrames + Config.TxFrames.
type Frames struct {
	// RxKernel counts frames in the fill ring, in the device or in the RX ring.
	RxKernel int
	// RxUser counts frames returned by Receive and not yet given to Refill.
	RxUser int
	// TxFree counts frames free for Reserve.
	TxFree int
	// TxUser counts frames returned by Reserve and not yet given to Submit or Release.
	TxUser int
	// TxKernel counts frames in the TX ring, in the device or in the completion ring.
	TxKernel int
	// TxDone counts the frames of TxKernel that are in the completion ring, from which Reserve
	// refills the free list.
	TxDone int
}
