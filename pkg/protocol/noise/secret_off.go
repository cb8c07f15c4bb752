// SPDX-License-Identifier: Apache-2.0

//go:build !goexperiment.runtimesecret

package noise

// Secretly calls f. Built with GOEXPERIMENT=runtimesecret, it also overwrites the registers and the stack that f used, and what f allocated once
// the garbage collector finds it unreachable. f must not keep secrets in variables of its caller, nor start goroutines that handle any.
func Secretly(f func()) { f() }
