// SPDX-License-Identifier: Apache-2.0

//go:build !goexperiment.runtimesecret

package noise

// Secretly calls f. Built with GOEXPERIMENT=runtimesecret, it also overwrites the registers and the stack that f used.
// Allocations of f are then overwritten once the garbage collector finds them unreachable. Secrets that f writes to memory
// of its caller stay until the caller wipes them. f must not start goroutines that handle any.
func Secretly(f func()) { f() }
