// SPDX-License-Identifier: Apache-2.0

//go:build race

package underlaytest

// raceEnabled: under the race detector sync.Pool drops items at random, and so allocates.
const raceEnabled = true
