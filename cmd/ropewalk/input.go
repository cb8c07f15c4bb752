// SPDX-License-Identifier: Apache-2.0

package main

import "context"

// untilDone returns the result of read, or the cause if ctx ends before. A read of a terminal or a
// pipe does not end with ctx. The command must end then, because the read goes on.
func untilDone[T any](ctx context.Context, read func() (T, error)) (value T, err error) {
	done := make(chan func() (T, error), 1)
	go func() {
		value, err := read()
		done <- func() (T, error) { return value, err }
	}()
	select {
	case result := <-done:
		return result()
	case <-ctx.Done():
		return value, context.Cause(ctx)
	}
}
