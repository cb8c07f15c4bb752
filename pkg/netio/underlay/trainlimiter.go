// SPDX-License-Identifier: Apache-2.0

package underlay

// TrainLimiter is a Port that sends trains in one piece (Features.GSO). They may get lost on the way although single datagrams
// arrive: the kernel or the device may divide them wrongly.
type TrainLimiter interface {
	// SetTrainsLost has runs to an endpoint's address sent as single datagrams from now on, or ends that. A run with
	// DontFragment stays in one piece: it may be a test. The limit ends by itself after a day. peer is as in Run.Peer. Any
	// goroutine may call it.
	SetTrainsLost(to *Endpoint, peer uint16, lost bool)
}
