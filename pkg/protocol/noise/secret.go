// SPDX-License-Identifier: Apache-2.0

//go:build goexperiment.runtimesecret

package noise

import "runtime/secret"

// Secretly calls f, and then overwrites the registers and the stack that f used. What f allocated is overwritten once the garbage collector
// finds it unreachable. f must not keep secrets in variables of its caller, nor start goroutines that handle any.
func Secretly(f func()) { secret.Do(f) }
