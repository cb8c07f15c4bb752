// SPDX-License-Identifier: Apache-2.0

package tunnel_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel"
)

// A tunnel over a TUN interface of the host and its UDP sockets. It needs CAP_NET_ADMIN; addresses and routes of the interface
// are set as usual, for example with ip(8).
func Example_realTUN() {
	if err := serveRealTUN(context.Background(), "wgx0"); err != nil {
		log.Fatal(err)
	}
}

// serveRealTUN runs a tunnel with one peer until ctx ends.
func serveRealTUN(ctx context.Context, name string) error {
	dev, err := tun.Open(tun.Config{Name: name})
	if err != nil {
		return err
	}
	t, err := tunnel.New(tunnel.Config{TUN: dev})
	if err != nil {
		return errors.Join(err, dev.Close())
	}
	defer t.Close()
	key, err := noise.NewPrivateKey(rand.Reader)
	if err != nil {
		return err
	}
	peer, err := noise.NewPrivateKey(rand.Reader) // of another host, in truth
	if err != nil {
		return err
	}
	err = t.Configure(config.Device{
		PrivateKey: &key,
		Peers: []config.Peer{{
			PublicKey:  peer.Public(),
			Endpoint:   &config.Endpoint{AddrPort: netip.MustParseAddrPort("192.0.2.2:51820")},
			AllowedIPs: []config.AllowedIP{{Prefix: netip.MustParsePrefix("10.0.0.0/24")}},
		}},
	})
	if err != nil {
		return err
	}
	t.Start(ctx)
	fmt.Println("serving", t.Name(), "with", len(t.Status().Peers), "peer") // `wg show wgx0` works while ServeControl runs
	return t.ServeControl(ctx)
}
