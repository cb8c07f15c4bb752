// SPDX-License-Identifier: Apache-2.0

package underlay

// TrainLimiter is a Port that sends trains in one piece (Features.GSO). They may get lost on the way although single datagrams
// arrive: the kernel or the device may divide them wrongly.
type TrainLimiter interface {
	// SetTrainsLost has runs to a destination sent as single datagrams from now on, or ends that. A run with DontFragment
	// stays in one piece: it may be a test. ok is false if there are too many such destinations. Any goroutine may call it.
	SetTrainsLost(to Destination, lost bool) (ok bool)
}
