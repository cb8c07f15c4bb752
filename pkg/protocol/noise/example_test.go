// SPDX-License-Identifier: Apache-2.0

package noise_test

import (
	"crypto/rand"
	"fmt"
	"log"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Keys redact themselves: only Base64 and Hex print them.
func ExampleNewPrivateKey() {
	key, err := noise.NewPrivateKey(rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	parsed, err := noise.ParseBase64[noise.PublicKey](key.Public().Base64())
	fmt.Println(parsed == key.Public(), err)
	// Output: true <nil>
}
