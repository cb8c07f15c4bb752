// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// EchoKeys authenticate the echo with a peer (bpf/include/echo.h). It redacts itself. The zero value means none: there is no echo.
type EchoKeys struct {
	send, receive [2]uint64
}

// NewEchoKeys returns the keys of this host's probes and of the peer's, with their answers. The peer has them the other way round.
func NewEchoKeys(send, receive [16]byte) EchoKeys {
	words := func(k [16]byte) [2]uint64 {
		return [2]uint64{binary.LittleEndian.Uint64(k[:]), binary.LittleEndian.Uint64(k[8:])}
	}
	return EchoKeys{words(send), words(receive)}
}

// Equal compares keys.
func (k EchoKeys) Equal(o EchoKeys) bool { return k == o }

// Format implements fmt.Formatter, for every verb.
func (EchoKeys) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("(redacted)")) }

// MarshalText keeps the keys out of JSON and of logs.
func (EchoKeys) MarshalText() ([]byte, error) { return []byte("(redacted)"), nil }

// setKeys sets the keys. Rounds begin at a random number, so that no answer of an earlier time fits.
func (e *spreadEcho) setKeys(k EchoKeys) {
	if k == e.keys() {
		return
	}
	*e = spreadEcho{On: flag(k != EchoKeys{}), Round: rand.Uint32()}
	e.Send.K, e.Receive.K = k.send, k.receive
	e.clearLanes()
}

func (e *spreadEcho) keys() EchoKeys { return EchoKeys{e.Send.K, e.Receive.K} }

// clear forgets all answers.
func (e *spreadEcho) clear() {
	e.Answered, e.Answers = 0, 0
	e.clearLanes()
}

func (e *spreadEcho) clearLanes() {
	for i := range e.Lanes {
		e.clearLane(i)
	}
}

// clearLane forgets a lane's probes. The lane has its next one in the next round.
func (e *spreadEcho) clearLane(i int) {
	e.Lanes[i] = spreadLaneEcho{Round: e.Round, Evaluated: e.Answers}
}

// setLanePorts sets the ports of a peer's lanes. A lane with another port than before has nothing to its name.
func (value *spreadPeer) setLanePorts(ports []uint16) {
	value.Lanes = uint32(len(ports))
	for i, port := range ports {
		if raw := networkOrder(port); raw != value.Ports[i].Raw {
			value.Ports[i].Raw = raw
			value.Echo.clearLane(i)
		}
	}
}

// blockedPorts returns the lane ports that the path does not admit.
func (value *spreadPeer) blockedPorts() (ports []uint16) {
	for i, l := range value.Echo.Lanes[:min(int(value.Lanes), len(value.Echo.Lanes))] {
		if l.Blocked != 0 {
			ports = append(ports, hostOrder(value.Ports[i].Raw))
		}
	}
	return ports
}
