// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// State is the state that one device hands over to the next (see Device.Leave). It holds the private and preshared keys in
// the clear. It holds no session keys: sessions end with their device, so that no nonce is used twice. Counters follow later (see Counters).
type State struct {
	PrivateKey Secret `json:"private_key"`
	ListenPort uint16 `json:"listen_port"`
	FwMark     uint32 `json:"fwmark"`
	config.Settings
	Peers []PeerState `json:"peers"`
}

// PeerState is the state of one peer.
type PeerState struct {
	PublicKey     noise.PublicKey `json:"public_key"`
	Name          string          `json:"name"` // empty for none
	PresharedKey  Secret          `json:"preshared_key"`
	Endpoint      netip.AddrPort  `json:"endpoint"`
	EndpointName  string          `json:"endpoint_name"` // empty for none
	Scope         uint32          `json:"scope"`
	Source        netip.Addr      `json:"source"`
	Keepalive     uint16          `json:"keepalive"`
	AllowedIPs    []netip.Prefix  `json:"allowed_ips"`
	LastHandshake time.Time       `json:"last_handshake"`
	// LastAccepted is the timestamp of the last accepted initiation, and LastAcceptedAt when it was accepted, by the machine's
	// clock (engine.BootClock). LastSent is the timestamp of the last initiation sent.
	LastAccepted   Timestamp    `json:"last_accepted"`
	LastSent       Timestamp    `json:"last_sent"`
	LastAcceptedAt int64        `json:"last_accepted_at"`
	Hello          *HelloResult `json:"hello"` // nil without a session
	// PathMTU is the limit of the last search in bytes, 0 if nothing was too large.
	PathMTU uint16 `json:"path_mtu"`
	// TrainsLost says that trains to the peer are lost on the way. A release that does not know it can take over other tunnels.
	TrainsLost bool `json:"trains_lost,omitempty"`
	// PostQuantum is the peer's policy, and Exchanges the result of post-quantum exchanges, nil for none. A release that does not know them can take over
	// tunnels without. The policy of the device is not encoded either if it is the default.
	PostQuantum config.PostQuantum `json:"post_quantum,omitempty"`
	Exchanges   *ExchangeState     `json:"exchanges,omitempty"`
}

// ExchangeState is the result of post-quantum exchanges with a peer. Instants are of the machine's clock (engine.BootClock).
type ExchangeState struct {
	Keys []ExchangeKey `json:"keys"`
	Had  time.Time     `json:"had"` // when a session with a key was last confirmed
}

// ExchangeKey is a postquantum.Entry.
type ExchangeKey struct {
	Key     Secret `json:"key"`
	ID      uint16 `json:"id"`
	At      int64  `json:"at"`
	Certain bool   `json:"certain"`
	Used    bool   `json:"used"`
	Ends    int64  `json:"ends"`
}

// entries returns the keys as a postquantum.Ring has them.
func (s *ExchangeState) entries() []postquantum.Entry {
	list := make([]postquantum.Entry, 0, len(s.Keys))
	for i := range s.Keys {
		k := &s.Keys[i]
		list = append(list, postquantum.Entry{Key: noise.PresharedKey(k.Key), ID: k.ID, At: k.At, Certain: k.Certain, Used: k.Used, Ends: k.Ends})
	}
	return list
}

// HelloResult is the result of the hello exchange in a session. The session's keys stay in the process.
type HelloResult struct {
	Hello     []byte     `json:"hello"`      // the peer's last hello, as wire.AppendHello writes it; empty for none
	Ropewalk  bool       `json:"ropewalk"`   // the peer accepts hellos
	LocalAddr netip.Addr `json:"local_addr"` // the local address at which the last hello arrived
	Heard     bool       `json:"heard"`      // a message came from another port than the listen port
	Plan      []uint16   `json:"plan"`       // the source ports that the peer should use
	// Blocked are the source ports that the path to the peer does not admit.
	Blocked []uint16 `json:"blocked"`
}

// Secret is a key that is encoded in the clear in a State, and nowhere else.
type Secret [noise.KeySize]byte

// Format prints a placeholder for every verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "(secret)") }

// LogValue logs a placeholder.
func (Secret) LogValue() slog.Value { return slog.StringValue("(secret)") }

// MarshalJSON returns the key in the clear, as base64.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s[:]) }

