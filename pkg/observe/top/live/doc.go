// SPDX-License-Identifier: Apache-2.0

// Package live, ropewalk's own, runs the interactive terminal of `ropewalk top` with bubbletea: it
// takes samples, draws frames and handles keys. Start reading at Run; model.go holds the bubbletea
// model.
package live
