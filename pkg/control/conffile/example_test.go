// SPDX-License-Identifier: Apache-2.0

package conffile_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
)

// The file of wg-quick(8) as a change for tunnel.Tunnel.Configure.
func Example() {
	const text = `
[Interface]
PrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=
Address = 10.99.0.1/24
ListenPort = 51820

[Peer]
PublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=
AllowedIPs = 10.99.0.2/32
Endpoint = 192.0.2.2:51820
`
	file, err := conffile.Parse("wg0.conf", strings.NewReader(text), conffile.Quick)
	if err != nil {
		log.Fatal(err)
	}
	change, err := file.Device(context.Background(), conffile.NewResolver(conffile.ResolverConfig{}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("addresses of the interface, for the caller to set:", file.Interface.Address)
	for _, p := range change.Peers {
		fmt.Println("peer at", p.Endpoint.AddrPort, "with", p.AllowedIPs[0].Prefix)
	}
	// Output:
	// addresses of the interface, for the caller to set: [10.99.0.1/24]
	// peer at 192.0.2.2:51820 with 10.99.0.2/32
}
