// SPDX-License-Identifier: Apache-2.0

package lanetest

import (
	"bytes"
	"sync"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// Recorder is an underlay.Lane that records all runs, or only counts them if silent.
type Recorder struct {
	underlay.Lane
	TB     testing.TB
	Silent bool
	Fail   func(*underlay.Run) error
	mu     sync.Mutex
	Runs   [][][]byte // datagrams of each
	From   []int      // source of each
	Closed bool
	Count  int // messages
	Sends  int // calls of Send
}

// Send implements underlay.Lane.
func (c *Recorder) Send(runs []underlay.Run) (failed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Sends++
	for i := range runs {
		r := &runs[i]
		if r.Err = r.Check(); r.Err == nil && c.Fail != nil {
			r.Err = c.Fail(r)
		}
		c.Count += r.Segments
		if r.Err != nil {
			failed++
			continue
		}
		if c.Silent {
			continue
		}
		var run [][]byte
		for datagram := range r.Datagrams {
			run = append(run, bytes.Clone(datagram))
		}
		if len(run) != r.Segments {
			c.TB.Errorf("run of %d datagrams declares %d", len(run), r.Segments)
		}
		c.Runs, c.From = append(c.Runs, run), append(c.From, r.Source)
	}
	return failed
}

// SendFD implements underlay.Lane.
func (c *Recorder) SendFD(*underlay.Run) int { return -1 }

// BeginWait implements underlay.Lane.
func (c *Recorder) BeginWait() bool { return !c.Closed }

// EndWait implements underlay.Lane.
func (c *Recorder) EndWait() {}

func (c *Recorder) Taken() [][][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	runs := c.Runs
	c.Runs, c.From = nil, nil
	return runs
}

// ReceivedPart is a part of a post-quantum exchange, and the key pair under which it has arrived.
type ReceivedPart struct {
	Plain string
	Keys  *session.Keypair
}

// Owner is a SlowPath that records all calls.
type Owner struct {
	Staged    [][]byte
	Confirmed []*session.Keypair
	Rekeys    int
	Roams     []underlay.Endpoint
	Heard     int
	Probes    int
	tooBig    int
	Full      int
	Hellos    [][]byte
	Parts     []ReceivedPart
	Refusal   drop.Reason             // of hellos and parts
	OnStage   func() *session.Keypair // nil for none. Stage returns its result
}

func (o *Owner) Stage(element []byte, _ int) *session.Keypair {
	if o.OnStage != nil {
		if keys := o.OnStage(); keys != nil {
			return keys
		}
	}
	o.Staged = append(o.Staged, bytes.Clone(element))
	return nil
}

func (o *Owner) Confirm(keys *session.Keypair) { o.Confirmed = append(o.Confirmed, keys) }

func (o *Owner) Rekey() { o.Rekeys++ }

func (o *Owner) Roam(from underlay.Endpoint) { o.Roams = append(o.Roams, from) }

func (o *Owner) TooBig(int) { o.tooBig++ }

func (o *Owner) OnHeard() { o.Heard++ }

func (o *Owner) ProbeDue() { o.Probes++ }

func (o *Owner) SendBufferFull() { o.Full++ }

// ExchangePart implements lane.SlowPath.
func (o *Owner) ExchangePart(plain []byte, keys *session.Keypair) drop.Reason {
	o.Parts = append(o.Parts, ReceivedPart{string(plain), keys})
	return o.Refusal
}

func (o *Owner) Hello(plain []byte, _ underlay.Endpoint) drop.Reason {
	o.Hellos = append(o.Hellos, bytes.Clone(plain))
	return o.Refusal
}

// Control takes handshake messages.
type Control struct {
	Messages [][]byte
	From     []underlay.Endpoint
	Reason   drop.Reason
}

func (c *Control) Handshake(msg []byte, from underlay.Endpoint) drop.Reason {
	c.Messages = append(c.Messages, bytes.Clone(msg))
	c.From = append(c.From, from)
	return c.Reason
}
