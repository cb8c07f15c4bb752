// SPDX-License-Identifier: Apache-2.0

package udp

import "github.com/ropewalk/ropewalk/pkg/netio/underlay"

// singleSender is the state of one SendTo or SendRun call: a sender with room for one message, and the run. It never waits: its callers
// hold locks, and a network device may take seconds to empty a send buffer.
type singleSender struct {
	sender *sender
	runs   [1]underlay.Run
	parts  [1][]byte
}

func newSingleSender(p *Port) *singleSender {
	fd := p.lanes[0].fd
	return &singleSender{sender: &sender{port: p, fd: fd, outFD: fd, control: true, out: newSendBatch(1), resend: newSendBatch(1), sendmmsg: p.sendNow}}
}

// handshakeDSCP is the DSCP of handshake messages as in a TOS byte. It is AF41, as in the
// in-kernel WireGuard (HANDSHAKE_DSCP in drivers/net/wireguard/messages.h). A network that is full
// of data then still passes handshakes.
const handshakeDSCP = 0x88

func (l *singleSender) sendTo(to *underlay.Endpoint, datagram []byte) error {
	l.sender.dscp = handshakeDSCP
	defer func() { l.sender.dscp = 0 }()
	l.parts[0] = datagram
	err := l.send(&underlay.Run{To: to, Parts: l.parts[:], SegSize: len(datagram), Segments: 1})
	l.parts[0] = nil
	return err
}

// send sends a run, and sets its Sent.
func (l *singleSender) send(r *underlay.Run) error {
	l.runs[0] = *r
	l.sender.send(l.runs[:])
	r.Sent = l.runs[0].Sent
	err := l.runs[0].Err
	l.runs[0] = underlay.Run{}
	return err
}
