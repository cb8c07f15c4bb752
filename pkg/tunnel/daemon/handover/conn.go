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
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// The protocol, in order. Every Message is one byte.
//
//	predecessor: the offer, which is magic and version. The tunnel runs until Take.
//	successor:   Prepare. It closes the connection instead, here or later, if it cannot continue.
//	predecessor: the number of descriptors, then the descriptors: an encoded state with all peers, and the queues. From here on it refuses
//	             changes of the configuration.
//	successor:   Take. It has made a device with all peers, and has started nothing.
//	predecessor: while many peers have changed meanwhile: the number of descriptors, 1, then the descriptor: an encoded state with these peers.
//	             The successor answers each with Take.
//	predecessor: stops the tunnel, sends the number of descriptors, then the descriptors: an encoded state with the peers that have changed since,
//	             the control socket, and the sockets.
//	successor:   Ready. It has all of the tunnel, and has started nothing.
//	predecessor: Commit. From here on it restarts the tunnel only if the connection ends before Serving.
//	successor:   Serving. From here on it alone serves the tunnel, which it starts now. Before, packets and handshake messages wait in the
//	             sockets, so that the predecessor can restart the tunnel with all that is known of it.
//	predecessor: the number of descriptors, 1, then the descriptor: the encoded counters. They are added to those of the successor.

// Message is one step of the protocol.
type Message byte

const (
	Prepare Message = 'P'
	Take    Message = 'T'
	Ready   Message = 'R'
	Commit  Message = 'G'
	Serving Message = 'S'
)

