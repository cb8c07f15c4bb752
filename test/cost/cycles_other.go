// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cost

import "errors"

// counter is a stub: CPU cycles are counted on Linux only.
type counter struct{}

func openCycles() (counter, error) { return counter{}, errors.ErrUnsupported }

func (counter) read() int64 { return 0 }

func (counter) close() {}

func processTime() int64 { return 0 }