// UnmarshalJSON is the inverse of MarshalJSON.
func (s *Secret) UnmarshalJSON(text []byte) error { return decodeFixed(text, s[:]) }

// Timestamp is a noise.Timestamp in a State, encoded as base64.
type Timestamp noise.Timestamp

// MarshalJSON returns base64.
func (t Timestamp) MarshalJSON() ([]byte, error) { return json.Marshal(t[:]) }

// UnmarshalJSON is the inverse of MarshalJSON.
func (t *Timestamp) UnmarshalJSON(text []byte) error { return decodeFixed(text, t[:]) }

// decodeFixed decodes base64 of exactly len(into) bytes.
func decodeFixed(text []byte, into []byte) error {
	var raw []byte
	defer func() { clear(raw) }()
	if json.Unmarshal(text, &raw) != nil || len(raw) != len(into) {
		return fmt.Errorf("want %d bytes of base64", len(into)) // the input may be a secret
	}
	copy(into, raw)
	return nil
}

// Format prints a placeholder for every verb.
func (s *State) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "state of a device") }

// LogValue logs a placeholder.
func (s *State) LogValue() slog.Value { return slog.StringValue("state of a device") }

// Encode returns the state as JSON, which holds the keys in the clear.
func (s *State) Encode() ([]byte, error) {
	b, err := json.Marshal((*plainState)(s))
	if err != nil {
		return nil, fmt.Errorf("encoding the state of a device: %w", err)
	}
	return b, nil
}

type plainState State

// errInvalidState is returned for text that is not an encoded State. It has no details, since they may contain a key.
var errInvalidState = errors.New("the state of the tunnel is malformed, or from an incompatible version of ropewalk")

// ParseState is the inverse of Encode. An unknown member is an error, since its state would be lost.
func ParseState(text []byte) (*State, error) {
	s := new(State)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if d.Decode((*plainState)(s)) != nil || d.More() {
		return nil, errInvalidState
	}
	if len(s.Peers) > MaxPeers {
		return nil, errInvalidState
	}
	for i := range s.Peers {
		if !s.Peers[i].valid() {
			return nil, fmt.Errorf("peer %d: %w", i, errInvalidState)
		}
	}
	return s, nil
}

func (p *PeerState) valid() bool {
	a := p.Endpoint.Addr()
	if config.CheckName(p.Name) != nil || config.CheckEndpointName(p.EndpointName) != nil || a.Is4In6() || a.Zone() != "" || p.Source.Is4In6() || p.Source.Zone() != "" {
		return false
	}
	for _, prefix := range p.AllowedIPs {
		if !prefix.IsValid() || prefix != prefix.Masked() {
			return false
		}
	}
	if p.Exchanges != nil && !postquantum.ValidEntries(p.Exchanges.entries()) {
		return false
	}
	s := p.Hello
	if s == nil {
		return true
	}
	var h wire.Hello
	return len(s.Plan) <= spread.MaxPorts && len(s.Blocked) <= spread.MaxPorts && (len(s.Hello) == 0 || wire.ParseHello(s.Hello, &h) == nil)
}

// Counters are the counters that one device hands over to the next (see Device.Retire).
type Counters struct {
	Stats      engine.Stats   `json:"stats"`
	Handshakes HandshakeStats `json:"handshakes"`
	Peers      []PeerCounters `json:"peers"`
	// TUNDropsBefore is the kernel's counter of the TUN's queues before the first of the devices.
	TUNDropsBefore uint64 `json:"tun_drops_before"`
}

// PeerCounters are the counters of one peer.
type PeerCounters struct {
	PublicKey noise.PublicKey    `json:"public_key"`
	Traffic   engine.PeerTraffic `json:"traffic"`
}

// Encode returns the counters as JSON.
func (c *Counters) Encode() ([]byte, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encoding counters: %w", err)
	}
	return b, nil
}

// ParseCounters is the inverse of Encode. It ignores unknown members, so that a release may have counters that another one does not know.
func ParseCounters(text []byte) (*Counters, error) {
	c := new(Counters)
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("parsing counters: %w", err)
	}
	if len(c.Peers) > MaxPeers || len(c.Stats.Lanes) > config.MaxLanes || c.Stats.Drops == nil {
		return nil, errors.New("parsing counters: they are not those of a device")
	}
	return c, nil
}
