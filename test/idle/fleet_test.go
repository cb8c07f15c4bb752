// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/test/expect"
)

// fleet is many peers that handshake at the same time, each from an address of its own: under load a device limits each address. They send
// through one socket of the device's host, and retry as WireGuard does (paper §6.1): after RekeyTimeout and a random time, with the cookie that
// they got meanwhile.
type fleet struct {
	t      testing.TB
	conn   *net.UDPConn
	device netip.AddrPort
	peers  []*fleetPeer
	made   time.Time
	began  time.Time
	left   int    // without a session
	onAll  func() // called when all have one
	sent   int    // initiations, or responses
	// exchanges says that peers with an exchanger take part in exchanges. Others have only hellos.
	exchanges bool
	// unkeyed is the number of peers that take part in exchanges and have no session with a key.
	unkeyed int
	arrived chan datagram // from the socket
	later   []datagram    // to peers that have a session
}

// datagram is one message from the device to a peer.
type datagram struct {
	to  *fleetPeer
	msg []byte
}

// fleetPeer is one peer.
type fleetPeer struct {
	index     uint32 // its receiver index too
	identity  *noise.Identity
	remote    *noise.Remote // the device
	public    noise.PublicKey
	initiator *noise.Initiator
	jar       *noise.CookieJar
	clock     noise.Clock
	message   wire.Initiation
	retry     time.Time     // zero: it does not initiate
	took      time.Duration // until it had a session; 0: it has none
	exchanger *exchanger    // nil: it takes part in no exchanges
	named     postquantum.Key
	local     uint32 // of the last handshake
	waiting   int    // messages in fleet.later
}

// newFleet returns n peers of a device.
func newFleet(t testing.TB, n int, device noise.PublicKey, conn *net.UDPConn) *fleet {
	t.Helper()
	f := &fleet{t: t, conn: conn, made: time.Now(), arrived: make(chan datagram, 1<<16), onAll: func() {}}
	for i := range n {
		key, err := noise.NewPrivateKey(rand.Reader)
		expect.NoError(t, err)
		p := &fleetPeer{index: uint32(i), public: key.Public()}
		p.identity, err = noise.NewIdentity(key)
		expect.NoError(t, err)
		p.remote, err = noise.NewRemote(p.identity, device)
		expect.NoError(t, err)
		p.initiator = noise.NewInitiator(p.remote)
		f.peers = append(f.peers, p)
	}
	var reader sync.WaitGroup
	done := make(chan struct{})
	reader.Go(func() { f.read(done) })
	t.Cleanup(func() {
		close(done)
		_ = conn.Close()
		reader.Wait()
	})
	return f
}

// read takes messages from the socket until done is closed, and then the socket. As the peers' hosts do, it has room for all of them.
func (f *fleet) read(done <-chan struct{}) {
	var buf [2048]byte
	var oob [128]byte
	for {
		n, o, _, _, err := f.conn.ReadMsgUDPAddrPort(buf[:], oob[:])
		if errors.Is(err, unix.ECONNREFUSED) { // an answer to an earlier message
			continue
		}
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				f.t.Error(err)
			}
			return
		}
		to := f.receiver(oob[:o])
		if to == nil {
			continue
		}
		select {
		case f.arrived <- datagram{to, bytes.Clone(buf[:n])}:
		case <-done:
			return
		}
	}
}

// fleetSocket opens a socket that sends from, and receives at, all addresses of 127.0.0.0/8.
func fleetSocket() (*net.UDPConn, error) {
	conn, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return nil, fmt.Errorf("opening the peers' socket: %w", err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("setting up the peers' socket: %w", err)
	}
	return conn, errors.Join(control(raw, unix.IPPROTO_IP, unix.IP_PKTINFO, 1), control(raw, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20))
}

// control sets a socket option.
func control(raw syscall.RawConn, level, option, value int) (err error) {
	return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) }), err)
}

// addr returns the address of a peer. None is 127.0.x.y, where the device is.
func (p *fleetPeer) addr() (a [4]byte) {
	binary.BigEndian.PutUint32(a[:], 127<<24|1<<16+p.index)
	return a
}

