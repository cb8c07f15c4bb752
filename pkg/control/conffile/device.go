// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"context"
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Device returns the change that gives a device exactly the file's configuration, as `wg setconf`
// does. All peers are replaced, and settings that the file does not have are reset. resolve is
// called for each peer with an Endpoint.
func (f *File) Device(ctx context.Context, resolve Resolver) (config.Device, error) {
	dev, err := f.Additions(ctx, resolve)
	if err != nil {
		return config.Device{}, err
	}
	dev.ReplacePeers = true
	if dev.PrivateKey == nil {
		dev.PrivateKey = new(noise.PrivateKey)
	}
	if dev.ListenPort == nil {
		dev.ListenPort = new(uint16)
	}
	if dev.FwMark == nil {
		dev.FwMark = new(uint32)
	}
	return dev, nil
}

// Additions returns the change that adds the file's configuration to a device's, as `wg addconf`
// does.
func (f *File) Additions(ctx context.Context, resolve Resolver) (config.Device, error) {
	dev := config.Device{
		PrivateKey: f.Interface.PrivateKey,
		ListenPort: f.Interface.ListenPort,
		FwMark:     f.Interface.FwMark,
	}
	for i := range f.Peers {
		peer, err := f.Peers[i].config(ctx, resolve)
		if err != nil {
			return config.Device{}, err
		}
		dev.Peers = append(dev.Peers, peer)
	}
	return dev, nil
}

func (p *Peer) config(ctx context.Context, resolve Resolver) (config.Peer, error) {
	peer := config.Peer{
		PublicKey:         p.PublicKey,
		PresharedKey:      p.PresharedKey,
		Keepalive:         p.Keepalive,
		PostQuantum:       p.PostQuantum,
		ReplaceAllowedIPs: !p.ModifyAllowedIPs,
		AllowedIPs:        p.AllowedIPs,
	}
	if p.Name != "" {
		peer.Name = &p.Name
	}
	if p.Endpoint != "" {
		ep, err := resolve(ctx, p.Endpoint)
		if err != nil {
			return config.Peer{}, err
		}
		peer.Endpoint, peer.EndpointName = &ep, endpointName(p.Endpoint)
	}
	return peer, nil
}

// endpointName returns host:port with a numeric port if the host is a name, which can be resolved again, else "".
func endpointName(endpoint string) string {
	hp, err := splitEndpoint(endpoint)
	if err != nil {
		return ""
	}
	name := fmt.Sprintf("%s:%d", hp.host, hp.port)
	if _, numeric := parseHost(hp.host); numeric || config.CheckEndpointName(name) != nil {
		return ""
	}
	return name
}
