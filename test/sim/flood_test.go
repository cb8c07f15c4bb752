// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/netip"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// floodMessages are enough to put a device under load, which it is from 512 waiting messages on.
const floodMessages = 900

// intruder knows a host's public key, and makes initiations that the host must decrypt before it can refuse them.
type intruder struct {
	sim    *sim
	host   int
	remote *noise.Remote
	first  wire.Initiation // of a handshake that the host refuses
	number uint32
}

func (s *sim) newIntruder(host int) *intruder {
	source := seeded(s.schedule.Seed, 0xbad)
	key, _ := noise.NewPrivateKey(source) // the source has no errors, and keys from it are valid
	id, err := noise.NewIdentity(key)
	s.hosts[host].must("making an intruder's identity", err)
	remote, err := noise.NewRemote(id, s.hosts[host].key.Public())
	s.hosts[host].must("preparing an intruder's handshake", err)
	x := &intruder{sim: s, host: host, remote: remote}
	err = noise.NewInitiator(remote).CreateInitiation(&x.first, 1, noise.Timestamp{}, source)
	s.hosts[host].must("making an intruder's initiation", err)
	return x
}

// send sends another initiation, with a mac2 if the jar has a cookie, and returns the answers to its address.
func (x *intruder) send(from netip.AddrPort, jar *noise.CookieJar) [][]byte {
	x.sim.network.takeReplies(from)
	x.initiate(from, jar)
	synctest.Wait()
	return x.sim.network.takeReplies(from)
}

func (x *intruder) initiate(from netip.AddrPort, jar *noise.CookieJar) {
	msg := x.first
	x.number++
	msg.SetHeader(x.number)
	_ = jar.AddMACs(msg[:], x.sim.now()) // it is an initiation
	x.sim.network.inject(x.host, from, msg[:])
}

// flood puts A under load with initiations, and tries to use a cookie from another address than that to which it was given: it must
// be refused like a message without a cookie.
func (s *sim) flood(e event) {
	if !s.hosts[e.A].alive() {
		return
	}
	s.network.change(func() {
		s.network.access[e.A].captured, s.network.access[e.A].captureFrom = nil, time.Now().Add(2*time.Second)
		s.network.watch.liveness.disturbed(e.A)
	})
	x := s.newIntruder(e.A)
	here, there := stranger(attacker), stranger(attacker+1)
	jar := noise.NewCookieJar(x.remote)
	for range floodMessages {
		x.initiate(here, jar)
	}
	synctest.Wait()
	x.checkRoamedCookie(jar, here, there)
}

func (x *intruder) checkRoamedCookie(jar *noise.CookieJar, here, there netip.AddrPort) {
	replies := x.send(here, jar)
	if len(replies) != 1 || jar.ConsumeReply(replies[0], x.sim.now()) != drop.None {
		return // the host was fast enough: it is not under load
	}
	before := len(x.send(there, noise.NewCookieJar(x.remote)))
	roamed := len(x.send(there, jar))
	after := len(x.send(there, noise.NewCookieJar(x.remote)))
	if before == 1 && after == 1 && roamed != 1 {
		x.sim.report.add("cookie", "host %d accepted a cookie from an address to which it was not given", x.host)
	}
}
