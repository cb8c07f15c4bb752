// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Tunnel is a WireGuard device in this network namespace.
type Tunnel struct {
	Name string
	// Port is its listen port, 0 for none.
	Port uint16
	// Userspace is set if a process implements it, not the kernel.
	Userspace bool
	// FwMark is the mark of its datagrams (SO_MARK), for routing rules; 0 for none.
	FwMark uint32
	// StallFixed is the kernel release that fixes the stall of hostnet.WireGuardStall; empty if the tunnel does not have it.
	StallFixed string
	Peers      []TunnelPeer
}

// traffic returns the number of bytes exchanged with the present peers, 0 if the tunnel is nil.
func (t *Tunnel) traffic() (sum uint64) {
	if t == nil {
		return 0
	}
	for i := range t.Peers {
		sum += t.Peers[i].ReceivedBytes + t.Peers[i].SentBytes
	}
	return sum
}

// peersByAddress returns the peers by the addresses of their endpoints. A peer can claim another
// one's address. So of several at one address it is the peer that has answered probes there. If
// none has, it is nil.
func (t *Tunnel) peersByAddress(present []programs.Peer, keys probeKeys, known proofs) map[netip.Addr]*TunnelPeer {
	if t == nil {
		return nil
	}
	claims := t.claims()
	known.note(claims, present, keys)
	all := make(map[netip.Addr]*TunnelPeer, len(claims))
	for address, peers := range claims {
		all[address] = nil
		for _, p := range peers {
			if len(peers) == 1 || known[address] == p.Key {
				all[address] = p
			}
		}
	}
	return all
}

// claims returns the peers whose endpoints have an address.
func (t *Tunnel) claims() map[netip.Addr][]*TunnelPeer {
	all := make(map[netip.Addr][]*TunnelPeer, len(t.Peers))
	for i := range t.Peers {
		if p := &t.Peers[i]; p.Endpoint.Port() != 0 {
			all[p.Endpoint.Addr()] = append(all[p.Endpoint.Addr()], p)
		}
	}
	return all
}

// skipped returns the peers that are neither spread to nor gathered from, in order. WireGuard takes every sender of an authentic message for
// an endpoint, so a peer chooses its own. own are this host's addresses, devices those with the programs. byAddress is of peersByAddress. listens
// returns the endpoint of a peer with its listen port, invalid if that is unknown.
func (t *Tunnel) skipped(own map[netip.Addr]bool, devices []string, byAddress map[netip.Addr]*TunnelPeer, listens func(*TunnelPeer) netip.AddrPort) (all []SkippedPeer) {
	for i := range t.Peers {
		p := &t.Peers[i]
		why := ""
		switch a := p.Endpoint.Addr(); {
		case !p.Endpoint.IsValid():
			why = "it has no endpoint yet"
		case p.Endpoint.Port() == 0:
			why = fmt.Sprintf("its endpoint is %s, and nothing can be sent to port 0", p.Endpoint)
		case own[a] || !mayBeRemote(a):
			why = fmt.Sprintf("its endpoint is %s, which is not the address of another host", p.Endpoint)
		case hasZone(a) && a.Zone() == "":
			why = fmt.Sprintf("its endpoint %s is link-local, and on no device yet", p.Endpoint)
		case hasZone(a) && !slices.Contains(devices, a.Zone()):
			why = fmt.Sprintf("its endpoint %s is on a device without the programs", p.Endpoint)
		case byAddress[a] == nil:
			why = fmt.Sprintf("other peers have the same address %s, so it belongs to a NAT", a)
		case byAddress[a] != p:
			why = fmt.Sprintf("peer %s has answered probes from the same address %s", byAddress[a].Key, a)
		case !listens(p).IsValid():
			why = fmt.Sprintf("its endpoint is %s, a source port of spread or of a NAT, so its listen port is unknown; a peer that spreads returns to its "+
				"listen port when its probes stay unanswered, in two and a half minutes", p.Endpoint)
		}
		if why != "" {
			all = append(all, SkippedPeer{Key: p.Key, Reason: why})
		}
	}
	return all
}

// TunnelPeer is a peer of a Tunnel.
type TunnelPeer struct {
	Key string // public, base64
	// Endpoint is the peer's endpoint; invalid if it has none. The zone of a link-local address is the name of its device.
	Endpoint netip.AddrPort
	// LastHandshake is when the last handshake completed; zero: none has.
	LastHandshake time.Time
	// ReceivedBytes and SentBytes are the tunnel's counters of the peer.
	ReceivedBytes, SentBytes uint64
	// Secrets derive the keys of the peer's probes; zero if unknown.
	Secrets ProbeSecrets
}

// listenEndpoint returns a peer's endpoint with its listen port. WireGuard may have received last from a lane port of a peer that spreads, or from a
// port in lanes that a NAT chose. Then the listen port is as in an earlier call or in the maps, and the result is invalid if neither has one.
func (p *TunnelPeer) listenEndpoint(lanes spread.Ports, known history) netip.AddrPort {
	if !lanes.Contains(p.Endpoint.Port()) {
		if known.endpointPorts != nil {
			known.endpointPorts[p.Key] = p.Endpoint.Port()
		}
		return p.Endpoint
	}
	if port, ok := known.endpointPorts[p.Key]; ok {
		return netip.AddrPortFrom(p.Endpoint.Addr(), port)
	}
	at := slices.IndexFunc(known.present, func(has programs.Peer) bool { return has.Endpoint.Addr() == p.Endpoint.Addr() })
	if at < 0 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(p.Endpoint.Addr(), known.present[at].Endpoint.Port())
}

// Finder finds the tunnels in the network namespace of the calling thread.
type Finder interface {
	Tunnels() ([]Tunnel, error)
	// RestartPeer removes a peer and adds it again. After an error, a retry that is not nil adds what may be missing.
	RestartPeer(tunnel, key string) (retry func() error, err error)
}

