// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"crypto/rand"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// rig is an engine of one lane with one peer, whose two directions are driven step by step, and the peer's end of the
// session.
type rig struct {
	tb      testing.TB
	now     int64
	engine  *Engine
	tun     *tun.Fake
	control *control
	tx      *transmitter
	rx      *receiver
	conn    *recorder
	peer    *Peer
	owner   *owner
	keys    *session.Keypair // ours
	remote  *session.Keypair // the peer's
	scratch session.Scratch
}

// there is where the peer is, and ours its inner addresses' counterparts.
var (
	there = underlay.Endpoint{Dst: netip.MustParseAddrPort("192.0.2.2:51820"), Src: netip.MustParseAddr("192.0.2.1")}
	out4  = flow.Ends{Src: netip.MustParseAddrPort("10.0.0.1:1000"), Dst: netip.MustParseAddrPort("10.0.0.2:2000")}
	out6  = flow.Ends{Src: netip.MustParseAddrPort("[fd00::1]:1000"), Dst: netip.MustParseAddrPort("[fd00::2]:2000")}
	in4   = flow.Ends{Src: out4.Dst, Dst: out4.Src}
	in6   = flow.Ends{Src: out6.Dst, Dst: out6.Src}
)

func newRig(tb testing.TB) *rig { return newRigWithWorkers(tb, workpool.Config{}) }

