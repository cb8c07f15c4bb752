// SPDX-License-Identifier: Apache-2.0

//go:build !race

package device_test

// raceEnabled reports whether the race detector is on, which makes Diffie-Hellman ten times slower.
const raceEnabled = false
