// SPDX-License-Identifier: Apache-2.0

package lanetest

import (
	"bytes"
	"crypto/rand"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// Rig is a lane with one peer, and the peer's end of the session.
type Rig struct {
	TB        testing.TB
	Now       int64
	Shared    *lane.Shared
	Lane      *lane.Lane
	Flows     *lane.Observer
	streams   *session.StreamBudget
	SlowDrops drop.Counters
	TUN       *tuntest.Fake
	Control   *Control
	Conn      *Recorder
	Peer      *lane.Peer
	Owner     *Owner
	Keys      *session.Keypair // ours
	Remote    *session.Keypair // the peer's
	Scratch   session.Scratch
	Receiver  func(from underlay.Endpoint, run []byte, size int) // takes what arrives
}

// There is the peer's endpoint. Out4 and Out6 are the ends of flows to the peer, In4 and In6 of flows from it.
var (
	There = underlay.Endpoint{Dst: netip.MustParseAddrPort("192.0.2.2:51820"), Src: netip.MustParseAddr("192.0.2.1")}
	Out4  = flow.Ends{Src: netip.MustParseAddrPort("10.0.0.1:1000"), Dst: netip.MustParseAddrPort("10.0.0.2:2000")}
	Out6  = flow.Ends{Src: netip.MustParseAddrPort("[fd00::1]:1000"), Dst: netip.MustParseAddrPort("[fd00::2]:2000")}
	In4   = flow.Ends{Src: Out4.Dst, Dst: Out4.Src}
	In6   = flow.Ends{Src: Out6.Dst, Dst: Out6.Src}
)

// New returns a lane with workers.
func New(tb testing.TB, cfg workpool.Config) *Rig {
	tb.Helper()
	c, err := workpool.Start(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	var r *Rig
	clock, control := func() int64 { return r.Now }, &Control{}
	device := tuntest.NewFake(tuntest.FakeConfig{Depth: 4096, Features: tun.Features{TSO: true, USO: true}})
	r = NewOf(tb, lane.NewShared(func() int64 { return clock() }, control, rand.Reader, 1, true), device)
	r.Control = control
	r.Lane = lane.New(r.Shared, 0, r.TUN.Queues()[0], c)
	r.Flows = lane.NewObserver(clock, r.Lane)
	conn := underlay.Lane(r.Conn)
	r.Lane.Conn.Store(&conn)
	return r
}

// NewOf returns a peer of the lanes of an engine, which have the queues of device.
func NewOf(tb testing.TB, s *lane.Shared, device *tuntest.Fake) *Rig {
	tb.Helper()
	r := &Rig{TB: tb, Now: int64(time.Hour), Shared: s, TUN: device, Conn: &Recorder{TB: tb}, streams: session.NewStreamBudget(1 << 30)}
	r.Peer, r.Owner = r.NewPeer("10.0.0.2/32", "fd00::2/128")
	r.Keys, r.Remote = r.NewSession(r.Peer, true)
	r.Peer.Current.Store(r.Keys)
	return r
}

// NewPeer returns a peer with the given allowed IPs, at There.
func (r *Rig) NewPeer(prefixes ...string) (*lane.Peer, *Owner) {
	o := &Owner{}
	p := r.Shared.NewPeer(o)
	p.Endpoint.Store(&There)
	r.Shared.Routes.Update(func(e *peer.Editor[*lane.Peer]) {
		for _, s := range prefixes {
			e.Add(netip.MustParsePrefix(s), p)
		}
	})
	return p, o
}

// NewSession returns both ends of a session with p; the engine knows the first.
func (r *Rig) NewSession(p *lane.Peer, initiator bool) (ours, theirs *session.Keypair) {
	s := &lane.Session{Peer: p}
	index, err := r.Shared.Sessions.Add(s)
	if err != nil {
		r.TB.Fatal(err)
	}
	k := noise.Keys{Local: index, Remote: index ^ 0xffffffff, Initiator: initiator}
	_, _ = rand.Read(k.Send[:])
	_, _ = rand.Read(k.Recv[:])
	ours = r.Keypair(k)
	k.Send, k.Recv, k.Local, k.Remote, k.Initiator = k.Recv, k.Send, k.Remote, k.Local, !initiator
	s.Keys.Store(ours)
	theirs = r.Keypair(k)
	ours.AnnounceStreams(r.streams)
	theirs.AgreeStreams(true)
	return ours, theirs
}

// Keypair returns a key pair that begins now.
func (r *Rig) Keypair(k noise.Keys) *session.Keypair {
	keys, err := session.NewKeypair(&k, r.Now)
	if err != nil {
		r.TB.Fatal(err)
	}
	return keys
}

// Sent returns the plaintexts of the messages sent to the peer since the last call, padding included.
func (r *Rig) Sent() (plain [][]byte) {
	r.TB.Helper()
	for _, run := range r.Conn.Taken() {
		for _, msg := range run {
			plain = append(plain, r.Open(msg))
		}
	}
	return plain
}

// Open decrypts one message to the peer, padding included.
func (r *Rig) Open(msg []byte) []byte {
	r.TB.Helper()
	out := make([]session.Message, 1)
	r.Remote.OpenTrain(&r.Scratch, r.Now, msg, len(msg), out)
	if out[0].Drop != drop.None {
		r.TB.Fatalf("message of %d bytes does not open: got %v, want %v", len(msg), out[0].Drop, drop.None)
	}
	return out[0].Padded
}

// Seal returns data messages from the peer, back to back; all plaintexts but the last have one size.
func (r *Rig) Seal(plain ...[]byte) (run []byte, size int) {
	for _, p := range plain {
		msg := r.Message(r.Remote, p)
		size = max(size, len(msg))
		run = append(run, msg...)
	}
	return run, size
}

// Message returns one data message under k.
func (r *Rig) Message(k *session.Keypair, plain []byte) []byte {
	l := session.NewLayout(1, len(plain), len(plain), lane.DefaultMTU)
	msg := make([]byte, l.Size())
	copy(msg[wire.DataHeaderLen:], plain)
	counter, ok := k.Reserve(1)
	if !ok || k.SealTrain(&r.Scratch, msg, l, counter) != len(msg) {
		r.TB.Fatal("the peer cannot seal")
	}
	return msg
}

// Receive passes one batch of one datagram run through the receiver.
func (r *Rig) Receive(run []byte, size int) { r.Receiver(There, run, size) }

// ReceiveFrom is Receive from another endpoint.
func (r *Rig) ReceiveFrom(from underlay.Endpoint, run []byte, size int) { r.Receiver(from, run, size) }

// Delivered returns the trains written to the TUN since the last call.
func (r *Rig) Delivered() (elements [][]byte) {
	buf := make([]byte, tun.MaxTrain)
	for n := r.TUN.TryReceive(0, buf); n > 0; n = r.TUN.TryReceive(0, buf) {
		elements = append(elements, bytes.Clone(buf[:n]))
	}
	return elements
}

// Drops is the number of packets dropped for reason, on the lane and off it.
func (r *Rig) Drops(reason drop.Reason) uint64 {
	return r.Lane.Stats.Drops.Get(reason) + r.SlowDrops.Get(reason)
}

// AllDrops is the number of packets dropped for any reason.
func (r *Rig) AllDrops() (n uint64) {
	for reason := drop.None + 1; reason < drop.Count; reason++ {
		n += r.Drops(reason)
	}
	return n
}

// Hasty advances the clock with each batch, so that a backoff for lack of cores ends soon.
func (r *Rig) Hasty() {
	r.Shared.Clock = func() int64 {
		r.Now += int64(time.Millisecond)
		return r.Now
	}
}

// SentRaw returns the messages that were sent.
func (r *Rig) SentRaw() (all [][]byte) {
	for _, run := range r.Conn.Taken() {
		all = append(all, run...)
	}
	return all
}

// Observed returns the flows that the engine counts, and sums of their counters.
func (r *Rig) Observed() (flows []lane.FlowStats, sum lane.FlowCounters) {
	flows, _ = r.Flows.Flows()
	for _, f := range flows {
		sum.Packets += f.Packets
		sum.Marks += f.Marks
		sum.Drops += f.Drops
	}
	return flows, sum
}

// WantFlows fails the test unless the given flows of the rig's peer are counted.
func (r *Rig) WantFlows(want ...lane.FlowStats) {
	r.TB.Helper()
	flows, _ := r.Observed()
	options := []cmp.Option{
		cmpopts.IgnoreFields(lane.FlowStats{}, "Peer"), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
		cmpopts.SortSlices(func(a, b lane.FlowStats) bool { return a.Bytes < b.Bytes }),
	}
	if diff := cmp.Diff(want, flows, options...); diff != "" {
		r.TB.Errorf("flows (-want +got): %s", diff)
	}
	for _, f := range flows {
		if f.Peer != r.Peer {
			r.TB.Errorf("%v has peer %p, want %p", f.Flow, f.Peer, r.Peer)
		}
	}
}
