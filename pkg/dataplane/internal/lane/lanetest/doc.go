// SPDX-License-Identifier: Apache-2.0

// Package lanetest has a lane with one peer for tests of its directions: see Rig.
package lanetest
