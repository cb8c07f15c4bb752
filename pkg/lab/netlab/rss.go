// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// RSS describes how a NIC selects the receive queue of a packet. The ends of a Cable imitate such a NIC. They support the plain
// Toeplitz hash: over addresses and ports of TCP and UDP, and over the addresses alone of fragments and other IP packets. Frames
// that are not IP or have VLAN tags have the hash 0.
type RSS = spread.RSS

// NewRSS returns the default configuration of many NIC drivers: the key of Microsoft's verification suite, and an indirection
// table that lists the queues in turn.
func NewRSS(queues int) *RSS {
	return &RSS{Key: spread.MicrosoftKey(), Indirection: spread.EqualIndirection(queues)}
}

// checkRSS returns an error if a Cable does not support r. A Cable supports the plain Toeplitz
// hash, and indirection tables of valid queues whose length is a power of two.
func checkRSS(r *RSS, queues int) error {
	for _, setting := range []struct {
		supported bool
		other     string
	}{
		{r.Function == spread.Toeplitz, "another hash function"},
		{r.Transform == spread.Plain, "a transformation of the fields"},
		{r.UDP4 == spread.FourTuple, "other fields for IPv4"},
		{r.UDP6 == spread.FourTuple, "other fields for IPv6"},
	} {
		if !setting.supported {
			return fmt.Errorf("a cable supports only the plain Toeplitz hash of addresses and ports for UDP over IPv4 and IPv6, got %s", setting.other)
		}
	}
	if n := len(r.Indirection); n == 0 || n&(n-1) != 0 {
		return fmt.Errorf("the indirection table has %d entries, want a power of two", n)
	}
	for i, q := range r.Indirection {
		if int(q) >= queues {
			return fmt.Errorf("entry %d of the indirection table is queue %d, want less than %d", i, q, queues)
		}
	}
	return nil
}
