// SPDX-License-Identifier: Apache-2.0

//go:build goexperiment.runtimesecret

package noise

import (
	"bytes"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// TestSecretlyErasesStack: without Secretly, copies of a session's key stay on the stack after a handshake, although the keys are wiped.
func TestSecretlyErasesStack(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which shrinks stacks
	for name, c := range map[string]struct {
		call func(func())
		left bool
	}{
		"Secretly": {Secretly, false},
		"directly": {func(f func()) { f() }, true},
	} {
		a, b := newSides(t)
		i, initiation := initiate(t, a)
		theirs, response := respond(t, accept(t, b, initiation[:]), PresharedKey{})
		secret, reason, left := bytes.Clone(theirs.Recv[:]), make(chan drop.Reason, 1), make(chan bool)
		go func() {
			growStack(64)
			c.call(func() {
				keys, r := i.ConsumeResponse(response[:], &PresharedKey{})
				keys.Wipe()
				leave(secret) // the compiler may find a way to leave no copy
				reason <- r
			})
			left <- onStack(secret)
		}()
		if got := <-left; got != c.left {
			t.Errorf("%s: got a key on the stack: %t, want %t", name, got, c.left)
		}
		if r := <-reason; r != drop.None {
			t.Errorf("%s: got drop reason %v, want none", name, r)
		}
	}
}

// stackFrame is the size of a stack frame of growStack.
const stackFrame = 1 << 10

// growStack makes the stack of a goroutine grow by n frames.
func growStack(n int) byte {
	var frame [stackFrame]byte
	if n > 0 {
		frame[n] = growStack(n - 1)
	}
	return frame[n/2]
}

// leave leaves a copy of a secret on the stack.
//
//go:noinline
func leave(secret []byte) byte {
	var frame [stackFrame]byte
	copy(frame[stackFrame/2:], secret)
	return frame[len(secret)]
}

// onStack reports whether a secret is in the 32 KiB of the stack beyond the caller's frame. The stack must have grown by twice as much.
func onStack(secret []byte) bool {
	var here byte
	beyond := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(&here), -32*stackFrame)), 32*stackFrame)
	return bytes.Contains(beyond, secret)
}
