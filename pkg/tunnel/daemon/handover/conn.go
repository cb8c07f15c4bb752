// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// The protocol, in order. Every Message is one byte.
//
//	predecessor: the offer, which is magic and version. The tunnel still runs.
//	successor:   Take. It closes the connection instead if it cannot continue.
//	predecessor: stops the tunnel, sends the number of descriptors, then the descriptors. The first is the encoded state.
//	successor:   Ready. It has restored the tunnel, and has started nothing.
//	predecessor: Commit. From here on it restarts the tunnel only if the connection ends before Started.
//	successor:   Started. The tunnel runs.

// Message is one step of the protocol.
type Message byte

const (
	Take    Message = 'T'
	Ready   Message = 'R'
	Commit  Message = 'G'
	Started Message = 'S'
)

const (
	// offerSize is the size of the offer in bytes.
	offerSize = len(magic) + 4
	// stoppedTimeout is how long the predecessor waits for the successor while neither carries packets.
	stoppedTimeout = 5 * time.Second
	// perPeerTimeout is what each peer adds to stoppedTimeout: the successor computes a Diffie-Hellman for it.
	perPeerTimeout = time.Millisecond
	// Timeout is how long either side waits while the other carries packets. It is longer than stoppedTimeout, so that the successor
	// does not give up first.
	Timeout = 20 * time.Second
	// maxFDsPerMessage is how many descriptors are sent in one message (SCM_MAX_FD is 253).
	maxFDsPerMessage = 200
	// maxDescriptors is the most descriptors that a tunnel and its state have: the state, the control socket, two for each lane, and
	// the source ports.
	maxDescriptors = 2 + 2*config.MaxLanes + underlay.MaxSources
)

// Conn is the connection between predecessor and successor. It is for one goroutine at a time, except for Close.
type Conn struct{ *net.UnixConn }

// PID returns the process at the other end, or 0 if it is in another PID namespace.
func (c Conn) PID() int {
	peer, err := uapi.PeerCredentials(c.UnixConn)
	if err != nil {
		return 0
	}
	return int(peer.Pid)
}

// Offer sends the predecessor's offer.
func (c Conn) Offer() error {
	return c.write(binary.BigEndian.AppendUint32([]byte(magic), Version))
}

// SendTunnel sends a stopped tunnel, and waits until the successor is Ready. The descriptors stay the caller's.
func (c Conn) SendTunnel(t *Tunnel) error {
	b, err := t.encode()
	if err != nil {
		return err
	}
	state, err := newSealedFile(b)
	clear(b)
	if err != nil {
		return err
	}
	err = c.sendFDs(append([]int{state}, t.FDs()...))
	if err = errors.Join(err, unix.Close(state)); err != nil {
		return err
	}
	if err := c.Await(Ready, stoppedTimeout+perPeerTimeout*time.Duration(len(t.Device.Peers))); err != nil {
		return fmt.Errorf("waiting for the successor to restore the tunnel: %w", err)
	}
	return nil
}

// RequestTunnel accepts the predecessor's offer, which stops the tunnel, and returns the tunnel. The end of ctx closes the connection,
// but not after RequestTunnel has returned: until the successor has sent Started, a closed connection makes the predecessor restart
// the tunnel.
func (c Conn) RequestTunnel(ctx context.Context) (t *Tunnel, err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if err := c.readOffer(); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	if err := checkProcessNetNS(c.PID()); err != nil { // while the tunnel still runs
		return nil, err
	}
	if err := c.Send(Take); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	if t, err = c.receiveTunnel(); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	if !stop() {
		return nil, errors.Join(ctx.Err(), t.CloseFDs())
	}
	return t, nil
}

// Send sends a message.
func (c Conn) Send(m Message) error { return c.write([]byte{byte(m)}) }

// Await waits for a message.
func (c Conn) Await(want Message, timeout time.Duration) error {
	if err := c.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	var b [1]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return err
	}
	if Message(b[0]) != want {
		return fmt.Errorf("the other daemon sent message %q, want %q: %w", b[0], byte(want), errMalformed)
	}
	return nil
}

// IsClosed reports whether an error of a Conn means that the other side has closed the connection, or ended.
func IsClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func (c Conn) write(b []byte) error {
	if err := c.SetWriteDeadline(time.Now().Add(stoppedTimeout)); err != nil {
		return err
	}
	_, err := c.Write(b)
	return err
}

