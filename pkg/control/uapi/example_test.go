// SPDX-License-Identifier: Apache-2.0

package uapi_test

import (
	"log"
	"os"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

func ExampleWriteSet() {
	port := uint16(51820)
	if err := uapi.WriteSet(os.Stdout, config.Device{ListenPort: &port, ReplacePeers: true}); err != nil {
		log.Fatal(err)
	}
	// Output:
	// listen_port=51820
	// replace_peers=true
}
