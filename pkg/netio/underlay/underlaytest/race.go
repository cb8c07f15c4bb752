// SPDX-License-Identifier: Apache-2.0

//go:build race

package underlaytest

// raceEnabled is true: with the race detector sync.Pool drops items at random, and so allocates.
const raceEnabled = true
