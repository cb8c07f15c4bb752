// SPDX-License-Identifier: Apache-2.0

//go:build !race

package underlaytest

// raceEnabled is false: the race detector is off.
const raceEnabled = false
