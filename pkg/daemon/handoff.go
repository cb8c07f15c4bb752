// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/device"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// Version is that of what is handed over. Two daemons of different versions cannot: the one that has the tunnel goes on.
const Version = 1

// ErrVersion says that the other daemon's version is another one.
var ErrVersion = errors.New("the other daemon is of a version that cannot hand over to this one, or the other way round")

const (
	handoffMagic  = "ropewalk"
	handoffHeader = len(handoffMagic) + 8
	// maxHandoff bounds the text, in bytes: some 64 Ki peers.
	maxHandoff = 256 << 20
)

// handoff is a tunnel without its descriptors, which follow in this order: the control socket, the queues, the sockets of the lanes,
// the sources. It holds secrets.
type handoff struct {
	Name    string   `json:"name"`
	Queues  int      `json:"queues"`
	Steered bool     `json:"steered"`
	Lanes   int      `json:"lanes"`   // with a socket; 0 while the interface is down
	Sources []uint16 `json:"sources"` // ports
	// Selection is in force for the sockets, with so many of its plans.
	Selection *underlay.Selection `json:"selection"`
	Plans     int                 `json:"plans"`
	Device    json.RawMessage     `json:"device"`

	state *device.State
}

// Format prints nothing of what is inside, whatever the verb.
func (h *handoff) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "hand-over") }

// LogValue logs nothing of what is inside.
func (h *handoff) LogValue() slog.Value { return slog.StringValue("hand-over") }

// descriptors is how many follow.
func (h *handoff) descriptors() int { return 1 + h.Queues + h.Lanes + len(h.Sources) }

// encode returns magic, version and length, and the text.
func (h *handoff) encode() ([]byte, error) {
	text, err := json.Marshal((*plainHandoff)(h))
	if err != nil {
		return nil, fmt.Errorf("writing what is handed over: %w", err)
	}
	defer clear(text)
	b := append(make([]byte, 0, handoffHeader+len(text)), handoffMagic...)
	b = binary.BigEndian.AppendUint32(b, Version)
	b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
	return append(b, text...), nil
}

type plainHandoff handoff

// errHandoff says that something is not what encode returns. What is wrong is not said: it may be next to a key.
var errHandoff = errors.New("what was handed over makes no sense")

// parseHandoff is the inverse of encode. The error for another version is ErrVersion.
func parseHandoff(b []byte) (*handoff, error) {
	if len(b) < handoffHeader || string(b[:len(handoffMagic)]) != handoffMagic {
		return nil, errHandoff
	}
	if v := binary.BigEndian.Uint32(b[len(handoffMagic):]); v != Version {
		return nil, fmt.Errorf("version %d, not %d: %w", v, Version, ErrVersion)
	}
	text := b[handoffHeader:]
	if n := binary.BigEndian.Uint32(b[handoffHeader-4:]); uint64(n) != uint64(len(text)) || n > maxHandoff {
		return nil, errHandoff
	}
	h := new(handoff)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if d.Decode((*plainHandoff)(h)) != nil || d.More() || !h.valid() {
		return nil, errHandoff
	}
	var err error
	h.state, err = device.ParseState(h.Device)
	clear(h.Device)
	h.Device = nil
	return h, err
}

func (h *handoff) valid() bool {
	ok := h.Name != "" && h.Queues >= 1 && h.Queues <= config.MaxLanes && (h.Lanes == 0 || h.Lanes == h.Queues) &&
		len(h.Sources) <= underlay.MaxSources && h.Plans >= 0
	if h.Selection == nil {
		return ok && h.Plans == 0
	}
	for _, p := range h.Selection.Plans {
		ok = ok && p.From.IsValid() && !p.From.Is4In6() && p.From.Zone() == ""
	}
	return ok && h.Plans <= len(h.Selection.Plans)
}
