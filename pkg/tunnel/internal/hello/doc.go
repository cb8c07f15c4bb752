// SPDX-License-Identifier: Apache-2.0

// Package hello decides about hellos, by which two ropewalks exchange their capabilities. Exchange
// says which are awaited, sent and repeated, and Queue which of the received hellos a worker gets.
// It has no clock and does no I/O. It is ropewalk's own. Begin reading in state.go.
package hello
