// SPDX-License-Identifier: Apache-2.0

package programs

import (
	cryptorand "crypto/rand"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
)

// ProbeKeys authenticate probes of a peer, and their answers (bpf/include/probe.h). It redacts itself. The zero value means none: nothing is probed.
type ProbeKeys struct {
	send, receive [2]uint64
}

// NewProbeKeys returns the keys of this host's probes and of the peer's, with their answers. The peer has them the other way round.
func NewProbeKeys(send, receive [16]byte) ProbeKeys {
	words := func(k [16]byte) [2]uint64 {
		return [2]uint64{binary.LittleEndian.Uint64(k[:]), binary.LittleEndian.Uint64(k[8:])}
	}
	return ProbeKeys{words(send), words(receive)}
}

// Format implements fmt.Formatter, for every verb.
func (ProbeKeys) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("(redacted)")) }

// MarshalText keeps the keys out of JSON and of logs.
func (ProbeKeys) MarshalText() ([]byte, error) { return []byte("(redacted)"), nil }

// Constants of bpf/include: PROBE_BURST of spread_maps.h and PROBE_MESSAGES of probe.h.
const (
	probeBurst    = 16
	probeMessages = 150
)

// setKeys sets the keys. Rounds and proofs begin at random numbers, so that no answer and no proof of an earlier time fits.
func (value *spreadPeer) setKeys(k ProbeKeys) {
	if k == value.keys() {
		return
	}
	value.Keyed, value.Send.K, value.Receive.K = flag[uint32](k != ProbeKeys{}), k.send, k.receive
	value.Round, value.Proof, value.RoundAt, value.Credit = rand.Uint32(), rand.Uint32(), 0, probeBurst
	value.Answers, value.Proved, value.Ready, value.Next = 0, 0, 0, 0
	var secret [8]byte
	_, _ = cryptorand.Read(secret[:]) // it does not fail
	value.Secret = binary.NativeEndian.Uint64(secret[:])
	// As if a probe was answered, so the first rounds are short. One is due with the first message.
	value.Listen = spreadLane{Round: value.Round, Answered: 1, Messages: probeMessages - 1}
	for i := range value.Lane {
		value.closeLane(i)
	}
}

func (value *spreadPeer) keys() ProbeKeys { return ProbeKeys{value.Send.K, value.Receive.K} }

// closeLane forgets a lane's proof and its probes. Its next probe is due when the lanes' turn comes to it.
func (value *spreadPeer) closeLane(i int) {
	l := &value.Lane[i]
	l.Proof, l.Round, l.Sent, l.Answered, l.Lost = value.Proof-1, value.Round-1, 0, 0, 0
}

// setLanePorts sets the ports of a peer's lanes. A port that the peer had before keeps its lane, with its load, its proof and its flows. New ones
// fill the gaps.
func (value *spreadPeer) setLanePorts(ports []uint16) {
	old, kept := value.lanes(), map[uint16]bool{}
	value.Lanes = 0
	for i := range old {
		if l := &old[i]; slices.Contains(ports, hostOrder(l.Port.Raw)) {
			kept[hostOrder(l.Port.Raw)], value.Lanes = true, uint32(i)+1
		} else {
			*l = spreadLane{}
			value.closeLane(i)
		}
	}
	i := 0
	for _, port := range ports {
		if kept[port] {
			continue
		}
		for value.Lane[i].Port.Raw != 0 {
			i++
		}
		value.Lane[i] = spreadLane{}
		value.Lane[i].Port.Raw = networkOrder(port)
		value.closeLane(i)
		value.Lanes = max(value.Lanes, uint32(i)+1)
	}
}

// lanes returns the lanes, also the ones without a port.
func (value *spreadPeer) lanes() []spreadLane {
	return value.Lane[:min(int(value.Lanes), len(value.Lane))]
}

// blockedPorts returns the lane ports that have been probed and that the path does not admit, once the peer is ready.
func (value *spreadPeer) blockedPorts() (ports []uint16) {
	for _, l := range value.lanes() {
		if value.Ready != 0 && l.Proof != value.Proof && l.Sent != 0 {
			ports = append(ports, hostOrder(l.Port.Raw))
		}
	}
	return ports
}

// lanePorts returns the ports of the peer's lanes.
func (value *spreadPeer) lanePorts() (ports []uint16) {
	for _, l := range value.lanes() {
		if l.Port.Raw != 0 {
			ports = append(ports, hostOrder(l.Port.Raw))
		}
	}
	return ports
}
