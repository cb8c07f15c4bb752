// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
)

// Marker occurs in every 64 bytes of payload, from the first byte. If it is seen on the wire, the traffic is not encrypted.
const Marker = "rw:plain"

const (
	markerStep = 64
	headerLen  = 32
	chunkLen   = 64 << 10 // of a TCP stream
)

// header begins every datagram and every chunk of a TCP stream: Marker, then these, big-endian.
type header struct {
	key    uint64 // of the run
	stream uint32
	size   uint32 // of the datagram or chunk, header included
	seq    uint64
}

var errHeader = errors.New("not a header of this package")

func (h header) put(b []byte) {
	copy(b, Marker)
	binary.BigEndian.PutUint64(b[8:], h.key)
	binary.BigEndian.PutUint32(b[16:], h.stream)
	binary.BigEndian.PutUint32(b[20:], h.size)
	binary.BigEndian.PutUint64(b[24:], h.seq)
}

func parseHeader(b []byte) (header, error) {
	if len(b) < headerLen || string(b[:len(Marker)]) != Marker {
		return header{}, errHeader
	}
	return header{
		key:    binary.BigEndian.Uint64(b[8:]),
		stream: binary.BigEndian.Uint32(b[16:]),
		size:   binary.BigEndian.Uint32(b[20:]),
		seq:    binary.BigEndian.Uint64(b[24:]),
	}, nil
}

// setSeq changes the sequence number of an encoded header.
func setSeq(b []byte, seq uint64) { binary.BigEndian.PutUint64(b[24:], seq) }

// newBody returns the bytes that follow the header in every datagram and chunk of a run. They are
// pseudo-random and depend on the key, so that displaced bytes and bytes of another run are
// detected.
func newBody(key uint64) []byte {
	var seed [32]byte
	binary.BigEndian.PutUint64(seed[:], key)
	body := make([]byte, chunkLen-headerLen)
	_, _ = rand.NewChaCha8(seed).Read(body) // never fails
	for i := markerStep - headerLen; i+len(Marker) <= len(body); i += markerStep {
		copy(body[i:], Marker)
	}
	return body
}

// build returns a buffer with n elements of h.size bytes, whose sequence numbers stamp still has to set.
func build(h header, n int, body []byte) []byte {
	buf := make([]byte, n*int(h.size))
	for i := range n {
		element := buf[i*int(h.size) : (i+1)*int(h.size)]
		h.put(element)
		copy(element[headerLen:], body)
	}
	return buf
}

// stamp sets the sequence numbers of the elements in a buffer, beginning with seq.
func stamp(buf []byte, size int, seq uint64) {
	for ; len(buf) >= size; buf = buf[size:] {
		setSeq(buf, seq)
		seq++
	}
}

// verifier checks a TCP stream, in pieces of any size.
type verifier struct {
	head header // of the current chunk
	want [headerLen]byte
	body []byte
	at   int // position in the current chunk
}

func newVerifier(key uint64, stream uint32, body []byte) *verifier {
	v := &verifier{head: header{key: key, stream: stream, size: chunkLen}, body: body}
	v.head.put(v.want[:])
	return v
}

// check reports whether p equals the next bytes of the stream.
func (v *verifier) check(p []byte) bool {
	for len(p) > 0 {
		want := v.body
		if v.at < headerLen {
			want = v.want[v.at:]
		} else {
			want = want[v.at-headerLen:]
		}
		n := min(len(p), len(want))
		if !bytes.Equal(p[:n], want[:n]) {
			return false
		}
		p = p[n:]
		v.advance(n)
	}
	return true
}

func (v *verifier) advance(n int) {
	v.at += n
	if v.at == chunkLen {
		v.at = 0
		v.head.seq++
		setSeq(v.want[:], v.head.seq)
	}
}
