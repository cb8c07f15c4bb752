// SPDX-License-Identifier: Apache-2.0

package underlay_test

import (
	"fmt"
	"log"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
)

// Two ports on a network in memory.
func Example() {
	a, b := underlaytest.Pipe(1)
	defer a.Close()
	defer b.Close()
	to := b.Endpoint(false)
	if err := a.SendTo(&to, []byte("message")); err != nil {
		log.Fatal(err)
	}
	fmt.Println(a.LocalPort(), "to", to.Dst)
	// Output: 51820 to 192.0.2.2:51820
}
