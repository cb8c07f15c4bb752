// SPDX-License-Identifier: Apache-2.0

// Package underlay defines how outer datagrams enter and leave: one Port per interface, with one Lane for each lane of the engine. It has
// the interfaces with their contract, and an in-memory implementation for tests (Network, Pipe).
//
// Package underlaytest holds the contract test that every implementation passes. Packages udp and xdp, below this directory, are the
// implementations; package autounderlay chooses between them. Begin reading with Port in underlay.go.
package underlay
