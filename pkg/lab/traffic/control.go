// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// maxLine is the maximum length of a message. The longest is a report of MaxStreams streams.
const maxLine = 256 << 10

// message is one line of JSON on a control connection, with one field set. The first line of a connection is Open or Data.
// After the line with Data, the client sends the bytes of a TCP stream on the same connection.
type message struct {
	Open     *openMsg   `json:"open,omitempty"`     // client: begin a run
	Data     *dataMsg   `json:"data,omitempty"`     // client: this connection is a stream of a run
	Ready    *readyMsg  `json:"ready,omitempty"`    // server: the client may send
	Progress *Counts    `json:"progress,omitempty"` // server, while the run lasts
	Done     *doneMsg   `json:"done,omitempty"`     // client: all data has been sent
	Report   *reportMsg `json:"report,omitempty"`   // server: the outcome
	Error    string     `json:"error,omitempty"`    // server: the run failed
}

type openMsg struct {
	Key     uint64 `json:"key"` // identifies the run
	Kind    Kind   `json:"kind"`
	Streams int    `json:"streams"`
	Size    int    `json:"size"` // of a UDP payload, in bytes
	// Warmup is in nanoseconds.
	Warmup time.Duration `json:"warmup,omitempty"`
}

type dataMsg struct {
	Key    uint64 `json:"key"`
	Stream int    `json:"stream"`
}

type readyMsg struct {
	Ports []uint16 `json:"ports,omitempty"` // UDP, one per stream
}

type doneMsg struct {
	Sent []uint64 `json:"sent"` // datagrams or bytes, per stream
}

type reportMsg struct {
	Streams []Stream `json:"streams"` // the receiver's side
}

// control sends and receives messages on a connection. One goroutine may read while another writes.
type control struct {
	net.Conn
	r *bufio.Reader
}

func newControl(conn net.Conn) *control {
	return &control{Conn: conn, r: bufio.NewReaderSize(conn, maxLine)}
}

func (c *control) write(m message) error {
	line, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encoding a control message: %w", err)
	}
	if _, err := c.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("writing a control message: %w", err)
	}
	return nil
}

func (c *control) read() (message, error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, io.EOF) && len(line) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return message{}, fmt.Errorf("reading a control message: %w", err)
	}
	return parseMessage(line)
}

func parseMessage(line []byte) (message, error) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return message{}, fmt.Errorf("parsing a control message: %w", err)
	}
	if m.Error != "" {
		return message{}, fmt.Errorf("error from the server: %s", m.Error)
	}
	return m, nil
}
