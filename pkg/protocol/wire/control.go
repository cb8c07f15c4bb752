// SPDX-License-Identifier: Apache-2.0

package wire

// Hellos, probes and parts of post-quantum exchanges are control messages: plaintexts of data messages between two ropewalks, inside their session. Each begins with a
// magic, a version and flags, or the kind of a probe. The magic's first byte is zero, so a stock peer sees neither IPv4 nor IPv6 and drops the message.
const (
	helloMagic = "\x00rwp"
	probeMagic = "\x00rwm"
	kemMagic   = "\x00rwq"
)

// Offsets in a control message: magic 4, version 1, flags 1.
const (
	versionAt = 4
	flagsAt   = 5
)

// IsControl reports whether a decrypted data message is for the slow path: a hello, a probe, or a part of a post-quantum exchange.
func IsControl(plain []byte) bool {
	return len(plain) > 0 && plain[0] == 0 && (IsHello(plain) || IsProbe(plain) || IsKEMPart(plain))
}

// IsHello reports whether a decrypted data message is a hello of any version, well-formed or not.
func IsHello(plain []byte) bool { return hasMagic(plain, helloMagic) }

// AnnouncesOrder reports whether a decrypted data message is a hello whose sender puts sprayed flows in order.
func AnnouncesOrder(plain []byte) bool {
	return helloHeader.check(plain) == nil && plain[flagsAt]&helloOrders != 0
}

// IsProbe reports whether a decrypted data message is a probe or an answer of any version, well-formed or not.
func IsProbe(plain []byte) bool { return hasMagic(plain, probeMagic) }

// IsKEMPart reports whether a decrypted data message is a part of a post-quantum exchange of any version, well-formed or not.
func IsKEMPart(plain []byte) bool { return hasMagic(plain, kemMagic) }

func hasMagic(plain []byte, magic string) bool {
	return len(plain) >= len(magic) && string(plain[:len(magic)]) == magic
}

// header describes the header of one kind of control message.
type header struct {
	magic     string
	version   byte
	size      int   // of the smallest message, in bytes
	malformed error // not of this kind, or truncated
	later     error // of a later version
}

// append appends magic, version, and flags or kind.
func (h *header) append(b []byte, flags byte) []byte {
	return append(append(b, h.magic...), h.version, flags)
}

// check returns an error unless plain has the header of a message of this kind and version, and its smallest size.
func (h *header) check(plain []byte) error {
	switch {
	case !hasMagic(plain, h.magic) || len(plain) <= versionAt:
		return h.malformed
	case plain[versionAt] > h.version:
		return h.later
	case plain[versionAt] != h.version || len(plain) < h.size:
		return h.malformed
	}
	return nil
}