// config returns the device's configuration with all peers. With dialed the device knows their endpoints, and initiates.
func (f *fleet) config(dialed bool) (d config.Device) {
	keepalive := uint16(25)
	_, port, _ := net.SplitHostPort(f.conn.LocalAddr().String())
	for i, p := range f.peers {
		v4, v6 := inner(i)
		c := config.Peer{PublicKey: p.public, AllowedIPs: []config.AllowedIP{{Prefix: netip.PrefixFrom(v4, 32)}, {Prefix: netip.PrefixFrom(v6, 128)}}}
		if dialed {
			at := netip.MustParseAddrPort(netip.AddrFrom4(p.addr()).String() + ":" + port)
			c.Endpoint, c.Keepalive = &config.Endpoint{AddrPort: at}, &keepalive
		}
		d.Peers = append(d.Peers, c)
	}
	return d
}

// prepare forgets all sessions of a device that has been restarted, and creates the first initiations, so that this takes no time later.
func (f *fleet) prepare(port uint16, initiate bool) {
	f.t.Helper()
	f.device = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	f.left, f.sent, f.unkeyed, f.later = len(f.peers), 0, 0, nil
	if f.exchanges {
		f.unkeyed = len(f.peers)
	}
	for _, p := range f.peers {
		p.took, p.waiting, p.retry, p.jar = 0, 0, time.Time{}, noise.NewCookieJar(p.remote)
		if p.exchanger != nil {
			p.exchanger.restarted()
		}
		if initiate {
			expect.NoError(f.t, p.create(f.now()))
		}
	}
}

// create creates the next initiation.
func (p *fleetPeer) create(now int64) error {
	t := p.clock.Now(time.Now())
	if p.exchanger != nil {
		t, p.named = p.exchanger.mark(t)
	}
	err := p.initiator.CreateInitiation(&p.message, p.nextLocal(), t, rand.Reader)
	return errors.Join(err, p.jar.AddMACs(p.message[:], now))
}

// nextLocal returns the receiver index of the next handshake.
func (p *fleetPeer) nextLocal() uint32 {
	if p.exchanger != nil {
		p.local += 1 << 20
	}
	return p.local | p.index
}

// now returns the time for cookies, in ns.
func (f *fleet) now() int64 { return int64(time.Since(f.made)) }

// initiate sends the initiations of all peers at once. The handshakes are completed by run.
func (f *fleet) initiate() error {
	for _, p := range f.peers {
		if err := f.sendInitiation(p); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) sendInitiation(p *fleetPeer) error {
	p.retry = time.Now().Add(time.Duration(peer.RekeyTimeout + mathrand.Int64N(peer.MaxJitter)))
	f.sent++
	return f.send(p, p.message[:])
}

func (f *fleet) send(p *fleetPeer, msg []byte) error {
	_, _, err := f.conn.WriteMsgUDPAddrPort(msg, unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: p.addr()}), f.device)
	if errors.Is(err, unix.ECONNREFUSED) { // an answer to an earlier message
		return nil
	}
	return err
}

// run handles messages until all peers have a session, for limit at most. Each peer of a real fleet has a CPU of its own, so the exchange of one
// delays the session of no other. Here the messages to peers that have a session wait for all others.
func (f *fleet) run(limit time.Duration) (err error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	always := make(chan struct{})
	close(always)
	for err == nil && (f.left > 0 || f.unkeyed > 0) {
		var idle chan struct{}
		if len(f.later) > 0 && len(f.arrived) == 0 {
			idle = always
		}
		select {
		case <-idle:
			d := f.later[0]
			f.later = f.later[1:]
			d.to.waiting--
			err = f.handle(d.to, d.msg)
		case d := <-f.arrived:
			if d.to.took == 0 {
				err = f.handle(d.to, d.msg)
				break
			}
			d.to.waiting++
			f.later = append(f.later, d)
		case now := <-tick.C:
			if now.Sub(f.began) > limit {
				return fmt.Errorf("%d of %d peers have no session, and %d no key, after %v", f.left, len(f.peers), f.unkeyed, limit)
			}
			err = f.retry(now)
		}
	}
	return err
}

