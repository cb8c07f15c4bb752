// SPDX-License-Identifier: Apache-2.0

//go:build goexperiment.runtimesecret

package noise

import "runtime/secret"

// Secretly calls f, and then overwrites the registers and the stack that f used. Allocations of f are overwritten once the
// garbage collector finds them unreachable. Secrets that f writes to memory of its caller stay until the caller wipes
// them. f must not start goroutines that handle any.
func Secretly(f func()) { secret.Do(f) }