// WireGuard finds the kernel's WireGuard devices, and devices of processes with a UAPI socket.
type WireGuard struct{}

// uapiSockets matches the UAPI sockets of userspace implementations, in all network namespaces.
const uapiSockets = "/var/run/wireguard/*.sock"

// Tunnels returns the tunnels, sorted by name. It needs CAP_NET_ADMIN.
func (WireGuard) Tunnels() ([]Tunnel, error) {
	client, err := wgctrl.New()
	if err != nil {
		return nil, fmt.Errorf("listing WireGuard devices: %w", err)
	}
	defer client.Close()
	links, err := hostnet.Links()
	if err != nil {
		return nil, err
	}
	served := map[string]bool{}
	sockets, _ := filepath.Glob(uapiSockets)
	for _, s := range sockets {
		served[strings.TrimSuffix(filepath.Base(s), ".sock")] = true
	}
	var tunnels []Tunnel
	for _, l := range links {
		name := l.Name
		if l.Kind != "wireguard" && !served[name] {
			continue
		}
		// Read devices one by one: client.Devices fails for all if one UAPI socket belongs to a dead process.
		d, err := client.Device(name)
		if err == nil {
			tunnels = append(tunnels, tunnelOf(d))
			if err := addZones(&tunnels[len(tunnels)-1], links); err != nil {
				return nil, fmt.Errorf("reading the endpoints of the WireGuard device %s: %w", name, err)
			}
		} else if l.Kind == "wireguard" && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("reading the WireGuard device %s: %w", name, err)
		}
	}
	slices.SortFunc(tunnels, func(a, b Tunnel) int { return cmp.Compare(a.Name, b.Name) })
	return tunnels, nil
}

func tunnelOf(d *wgtypes.Device) Tunnel {
	t := Tunnel{
		Name: d.Name, Port: uint16(d.ListenPort), Userspace: d.Type == wgtypes.Userspace, FwMark: uint32(d.FirewallMark),
	}
	if !t.Userspace {
		t.StallFixed = hostnet.WireGuardStall()
	}
	for _, p := range d.Peers {
		peer := TunnelPeer{
			Key: p.PublicKey.String(), Secrets: NewProbeSecrets(d.PrivateKey, p.PublicKey),
			LastHandshake: p.LastHandshakeTime, ReceivedBytes: uint64(p.ReceiveBytes), SentBytes: uint64(p.TransmitBytes),
		}
		if p.Endpoint != nil {
			at := p.Endpoint.AddrPort()
			peer.Endpoint = netip.AddrPortFrom(zonedAddr(at.Addr(), at.Addr().Zone()), at.Port())
		}
		t.Peers = append(t.Peers, peer)
	}
	return t
}

// RestartPeer removes a peer of the kernel's WireGuard and adds it again with its configuration, in one message. A peer with a link-local
// endpoint is not restarted: the library does not know the endpoint's device.
func (WireGuard) RestartPeer(tunnel, key string) (retry func() error, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("restarting the peer %s of %s: %w", key, tunnel, err)
		}
	}()
	client, err := wgctrl.New()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	p, err := findPeer(client, tunnel, key)
	switch {
	case err != nil:
		return nil, err
	case p == nil:
		return nil, errors.New("there is no such peer")
	case p.Endpoint != nil && p.Endpoint.IP.IsLinkLocalUnicast():
		return nil, fmt.Errorf("its endpoint %s is link-local", p.Endpoint.IP)
	}
	first, rest := restartMessages(p)
	missing := append([][]wgtypes.PeerConfig{first}, rest...)
	send := func(client *wgctrl.Client) error {
		for ; len(missing) > 0; missing = missing[1:] {
			if err := client.ConfigureDevice(tunnel, wgtypes.Config{Peers: missing[0]}); err != nil {
				return err
			}
		}
		return nil
	}
	return func() error {
		client, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer client.Close()
		p, err := findPeer(client, tunnel, key)
		if errors.Is(err, os.ErrNotExist) || p != nil && len(missing) > len(rest) {
			return nil // the tunnel is gone, or the peer was not removed
		}
		if err != nil {
			return err
		}
		return send(client)
	}, send(client)
}

// findPeer returns a peer of a tunnel, nil if there is none.
func findPeer(client *wgctrl.Client, tunnel, key string) (*wgtypes.Peer, error) {
	d, err := client.Device(tunnel)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(d.Peers, func(p wgtypes.Peer) bool { return p.PublicKey.String() == key })
	if i < 0 {
		return nil, nil
	}
	return &d.Peers[i], nil
}

// maxAllowedIPs is the greatest number of allowed IPs that the library writes in one message. It splits longer lists without regard to
// removals.
const maxAllowedIPs = 256

// restartMessages returns what each message to the kernel sets. The first removes the peer and adds it, so there is no time without it.
func restartMessages(p *wgtypes.Peer) (first []wgtypes.PeerConfig, rest [][]wgtypes.PeerConfig) {
	n := min(len(p.AllowedIPs), maxAllowedIPs)
	for chunk := range slices.Chunk(p.AllowedIPs[n:], maxAllowedIPs) {
		rest = append(rest, []wgtypes.PeerConfig{{PublicKey: p.PublicKey, UpdateOnly: true, AllowedIPs: chunk}})
	}
	return []wgtypes.PeerConfig{{PublicKey: p.PublicKey, Remove: true}, {
		PublicKey: p.PublicKey, PresharedKey: &p.PresharedKey, Endpoint: p.Endpoint, PersistentKeepaliveInterval: &p.PersistentKeepaliveInterval,
		AllowedIPs: p.AllowedIPs[:n],
	}}, rest
}
