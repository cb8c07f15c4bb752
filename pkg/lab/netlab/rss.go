// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// RSS is how a NIC chooses the receive queue of a packet. That of a cable is the Toeplitz hash, not transformed, of
// addresses and ports of TCP and UDP, of the addresses alone of fragments and all other IP packets. Frames that are
// not IP, or that carry VLAN tags, have hash 0.
type RSS = spread.RSS

// NewRSS returns the default configuration of NIC drivers: the key of Microsoft's verification suite, which many have as
// their default, and the queues in turn.
func NewRSS(queues int) *RSS {
	return &RSS{Key: spread.MicrosoftKey(), Indirection: spread.EqualIndirection(queues)}
}

// checkRSS returns an error for what a cable cannot do: a hash of another kind, and a table that names a queue which is
// none, or whose length is no power of two.
func checkRSS(r *RSS, queues int) error {
	if r.Function != spread.Toeplitz || r.Transform != spread.Plain || r.UDP4 != spread.FourTuple || r.UDP6 != spread.FourTuple {
		return errors.New("a cable hashes addresses and ports by Toeplitz, and nothing else")
	}
	if n := len(r.Indirection); n == 0 || n&(n-1) != 0 {
		return fmt.Errorf("the indirection table has %d entries, which is no power of two", n)
	}
	for i, q := range r.Indirection {
		if int(q) >= queues {
			return fmt.Errorf("entry %d of the indirection table is queue %d of %d", i, q, queues)
		}
	}
	return nil
}
