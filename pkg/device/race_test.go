// SPDX-License-Identifier: Apache-2.0

//go:build race

package device_test

// raceEnabled says whether Diffie-Hellman is ten times as slow.
const raceEnabled = true
