// SPDX-License-Identifier: Apache-2.0

package show

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// APIVersion is the version of all JSON that ropewalk prints. Within a version, members may be added, but not removed or changed in
// meaning.
const APIVersion = "ropewalk/v1"

// document is the output of JSON. It has each time twice: in seconds since 1970 and in RFC 3339.
type document struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"` // InterfaceList
	Time       string          `json:"time"`
	TimeUnix   int64           `json:"time_unix"`
	Interfaces []interfaceJSON `json:"interfaces"`
}

type interfaceJSON struct {
	Name       string     `json:"name"`
	PublicKey  string     `json:"public_key,omitempty"`
	PrivateKey string     `json:"private_key,omitempty"` // with Options.ShowKeys only
	ListenPort uint16     `json:"listen_port"`
	FwMark     uint32     `json:"fwmark"`
	NetNS      string     `json:"netns,omitempty"` // of an interface that is not in the caller's network namespace
	Peers      []peerJSON `json:"peers"`
	*lanesJSON            // with Options.Lanes only
}

type peerJSON struct {
	PublicKey        string             `json:"public_key"`
	Name             string             `json:"name,omitempty"`
	HasPresharedKey  bool               `json:"has_preshared_key"`
	PresharedKey     string             `json:"preshared_key,omitempty"` // with Options.ShowKeys only
	Endpoint         string             `json:"endpoint,omitempty"`
	EndpointName     string             `json:"endpoint_name,omitempty"`
	AllowedIPs       []string           `json:"allowed_ips"`
	Handshake        string             `json:"latest_handshake,omitempty"`
	HandshakeUnix    int64              `json:"latest_handshake_unix"` // 0 for never
	ReceiveBytes     uint64             `json:"receive_bytes"`
	TransmitBytes    uint64             `json:"transmit_bytes"`
	KeepaliveSeconds uint16             `json:"persistent_keepalive_seconds"` // 0 for off
	Spread           *config.PeerSpread `json:"spread,omitempty"`             // with Options.Lanes only
	PathMTU          *config.PathMTU    `json:"path_mtu,omitempty"`           // with Options.Lanes only
	// FailingHandshake describes the handshakes with a peer that does not answer.
	FailingHandshake *config.PeerHandshake `json:"failing_handshake,omitempty"`
	// PostQuantum describes the session in use, unless the policy is off.
	PostQuantum *config.PeerPostQuantum `json:"post_quantum,omitempty"`
}

type lanesJSON struct {
	Up        bool                   `json:"up"`
	Spread    spreadJSON             `json:"spread"`
	TUN       TUNFeatures            `json:"tun"`
	Underlay  UnderlayFeatures       `json:"underlay"`
	Path      *config.UnderlayReport `json:"path,omitempty"`
	Selection *Selection             `json:"selection,omitempty"`
	Lanes     []LaneStats            `json:"lanes"`
	Slow      LaneStats              `json:"slow"`
	Drops     map[string]uint64      `json:"drops"` // all, including the lanes' drops
	Cipher    string                 `json:"cipher,omitempty"`
	Workers   *int                   `json:"workers,omitempty"`
}

type spreadJSON struct {
	Mode      config.SpreadMode `json:"mode"`
	FirstPort uint16            `json:"first_port"`
	LastPort  uint16            `json:"last_port"`
	Spray     config.Spray      `json:"spray"`
}

// JSON prints devices as one document, peers in the order of the pretty form. Secret keys are omitted unless Options.ShowKeys is
// set. Options.Lanes adds members from Options.Stats.
func JSON(w io.Writer, devices []config.Status, opt Options) error {
	d := document{
		APIVersion: APIVersion, Kind: "InterfaceList", Time: opt.Now.UTC().Format(time.RFC3339), TimeUnix: opt.Now.Unix(),
		Interfaces: []interfaceJSON{},
	}
	for i := range devices {
		d.Interfaces = append(d.Interfaces, opt.interfaceJSON(&devices[i]))
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(d); err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	return nil
}

func (opt *Options) interfaceJSON(st *config.Status) interfaceJSON {
	j := interfaceJSON{Name: st.Name, ListenPort: st.ListenPort, FwMark: st.FwMark, NetNS: opt.NetNS[st.Name], Peers: []peerJSON{}}
	if !st.PublicKey.IsZero() {
		j.PublicKey = st.PublicKey.Base64()
	}
	if opt.ShowKeys && !st.PrivateKey.IsZero() {
		j.PrivateKey = st.PrivateKey.Base64()
	}
	stats := opt.Stats[st.Name]
	if opt.Lanes && stats != nil {
		j.lanesJSON = newLanesJSON(st, stats)
	}
	for _, p := range byHandshake(st.Peers) {
		peer := opt.peerJSON(&p)
		if p.Handshake.Failing() {
			peer.FailingHandshake = &p.Handshake
		}
		if p.PostQuantum.Policy == config.PostQuantumAuto || p.PostQuantum.Policy == config.PostQuantumRequired {
			peer.PostQuantum = &p.PostQuantum
		}
		if j.lanesJSON != nil {
			peer.Spread = &p.Spread
			if p.PathMTU != (config.PathMTU{}) {
				peer.PathMTU = &p.PathMTU
			}
		}
		j.Peers = append(j.Peers, peer)
	}
	return j
}

func newLanesJSON(st *config.Status, s *Stats) *lanesJSON {
	return &lanesJSON{
		Up: s.Up, Spread: spreadJSON{st.Spread, st.SpreadPorts.First, st.SpreadPorts.Last, st.Spray},
		TUN: s.TUN, Underlay: s.Underlay, Path: s.Path, Selection: s.Selection, Lanes: s.Lanes, Slow: s.Slow, Drops: s.AllDrops(),
		Cipher: s.Cipher, Workers: s.Workers,
	}
}

func (opt *Options) peerJSON(p *config.PeerStatus) peerJSON {
	j := peerJSON{
		PublicKey: p.PublicKey.Base64(), Name: p.Name, EndpointName: p.EndpointName, HasPresharedKey: !p.PresharedKey.IsZero(), AllowedIPs: []string{},
		HandshakeUnix: unix(p.LastHandshake), ReceiveBytes: p.RxBytes, TransmitBytes: p.TxBytes, KeepaliveSeconds: p.Keepalive,
	}
	if opt.ShowKeys && j.HasPresharedKey {
		j.PresharedKey = p.PresharedKey.Base64()
	}
	if p.Endpoint.AddrPort.IsValid() {
		j.Endpoint = Endpoint(p.Endpoint, opt.ZoneName)
	}
	if j.HandshakeUnix != 0 {
		j.Handshake = p.LastHandshake.UTC().Format(time.RFC3339)
	}
	for _, prefix := range p.AllowedIPs {
		j.AllowedIPs = append(j.AllowedIPs, Prefix(prefix))
	}
	return j
}