const (
	// offerSize is the size of the offer in bytes.
	offerSize = len(magic) + 4
	// stoppedTimeout is how long the predecessor waits for the successor while neither carries packets.
	stoppedTimeout = 5 * time.Second
	// perPeerTimeout is added for each peer to the time between Prepare and Take, in which the
	// successor computes a Diffie-Hellman for it.
	perPeerTimeout = 200 * time.Microsecond
	// Timeout is how long either side waits while the other carries packets. It is longer than stoppedTimeout, so that the successor
	// does not give up first.
	Timeout = 20 * time.Second
	// maxFDsPerMessage is how many descriptors are sent in one message (SCM_MAX_FD is 253).
	maxFDsPerMessage = 200
	// maxDescriptors is the maximum number of descriptors that are sent at once. They are the
	// state, the control socket, one for each lane, the holder of the listen port, and the source
	// ports.
	maxDescriptors = 3 + config.MaxLanes + underlay.MaxSources
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

// PreparationTimeout returns how long the successor may take from Prepare to Take, by the number of peers.
func PreparationTimeout(peers int) time.Duration {
	return Timeout + perPeerTimeout*time.Duration(peers)
}

// SendSnapshot sends the state of a running tunnel and the descriptors of its queues, which stay the caller's. It waits until the successor
// takes the tunnel.
func (c Conn) SendSnapshot(s *State, queues []int) error {
	if err := c.sendState(s, queues); err != nil {
		return err
	}
	return c.Await(Take, PreparationTimeout(len(s.Device.Peers)))
}

// SendChanges sends the peers of a running tunnel that have changed, and waits until the successor has them.
func (c Conn) SendChanges(s *State) error { return c.SendSnapshot(s, nil) }

// SendTunnel sends a stopped tunnel except for its queues, and waits until the successor is Ready. The descriptors stay the caller's.
func (c Conn) SendTunnel(t *Tunnel) error {
	fds := []int{t.ControlFD}
	for fd := range t.Sockets.FDs {
		fds = append(fds, fd)
	}
	if err := c.sendState(&t.State, fds); err != nil {
		return err
	}
	if err := c.Await(Ready, stoppedTimeout); err != nil {
		return fmt.Errorf("waiting for the successor to restore the tunnel: %w", err)
	}
	return nil
}

// sendState sends an encoded state and descriptors.
func (c Conn) sendState(s *State, fds []int) error {
	b, err := s.encode()
	if err != nil {
		return err
	}
	defer clear(b)
	return c.sendFile(b, fds)
}

// sendFile sends a sealed file that holds b, and descriptors.
func (c Conn) sendFile(b []byte, fds []int) error {
	file, err := newSealedFile(b)
	if err != nil {
		return err
	}
	return errors.Join(c.sendFDs(append([]int{file}, fds...)), unix.Close(file))
}

// SendCounters sends the counters of a tunnel that the successor runs.
func (c Conn) SendCounters(counters *device.Counters) error {
	b, err := counters.Encode()
	if err != nil {
		return err
	}
	return c.sendFile(b, nil)
}

// ReceiveCounters receives what SendCounters sends. The predecessor first erases the session keys of all peers. The end of ctx closes the
// connection.
func (c Conn) ReceiveCounters(ctx context.Context, peers int) (*device.Counters, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	b, fds, err := c.receiveFile(PreparationTimeout(peers))
	if err == nil && len(fds) > 0 {
		err = errors.Join(errMalformed, closeAll(fds))
	}
	if err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	return device.ParseCounters(b)
}

// RequestSnapshot accepts the predecessor's offer, and returns the tunnel, which still runs, without its control socket and its sockets. The end
// of ctx closes the connection.
func (c Conn) RequestSnapshot(ctx context.Context) (t *Tunnel, err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if err := c.readOffer(); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	if err := checkProcessNetNS(c.PID()); err != nil {
		return nil, err
	}
	if err := c.Send(Prepare); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	s, fds, err := c.receiveState(PreparationTimeout(0)) // the predecessor encodes all peers first
	if err == nil && len(fds) != s.Queues {
		err = errors.Join(errMalformed, closeAll(fds))
	}
	if err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	return &Tunnel{State: *s, ControlFD: -1, QueueFDs: fds}, nil
}

// RequestTunnel has the predecessor stop the tunnel of a snapshot, and completes it. Each time before, the predecessor may send peers that have
// changed, which it passes to update; t.Device holds the last ones. The end of ctx closes the connection.
func (c Conn) RequestTunnel(ctx context.Context, t *Tunnel, update func(changes *device.State) error) error {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	s, fds, err := c.requestState(t)
	for err == nil && len(fds) == 0 {
		if err = update(s.Device); err == nil {
			s, fds, err = c.requestState(t)
		}
	}
	if err != nil {
		return errors.Join(err, ctx.Err())
	}
	if len(fds) != s.sockets() {
		return errors.Join(errMalformed, closeAll(fds))
	}
	if err := checkSocketNetNS(fds[0]); err != nil {
		return errors.Join(err, closeAll(fds))
	}
	t.State = *s
	t.assignSockets(fds)
	return nil
}

// RequestCommit sends Ready and waits for Commit. After an error the predecessor keeps the tunnel: it restarts the tunnel when the caller closes the
// connection. There is no timeout, since the predecessor may end while a successor that was suspended gives up. The end of ctx closes the
// connection, but not after RequestCommit has returned nil.
func (c Conn) RequestCommit(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	err := c.Send(Ready)
	if err == nil {
		err = c.await(Commit, time.Time{})
	}
	if err != nil || !stop() {
		return errors.Join(err, ctx.Err())
	}
	return nil
}

// requestState sends Take, and receives changes, or the stopped tunnel.
func (c Conn) requestState(t *Tunnel) (*State, []int, error) {
	if err := c.Send(Take); err != nil {
		return nil, nil, err
	}
	s, fds, err := c.receiveState(Timeout)
	if err == nil && s.Queues != t.Queues {
		err = errors.Join(errMalformed, closeAll(fds))
	}
	return s, fds, err
}

// Send sends a message. One byte always finds room, so it needs no deadline, which could pass while
// this process is suspended. An error means that the other side has closed the connection.
func (c Conn) Send(m Message) error {
	if err := c.SetWriteDeadline(time.Time{}); err != nil {
		return err
	}
	_, err := c.Write([]byte{byte(m)})
	return err
}

// Await waits for a message.
func (c Conn) Await(want Message, timeout time.Duration) error {
	return c.await(want, time.Now().Add(timeout))
}

// await waits for a message until a deadline, which is zero for none.
func (c Conn) await(want Message, deadline time.Time) error {
	if err := c.SetReadDeadline(deadline); err != nil {
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

// receiveState receives what sendState sends.
func (c Conn) receiveState(timeout time.Duration) (*State, []int, error) {
	b, fds, err := c.receiveFile(timeout)
	if err != nil {
		return nil, nil, err
	}
	defer clear(b)
	s, err := parseState(b)
	if err != nil {
		return nil, nil, errors.Join(err, closeAll(fds))
	}
	return s, fds, nil
}

// receiveFile receives what sendFile sends.
func (c Conn) receiveFile(timeout time.Duration) ([]byte, []int, error) {
	fds, err := c.receiveFDs(timeout)
	if err != nil {
		return nil, nil, errors.Join(err, closeAll(fds))
	}
	b, err := readSealedFile(fds[0])
	if err != nil {
		return nil, nil, errors.Join(err, closeAll(fds[1:]))
	}
	return b, fds[1:], nil
}

// assignSockets is the inverse of SendTunnel. The number of descriptors must match the state.
func (t *Tunnel) assignSockets(fds []int) {
	t.ControlFD, fds = fds[0], fds[1:]
	lanes, fds := fds[:t.Lanes], fds[t.Lanes:]
	t.Sockets = udp.Sockets{Lanes: lanes, Holder: fds[:t.Holders], Selection: t.Selection, Plans: t.Plans}
	for i, fd := range fds[t.Holders:] {
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

// receiveFDs returns the descriptors of sendFDs, which are the caller's. After an error it returns
// the descriptors that have arrived.
func (c Conn) receiveFDs(timeout time.Duration) (fds []int, err error) {
	if err := c.SetReadDeadline(time.Now().Add(timeout)); err != nil {
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
