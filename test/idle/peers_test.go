// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/test/expect"
)

// peerSet is many peers behind one socket. They complete a handshake and then send nothing.
type peerSet struct {
	conn   *net.UDPConn
	device noise.PublicKey
	keys   []noise.PrivateKey
}

// newPeerSet returns n peers of a device. They use the connection that dial returns, which is closed when the test ends.
func newPeerSet(t testing.TB, n int, device noise.PublicKey, dial func() (*net.UDPConn, error)) *peerSet {
	t.Helper()
	conn, err := dial()
	expect.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	c := &peerSet{conn: conn, device: device}
	for range n {
		key, err := noise.NewPrivateKey(rand.Reader)
		expect.NoError(t, err)
		c.keys = append(c.keys, key)
	}
	return c
}

// config returns the device configuration with all peers. Each has an endpoint, one IPv4 and one IPv6 address.
func (p *peerSet) config() config.Device {
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(p.conn.LocalAddr().(*net.UDPAddr).Port))
	var d config.Device
	for i := range p.keys {
		v4, v6 := inner(i)
		d.Peers = append(d.Peers, config.Peer{
			PublicKey: p.keys[i].Public(), Endpoint: &config.Endpoint{AddrPort: at},
			AllowedIPs: []config.AllowedIP{{Prefix: netip.PrefixFrom(v4, 32)}, {Prefix: netip.PrefixFrom(v6, 128)}},
		})
	}
	return d
}

func inner(i int) (v4, v6 netip.Addr) {
	a, b := [4]byte{10}, [16]byte{0: 0xfd}
	binary.BigEndian.PutUint16(a[1:], uint16((i+1)>>8))
	a[3] = byte(i + 1)
	binary.BigEndian.PutUint32(b[12:], uint32(i+1))
	return netip.AddrFrom4(a), netip.AddrFrom16(b)
}

// window is the number of concurrent handshakes. It is too low for the device to reply with cookies.
const window = 64

// connect gives each peer a session with the device.
func (p *peerSet) connect(t testing.TB) {
	t.Helper()
	expect.NoError(t, p.conn.SetReadBuffer(1<<20))
	for first := 0; first < len(p.keys); first += window {
		expect.NoError(t, p.handshakes(first, min(first+window, len(p.keys))))
	}
}

// handshakes completes the handshakes of the peers from first to end. It sends an initiation again if a datagram is lost.
func (p *peerSet) handshakes(first, end int) error {
	waiting := map[uint32]*noise.Initiator{}
	for i := first; i < end; i++ {
		remote, err := p.remote(i)
		if err != nil {
			return err
		}
		waiting[uint32(i)] = noise.NewInitiator(remote)
	}
	for range 10 {
		for n, i := range waiting {
			if err := p.initiate(i, n); err != nil {
				return err
			}
		}
		if err := p.receive(waiting); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if len(waiting) == 0 {
			return nil
		}
	}
	return errors.New("no response from the device")
}

func (p *peerSet) remote(i int) (*noise.Remote, error) {
	id, err := noise.NewIdentity(p.keys[i])
	if err != nil {
		return nil, err
	}
	return noise.NewRemote(id, p.device)
}

func (p *peerSet) initiate(i *noise.Initiator, n uint32) error {
	var msg wire.Initiation
	var at noise.Timestamp
	binary.BigEndian.PutUint64(at[:], 1<<62+uint64(time.Now().UnixNano()))
	if err := i.CreateInitiation(&msg, n, at, rand.Reader); err != nil {
		return err
	}
	remote, err := p.remote(int(n))
	if err != nil {
		return err
	}
	if err := noise.NewCookieJar(remote).AddMACs(msg[:], 0); err != nil {
		return err
	}
	_, err = p.conn.Write(msg[:])
	return err
}

// receive completes the handshakes whose response arrives within 5 s and removes them from waiting.
func (p *peerSet) receive(waiting map[uint32]*noise.Initiator) error {
	if err := p.conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	var buf [2048]byte
	var psk noise.PresharedKey
	for len(waiting) > 0 {
		n, err := p.conn.Read(buf[:])
		if err != nil {
			return fmt.Errorf("waiting for a handshake response: %w", err)
		}
		msg, reason := wire.AsResponse(buf[:n])
		if reason != drop.None || waiting[msg.Receiver()] == nil {
			continue
		}
		keys, reason := waiting[msg.Receiver()].ConsumeResponse(buf[:n], &psk)
		if reason != drop.None {
			continue
		}
		delete(waiting, msg.Receiver())
		if err := p.confirm(&keys); err != nil {
			return err
		}
	}
	return nil
}

// confirm sends a keepalive, which confirms the session to the device.
func (p *peerSet) confirm(keys *noise.Keys) error {
	pair, err := session.NewKeypair(keys, 0)
	if err != nil {
		return err
	}
	first, _ := pair.Reserve(1)
	msg := make([]byte, wire.KeepaliveSize)
	pair.SealTrain(new(session.Scratch), msg, session.NewLayout(1, 0, 0, 0), first)
	_, err = p.conn.Write(msg)
	return err
}

// connected reports whether at least n peers of a device have a session.
func connected(s config.Status, n int) bool {
	for i := range s.Peers {
		if !s.Peers[i].LastHandshake.IsZero() {
			n--
		}
	}
	return n <= 0
}