// newRigWithWorkers is newRig with workers beside its lane.
func newRigWithWorkers(tb testing.TB, cfg workpool.Config) *rig {
	c, err := workpool.Start(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	r := &rig{tb: tb, now: int64(time.Hour), control: &control{}, conn: &recorder{tb: tb}}
	r.tun = tun.NewFake(tun.FakeConfig{Depth: 4096, Features: tun.Features{TSO: true, USO: true}})
	r.engine = New(Config{
		Device: r.tun, Control: r.control, Clock: func() int64 { return r.now }, Rand: rand.Reader, Pool: c,
	})
	l := r.engine.lanes[0]
	conn := underlay.Lane(r.conn)
	l.conn.Store(&conn)
	r.tx, r.rx = newTransmitter(l, txSlots), newReceiver(l, rxSlots)
	r.tx.grow() // tests fill the slots that they need
	r.rx.setSlots(rxSlots)
	r.rx.setSlots(rxTrains)
	r.peer, r.owner = r.newPeer("10.0.0.2/32", "fd00::2/128")
	r.keys, r.remote = r.newSession(r.peer, true)
	r.peer.Current.Store(r.keys)
	return r
}

func (r *rig) newPeer(prefixes ...string) (*Peer, *owner) {
	o := &owner{}
	p := r.engine.NewPeer(o)
	p.Endpoint.Store(&there)
	r.engine.Routes.Update(func(e *peer.Editor[*Peer]) {
		for _, s := range prefixes {
			e.Add(netip.MustParsePrefix(s), p)
		}
	})
	return p, o
}

// newSession returns both ends of a session with p; the engine knows the first.
func (r *rig) newSession(p *Peer, initiator bool) (ours, theirs *session.Keypair) {
	s := &Session{Peer: p}
	index, err := r.engine.Sessions.Add(s)
	if err != nil {
		r.tb.Fatal(err)
	}
	k := noise.Keys{Local: index, Remote: index ^ 0xffffffff, Initiator: initiator}
	_, _ = rand.Read(k.Send[:])
	_, _ = rand.Read(k.Recv[:])
	ours = r.keypair(k)
	k.Send, k.Recv, k.Local, k.Remote, k.Initiator = k.Recv, k.Send, k.Remote, k.Local, !initiator
	s.Keys.Store(ours)
	theirs = r.keypair(k)
	r.engine.AnnounceStreams(ours)
	theirs.AgreeStreams(true)
	return ours, theirs
}

func (r *rig) keypair(k noise.Keys) *session.Keypair {
	keys, err := session.NewKeypair(&k, r.now)
	if err != nil {
		r.tb.Fatal(err)
	}
	return keys
}

// transmit sends one batch of trains through the transmitter.
func (r *rig) transmit(elements ...[]byte) {
	for i, e := range elements {
		r.tx.sizes[i] = copy(r.tx.bufs[i], e)
	}
	r.tx.reader.hash(r.tx.txBatch, len(elements))
	r.tx.sendBatch(len(elements))
}

// sent returns the plaintexts of the messages sent to the peer since the last call, padding included.
func (r *rig) sent() (plain [][]byte) {
	r.tb.Helper()
	for _, run := range r.conn.taken() {
		for _, msg := range run {
			plain = append(plain, r.open(msg))
		}
	}
	return plain
}

// open decrypts one message to the peer, padding included.
func (r *rig) open(msg []byte) []byte {
	r.tb.Helper()
	out := make([]session.Message, 1)
	r.remote.OpenTrain(&r.scratch, r.now, msg, len(msg), out)
	if out[0].Drop != drop.None {
		r.tb.Fatalf("message of %d bytes does not open: got %v, want %v", len(msg), out[0].Drop, drop.None)
	}
	return out[0].Padded
}

// seal returns data messages from the peer, back to back; all plaintexts but the last have one size.
func (r *rig) seal(plain ...[]byte) (run []byte, size int) {
	for _, p := range plain {
		msg := r.message(r.remote, p)
		size = max(size, len(msg))
		run = append(run, msg...)
	}
	return run, size
}

func (r *rig) message(k *session.Keypair, plain []byte) []byte {
	l := session.NewLayout(1, len(plain), len(plain), DefaultMTU)
	msg := make([]byte, l.Size())
	copy(msg[wire.DataHeaderLen:], plain)
	counter, ok := k.Reserve(1)
	if !ok || k.SealTrain(&r.scratch, msg, l, counter) != len(msg) {
		r.tb.Fatal("the peer cannot seal")
	}
	return msg
}

// receive passes one batch of one datagram run through the receiver.
func (r *rig) receive(run []byte, size int) { r.receiveFrom(there, run, size) }

// batch handles n received elements completely.
func (r *receiver) batch(n int) {
	for r.handleReceived(n); !r.idle(); r.handleReceived(0) {
	}
}

func (r *rig) receiveFrom(from underlay.Endpoint, run []byte, size int) {
	r.arriveFrom(0, from, run, size)
	r.rx.batch(1)
}

// arriveFrom makes run datagram i of the next batch.
func (r *rig) arriveFrom(i int, from underlay.Endpoint, run []byte, size int) {
	d := &r.rx.in[i]
	d.N, d.SegSize, d.From, d.Truncated = copy(d.Buf, run), size, from, false
}

// delivered returns the trains written to the TUN since the last call.
func (r *rig) delivered() (elements [][]byte) {
	buf := make([]byte, tun.MaxTrain)
	for n := r.tun.TryReceive(0, buf); n > 0; n = r.tun.TryReceive(0, buf) {
		elements = append(elements, bytes.Clone(buf[:n]))
	}
	return elements
}

// drops is the number of packets dropped for reason, on the lane and off it.
func (r *rig) drops(reason drop.Reason) uint64 {
	return r.engine.lanes[0].stats.drops.Get(reason) + r.engine.SlowDrops.Get(reason)
}

// allDrops is the number of packets dropped for any reason.
func (r *rig) allDrops() (n uint64) {
	for reason := drop.None + 1; reason < drop.Count; reason++ {
		n += r.drops(reason)
	}
	return n
}

// recorder is an underlay.Lane that records all runs, or only counts them if silent.
type recorder struct {
	underlay.Lane
	tb     testing.TB
	silent bool
	fail   func(*underlay.Run) error
	mu     sync.Mutex
	runs   [][][]byte // datagrams of each
	from   []int      // source of each
	closed bool
	count  int // messages
	sends  int // calls of Send
}

// Send implements underlay.Lane.
func (c *recorder) Send(runs []underlay.Run) (failed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sends++
	for i := range runs {
		r := &runs[i]
		if r.Err = r.Check(); r.Err == nil && c.fail != nil {
			r.Err = c.fail(r)
		}
		c.count += r.Segments
		if r.Err != nil {
			failed++
			continue
		}
		if c.silent {
			continue
		}
		var run [][]byte
		for datagram := range r.Datagrams {
			run = append(run, bytes.Clone(datagram))
		}
		if len(run) != r.Segments {
			c.tb.Errorf("run of %d datagrams declares %d", len(run), r.Segments)
		}
		c.runs, c.from = append(c.runs, run), append(c.from, r.Source)
	}
	return failed
}

// SendFD implements underlay.Lane.
func (c *recorder) SendFD(*underlay.Run) int { return -1 }

// BeginWait implements underlay.Lane.
func (c *recorder) BeginWait() bool { return !c.closed }

// EndWait implements underlay.Lane.
func (c *recorder) EndWait() {}

func (c *recorder) taken() [][][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	runs := c.runs
	c.runs, c.from = nil, nil
	return runs
}

// receivedPart is a part of a post-quantum exchange, and the key pair under which it has arrived.
type receivedPart struct {
	plain string
	keys  *session.Keypair
}

// owner is a SlowPath that records all calls.
type owner struct {
	staged    [][]byte
	confirmed []*session.Keypair
	rekeys    int
	roams     []underlay.Endpoint
	heard     int
	probes    int
	tooBig    int
	full      int
	hellos    [][]byte
	parts     []receivedPart
	refusal   drop.Reason             // of hellos and parts
	onStage   func() *session.Keypair // nil for none; its result is that of Stage
}

func (o *owner) Stage(element []byte, _ int) *session.Keypair {
	if o.onStage != nil {
		if keys := o.onStage(); keys != nil {
			return keys
		}
	}
	o.staged = append(o.staged, bytes.Clone(element))
	return nil
}
func (o *owner) Confirm(keys *session.Keypair) { o.confirmed = append(o.confirmed, keys) }
func (o *owner) Rekey()                        { o.rekeys++ }
func (o *owner) Roam(from underlay.Endpoint)   { o.roams = append(o.roams, from) }
func (o *owner) TooBig(int)                    { o.tooBig++ }
func (o *owner) OnHeard()                      { o.heard++ }
func (o *owner) ProbeDue()                     { o.probes++ }
func (o *owner) SendBufferFull()               { o.full++ }
func (o *owner) ExchangePart(plain []byte, keys *session.Keypair) drop.Reason {
	o.parts = append(o.parts, receivedPart{string(plain), keys})
	return o.refusal
}

func (o *owner) Hello(plain []byte, _ underlay.Endpoint) drop.Reason {
	o.hellos = append(o.hellos, bytes.Clone(plain))
	return o.refusal
}

// control takes handshake messages.
type control struct {
	messages [][]byte
	from     []underlay.Endpoint
	reason   drop.Reason
}

func (c *control) Handshake(msg []byte, from underlay.Endpoint) drop.Reason {
	c.messages = append(c.messages, bytes.Clone(msg))
	c.from = append(c.from, from)
	return c.reason
}

// packetsOf returns the packets of trains.
func packetsOf(tb testing.TB, elements ...[]byte) (all [][]byte) {
	tb.Helper()
	for _, e := range elements {
		packets, err := flow.Packets(e)
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, packets...)
	}
	return all
}

// unpadded cuts plaintexts to the packets in them.
func unpadded(tb testing.TB, plain [][]byte) (packets [][]byte) {
	tb.Helper()
	for _, p := range plain {
		n, ok := packet.Length(p)
		if !ok {
			tb.Fatalf("plaintext of %d bytes is no packet", len(p))
		}
		packets = append(packets, p[:n])
	}
	return packets
}

// samePackets fails unless both are the same packets in the same order.
func samePackets(tb testing.TB, got, want [][]byte) {
	tb.Helper()
	if len(got) != len(want) {
		tb.Fatalf("got %d packets, want %d", len(got), len(want))
	}
	for i := range got {
		if !bytes.Equal(got[i], want[i]) {
			tb.Fatalf("packet %d is\n% x, want\n% x", i, got[i], want[i])
		}
	}
}

// vnetHeader returns a train with the given virtio-net header.
func vnetHeader(h offload.VnetHdr, p []byte) []byte {
	e := flow.WithVnetHeader(p)
	h.Encode(e)
	return e
}
