// SPDX-License-Identifier: Apache-2.0

package udp

import "github.com/ropewalk/ropewalk/pkg/underlay"

// letter is one use of SendTo: a sender for a single datagram, and its run.
type letter struct {
	sender *sender
	runs   [1]underlay.Run
	parts  [1][]byte
}

func newLetter(p *Port) *letter {
	return &letter{sender: &sender{port: p, fd: p.lanes[0].fd, out: newOutbox(1), call: p.lanes[0].tx.call}}
}

func (l *letter) send(to *underlay.Endpoint, datagram []byte) error {
	l.parts[0] = datagram
	l.runs[0] = underlay.Run{To: to, Parts: l.parts[:], SegSize: len(datagram), Segments: 1}
	l.sender.send(l.runs[:])
	err := l.runs[0].Err
	l.parts[0], l.runs[0] = nil, underlay.Run{}
	return err
}