// retry sends the initiations again that are due.
func (f *fleet) retry(now time.Time) error {
	for _, p := range f.peers {
		if p.exchanger != nil && p.waiting == 0 {
			if err := f.tick(p, now); err != nil {
				return err
			}
		}
		if p.took > 0 || p.retry.IsZero() || now.Before(p.retry) {
			continue
		}
		if err := errors.Join(p.create(f.now()), f.sendInitiation(p)); err != nil {
			return err
		}
	}
	return nil
}

// receiver returns the peer to whose address a message was sent; nil if there is none.
func (f *fleet) receiver(oob []byte) *fleetPeer {
	_, info, _, err := unix.ParseOneSocketControlMessage(oob)
	if err != nil || len(info) < unix.SizeofInet4Pktinfo {
		return nil
	}
	i := int(binary.BigEndian.Uint32(info[8:])) - (127<<24 | 1<<16) // in_pktinfo.ipi_addr
	if i < 0 || i >= len(f.peers) {
		return nil
	}
	return f.peers[i]
}

// handle handles one message from the device to a peer.
func (f *fleet) handle(p *fleetPeer, msg []byte) error {
	kind, reason := wire.Classify(msg)
	if reason != drop.None {
		return nil
	}
	switch kind {
	case wire.TypeInitiation:
		return f.respond(p, msg)
	case wire.TypeResponse:
		return f.complete(p, msg)
	case wire.TypeCookieReply:
		p.jar.ConsumeReply(msg, f.now())
	case wire.TypeData:
		if p.exchanger != nil {
			return f.data(p, msg)
		}
		f.connected(p) // the device's first message confirms a session that it has initiated
	}
	return nil
}

// connected notes that a peer has a session.
func (f *fleet) connected(p *fleetPeer) {
	if p.took == 0 {
		p.took = time.Since(f.began)
		if f.left--; f.left == 0 {
			f.onAll()
		}
	}
}

// complete takes a response, and confirms the session with a keepalive.
func (f *fleet) complete(p *fleetPeer, msg []byte) error {
	var psk, mixed noise.PresharedKey
	if p.named.Named {
		mixed, _ = p.exchanger.x.Ring.Effective(p.named.ID, &psk)
	}
	keys, reason := p.initiator.ConsumeResponse(msg, &psk, &mixed)
	if reason != drop.None {
		return nil
	}
	pair, err := session.NewKeypair(&keys, 0)
	if err != nil {
		return err
	}
	first, _ := pair.Reserve(1)
	var keepalive [wire.KeepaliveSize]byte
	pair.SealTrain(new(session.Scratch), keepalive[:], session.NewLayout(1, 0, 0, 0), first)
	f.connected(p)
	err = f.send(p, keepalive[:])
	if p.exchanger != nil {
		err = errors.Join(err, f.established(p, pair, &keys))
	}
	return err
}

// respond answers an initiation.
func (f *fleet) respond(p *fleetPeer, msg []byte) error {
	r := noise.NewResponder(p.identity)
	if _, reason := r.ConsumeInitiation(msg); reason != drop.None {
		return nil
	}
	at, reason := r.Authenticate(p.remote)
	if reason != drop.None {
		return nil
	}
	var response wire.Response
	var psk noise.PresharedKey
	var key postquantum.Key
	if p.exchanger != nil {
		psk, key = p.exchanger.named(at)
	}
	keys, err := r.CreateResponse(&response, p.nextLocal(), &psk, rand.Reader)
	if err != nil {
		return err
	}
	if p.exchanger != nil {
		pair, err := session.NewKeypair(&keys, 0)
		if err != nil {
			return err
		}
		p.exchanger.add(pair, &keys, key)
	}
	f.sent++
	return errors.Join(p.jar.AddMACs(response[:], f.now()), f.send(p, response[:]))
}

// until returns the time in which a share of the peers had a session, or one with a key.
func (f *fleet) until(share float64, keyed bool) time.Duration {
	var all []time.Duration
	for _, p := range f.peers {
		took := p.took
		if keyed {
			took = p.exchanger.took
		}
		all = append(all, took)
	}
	slices.Sort(all)
	return all[int(math.Ceil(share*float64(len(all))))-1]
}
