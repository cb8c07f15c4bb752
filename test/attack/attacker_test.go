// SPDX-License-Identifier: Apache-2.0

package attack

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/test/expect"
)

const (
	offlinePeers = 10
	attackerPort = 40000
	// answerTime is how long the attacker waits for the answer to an initiation.
	answerTime = 500 * time.Millisecond
	tries      = 20
	// prepared is the number of packets that are made before an attack.
	prepared = 8192
)

var (
	attackedAddress = netip.MustParseAddr("192.168.79.1")
	attackerAddress = netip.MustParseAddr("192.168.79.2")
	forgedAddresses = netip.MustParsePrefix("10.66.0.0/16") // the attacked host answers to them through the attacker
	innerAddress    = [4]byte{10, 99, 0, 3}
)

// attacker is a host that knows the public key of the attacked device. For some attacks it is a peer of it.
type attacker struct {
	identity *noise.Identity
	remote   *noise.Remote
	jar      *noise.CookieJar
	raw      int // a raw socket in the attacker's network namespace
	socket   *net.UDPConn
	clock    noise.Clock

	initiation, keepalive []byte // of the present session
	keys                  noise.Keys
	counter               uint64
}

func newAttacker(t *testing.T, h *netlab.Host, target noise.PublicKey) *attacker {
	t.Helper()
	key, err := noise.NewPrivateKey(rand.Reader)
	expect.NoError(t, err)
	x := &attacker{}
	x.identity, err = noise.NewIdentity(key)
	expect.NoError(t, err)
	x.remote, err = noise.NewRemote(x.identity, target)
	expect.NoError(t, err)
	x.jar = noise.NewCookieJar(x.remote)
	expect.NoError(t, h.Do(x.open))
	t.Cleanup(func() { expect.NoError(t, errors.Join(x.socket.Close(), unix.Close(x.raw))) })
	return x
}

// open opens the sockets in the present network namespace.
func (x *attacker) open() (err error) {
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(attackedAddress, testbed.ListenPort))
	if x.socket, err = net.DialUDP("udp4", &net.UDPAddr{IP: attackerAddress.AsSlice(), Port: attackerPort}, to); err != nil {
		return err
	}
	x.raw, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	return err
}

// connect makes a new session.
func (x *attacker) connect() error {
	for range tries {
		i := noise.NewInitiator(x.remote)
		var msg wire.Initiation
		if err := i.CreateInitiation(&msg, 1, x.clock.Now(time.Now()), rand.Reader); err != nil {
			return err
		}
		_ = x.jar.AddMACs(msg[:], time.Now().UnixNano()) // it is an initiation
		if _, err := x.socket.Write(msg[:]); err != nil {
			return err
		}
		if x.receiveResponse(i) {
			x.initiation, x.counter = msg[:], 0
			x.keepalive = x.seal(nil)
			_, err := x.socket.Write(x.keepalive)
			return err
		}
	}
	return fmt.Errorf("no session with the attacked device after %d tries", tries)
}

// receiveResponse stores cookies until it has a response or the time is over.
func (x *attacker) receiveResponse(i *noise.Initiator) bool {
	buf := make([]byte, 2048)
	_ = x.socket.SetReadDeadline(time.Now().Add(answerTime)) // it cannot fail on an open socket
	for {
		n, err := x.socket.Read(buf)
		if err != nil {
			return false
		}
		switch kind, _ := wire.Classify(buf[:n]); kind {
		case wire.TypeCookieReply:
			_ = x.jar.ConsumeReply(buf[:n], time.Now().UnixNano()) // without a cookie the next try is answered with another
		case wire.TypeResponse:
			keys, reason := i.ConsumeResponse(buf[:n], new(noise.PresharedKey))
			if reason == drop.None {
				x.keys = keys
				return true
			}
		}
	}
}

// seal returns the next data message of the session.
func (x *attacker) seal(inner []byte) []byte {
	aead, err := chacha20poly1305.New(x.keys.Send[:])
	if err != nil {
		panic(err) // the key has the right length
	}
	b := make([]byte, wire.DataHeaderLen, wire.DataOverhead+len(inner))
	wire.PutDataHeader(b, x.keys.Remote, x.counter)
	var nonce [chacha20poly1305.NonceSize]byte
	binary.LittleEndian.PutUint64(nonce[4:], x.counter)
	x.counter++
	return aead.Seal(b, nonce[:], inner, nil)
}

// send sends the packets of a generator, at the rate of -rate, until stop is closed, but for no longer than maxDuration and no
// more than limit packets.
func (x *attacker) send(next func(i int) []byte, limit int, stop <-chan struct{}) (sent int) {
	begin := time.Now()
	for at := (&unix.SockaddrInet4{Addr: attackedAddress.As4()}); sent < limit; sent++ {
		elapsed := time.Since(begin)
		if elapsed > maxDuration {
			return sent
		}
		if ahead := time.Duration(sent)*time.Second/time.Duration(*rate) - elapsed; ahead > time.Millisecond {
			time.Sleep(ahead)
		}
		select {
		case <-stop:
			return sent
		default:
		}
		// Without room in the device's queue a packet is lost, as a flood's packets may be.
		_ = unix.Sendto(x.raw, next(sent), 0, at)
	}
	return sent
}

// generator returns the function that returns packet i of an attack to a port. Packets of a session have counters of their own. Of
// others n are made before the attack, and repeated, so that the generator takes little CPU time.
func (x *attacker) generator(a attack, port uint16, n int) func(i int) []byte {
	to := netip.AddrPortFrom(attackedAddress, port)
	generate := func(i int) []byte { return outerPacket(a.source(), to, a.message(x, i), a.badChecksum) }
	if a.session {
		return generate
	}
	packets := make([][]byte, n)
	for i := range packets {
		packets[i] = generate(i)
	}
	return func(i int) []byte { return packets[i%n] }
}

// source returns the address of a packet.
func (a attack) source() netip.AddrPort {
	if !a.forged {
		return netip.AddrPortFrom(attackerAddress, attackerPort)
	}
	from := forgedAddresses.Addr().As4()
	from[2], from[3] = byte(mathrand.IntN(16)), byte(1+mathrand.IntN(254))
	return netip.AddrPortFrom(netip.AddrFrom4(from), uint16(1024+mathrand.IntN(60000)))
}
