// SPDX-License-Identifier: Apache-2.0

package tun_test

import (
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
)

// A Fake stands in for the interface, and its methods for the host behind it.
func Example() {
	device := tuntest.NewFake(tuntest.FakeConfig{Queues: 2, MTU: 1420})
	defer device.Close()
	fmt.Println(device.Name(), len(device.Queues()), <-device.Events())
	// Output: fake0 2 {true 1420}
}