// readOffer reads the predecessor's offer. A refusal (an answer of the control socket) is returned as its *uapi.Error.
func (c Conn) readOffer() error {
	if err := c.SetReadDeadline(time.Now().Add(Timeout)); err != nil {
		return err
	}
	var b [offerSize]byte
	n, err := c.fillOffer(b[:])
	switch {
	case bytes.HasPrefix(b[:n], []byte(uapi.RefusalPrefix)):
		return uapi.ParseRefusal(b[:n])
	case err != nil:
		return fmt.Errorf("reading the handover offer: %w", err)
	case string(b[:len(magic)]) != magic:
		return errMalformed
	}
	return checkVersion(b[len(magic):])
}

// fillOffer fills b, or reads a refusal up to the end of its line. A refusal may be shorter than b, and the connection stays open
// after it.
func (c Conn) fillOffer(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		if bytes.HasPrefix(b[:n], []byte(uapi.RefusalPrefix)) && bytes.ContainsRune(b[:n], '\n') {
			return n, nil
		}
		var m int
		m, err = c.Read(b[n:])
		n += m
	}
	if n == len(b) {
		err = nil
	}
	return n, err
}

// receiveTunnel receives what SendTunnel sends.
func (c Conn) receiveTunnel() (*Tunnel, error) {
	fds, err := c.receiveFDs()
	if err != nil {
		return nil, errors.Join(err, closeAll(fds))
	}
	b, err := readSealedFile(fds[0])
	fds = fds[1:]
	t := new(Tunnel)
	if err == nil {
		var s *State
		if s, err = parseState(b); err == nil {
			t.State = *s
		}
		clear(b)
	}
	if err == nil && t.descriptors() != len(fds) {
		err = errMalformed
	}
	if err == nil {
		err = checkSocketNetNS(fds[0])
	}
	if err != nil {
		return nil, errors.Join(err, closeAll(fds))
	}
	t.assignFDs(fds)
	return t, nil
}

// assignFDs is the inverse of FDs. The number of descriptors must match the state.
func (t *Tunnel) assignFDs(fds []int) {
	t.ControlFD, fds = fds[0], fds[1:]
	t.QueueFDs, fds = fds[:t.Queues], fds[t.Queues:]
	t.Sockets = udp.Sockets{Lanes: fds[:t.Lanes], Selection: t.Selection, Plans: t.Plans}
	for i, fd := range fds[t.Lanes:] {
		t.Sockets.Sources = append(t.Sockets.Sources, udp.Source{Port: t.Sources[i], FD: fd})
	}
}

// sendFDs sends the number of descriptors, then the descriptors, which stay the caller's.
func (c Conn) sendFDs(fds []int) error {
	if err := c.write(binary.BigEndian.AppendUint32(nil, uint32(len(fds)))); err != nil {
		return err
	}
	for len(fds) > 0 {
		n := min(len(fds), maxFDsPerMessage)
		if _, _, err := c.WriteMsgUnix([]byte{0}, unix.UnixRights(fds[:n]...), nil); err != nil {
			return fmt.Errorf("sending descriptors: %w", err)
		}
		fds = fds[n:]
	}
	return nil
}

// receiveFDs returns the descriptors of sendFDs, which are the caller's. After an error it returns those that have arrived.
func (c Conn) receiveFDs() (fds []int, err error) {
	if err := c.SetReadDeadline(time.Now().Add(Timeout)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	want := binary.BigEndian.Uint32(size[:])
	if want == 0 || want > maxDescriptors {
		return nil, errMalformed
	}
	oob := make([]byte, unix.CmsgSpace(4*maxFDsPerMessage))
	for len(fds) < int(want) {
		var b [1]byte
		n, m, flags, _, err := c.ReadMsgUnix(b[:], oob) // sets MSG_CMSG_CLOEXEC
		if err != nil {
			return fds, fmt.Errorf("receiving descriptors: %w", err)
		}
		more, err := parseRights(oob[:m])
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
		return fds, errMalformed
	}
	return fds, nil
}

// parseRights returns the descriptors in the control messages of one read.
func parseRights(oob []byte) (fds []int, err error) {
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

// closeAll closes descriptors.
func closeAll(fds []int) error {
	var errs []error
	for _, fd := range fds {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}
