// SPDX-License-Identifier: Apache-2.0

// Package live runs the interactive terminal of `ropewalk top` with bubbletea: it
// takes samples, draws frames and handles keys. Start reading at Run; model.go holds the bubbletea
// model.
//
// Not for other programs: it may change without notice.
package live
