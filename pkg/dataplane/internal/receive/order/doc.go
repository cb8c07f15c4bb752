// SPDX-License-Identifier: Apache-2.0

// Package order puts the messages of sprayed flows back into order, and passes them to a Sink.
//
// order.go decides whose turn it is, waiting.go keeps the messages that wait, and sleep.go forgets streams while the lane sleeps.
package order
