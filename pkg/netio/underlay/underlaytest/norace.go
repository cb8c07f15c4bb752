// SPDX-License-Identifier: Apache-2.0

//go:build !race

package underlaytest

// raceEnabled says that the race detector is off.
const raceEnabled = false
