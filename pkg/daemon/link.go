// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/uapi"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// What the two daemons say to each other is one byte at a time, but for the offer and the descriptors:
//
//	old: the offer: magic and version. It goes on as if nothing had happened.
//	new: take, or nothing and the end of the connection.
//	old: it stops, and sends the number of descriptors, then those.
//	new: ready: it has everything, and has begun nothing.
//	old: yours. It begins nothing again unless the connection ends before
//	new: started.
const (
	sayTake    = 'T'
	sayReady   = 'R'
	sayYours   = 'G'
	sayStarted = 'S'
)

const (
	// offerSize is that of the offer, in bytes.
	offerSize = len(handoffMagic) + 4
	// stillTime is how long the old daemon waits for the new one while nobody carries packets, and peerTime what each peer adds to
	// that: the new one makes its acquaintance by a Diffie-Hellman.
	stillTime = 5 * time.Second
	peerTime  = time.Millisecond
	// calmTime is how long each waits while somebody does. It is longer than stillTime, so that the new one does not give up
	// first.
	calmTime = 20 * time.Second
	// perMessage is how many descriptors one message bears (SCM_MAX_FD is 253).
	perMessage = 200
)

// link is the connection between the two.
type link struct{ *net.UnixConn }

func (l link) say(b ...byte) error {
	if err := l.SetWriteDeadline(time.Now().Add(stillTime)); err != nil {
		return err
	}
	_, err := l.Write(b)
	return err
}

// hear waits for a word.
func (l link) hear(want byte, patience time.Duration) error {
	if err := l.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	var b [1]byte
	if _, err := io.ReadFull(l, b[:]); err != nil {
		return err
	}
	if b[0] != want {
		return fmt.Errorf("the other daemon says %q instead of %q: %w", b[0], want, errHandoff)
	}
	return nil
}

// offer says who is there.
func (l link) offer() error {
	return l.say(binary.BigEndian.AppendUint32([]byte(handoffMagic), Version)...)
}

// hearOffer is for the other side. What is no offer is a refusal.
func (l link) hearOffer() error {
	if err := l.SetReadDeadline(time.Now().Add(calmTime)); err != nil {
		return err
	}
	var b [offerSize]byte
	n, err := l.readOffer(b[:])
	switch {
	case bytes.HasPrefix(b[:n], []byte(uapi.RefusalPrefix)):
		return uapi.Refusal(b[:n])
	case err != nil:
		return fmt.Errorf("the daemon hands nothing over: %w", err)
	case string(b[:len(handoffMagic)]) != handoffMagic:
		return errHandoff
	}
	if v := binary.BigEndian.Uint32(b[len(handoffMagic):]); v != Version {
		return fmt.Errorf("version %d, not %d: %w", v, Version, ErrVersion)
	}
	return nil
}

// readOffer fills b, or reads a refusal up to the end of its line: that may be shorter, and the connection stays open after it.
func (l link) readOffer(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		if bytes.HasPrefix(b[:n], []byte(uapi.RefusalPrefix)) && bytes.ContainsRune(b[:n], '\n') {
			return n, nil
		}
		var m int
		m, err = l.Read(b[n:])
		n += m
	}
	if n == len(b) {
		err = nil
	}
	return n, err
}

// send sends descriptors, which stay the caller's.
func (l link) send(fds []int) error {
	if err := l.say(binary.BigEndian.AppendUint32(nil, uint32(len(fds)))...); err != nil {
		return err
	}
	for len(fds) > 0 {
		n := min(len(fds), perMessage)
		if _, _, err := l.WriteMsgUnix([]byte{0}, unix.UnixRights(fds[:n]...), nil); err != nil {
			return fmt.Errorf("sending descriptors: %w", err)
		}
		fds = fds[n:]
	}
	return nil
}

// maxDescriptors is the most that a tunnel has, with its state: that and the control socket, two for each lane, and the sources.
const maxDescriptors = 2 + 2*config.MaxLanes + underlay.MaxSources

// receive returns descriptors, which are the caller's: those that came, on error too.
func (l link) receive() (fds []int, err error) {
	if err := l.SetReadDeadline(time.Now().Add(calmTime)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(l, size[:]); err != nil {
		return nil, err
	}
	want := binary.BigEndian.Uint32(size[:])
	if want == 0 || want > maxDescriptors {
		return nil, errHandoff
	}
	oob := make([]byte, unix.CmsgSpace(4*perMessage))
	for len(fds) < int(want) {
		var b [1]byte
		n, m, flags, _, err := l.ReadMsgUnix(b[:], oob) // sets MSG_CMSG_CLOEXEC
		if err != nil {
			return fds, fmt.Errorf("receiving descriptors: %w", err)
		}
		more, err := rights(oob[:m])
		fds = append(fds, more...)
		switch {
		case err != nil:
			return fds, err
		case flags&unix.MSG_CTRUNC != 0:
			return fds, fmt.Errorf("receiving descriptors: %w (ulimit -n)", unix.EMFILE)
		case n == 0 || len(more) == 0:
			return fds, io.ErrUnexpectedEOF
		}
	}
	if len(fds) != int(want) {
		return fds, errHandoff
	}
	return fds, nil
}

func rights(oob []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("receiving descriptors: %w", err)
	}
	for i := range messages {
		some, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return fds, fmt.Errorf("receiving descriptors: %w", err)
		}
		fds = append(fds, some...)
	}
	return fds, nil
}

// closeAll gives descriptors back.
func closeAll(fds []int) error {
	var errs []error
	for _, fd := range fds {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}
