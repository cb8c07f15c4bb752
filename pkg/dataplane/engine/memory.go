// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// trimDelay is the time without growth after which memory is given back.
const trimDelay = time.Second

// trimmer gives memory back to the operating system some seconds after lanes have last needed more of it: the runtime alone keeps the
// peak of a burst for minutes, since lanes allocate nothing while they carry packets. Without growth it does nothing.
type trimmer struct {
	grown atomic.Uint64 // how often memory was allocated
	armed atomic.Bool   // check will be called
	free  func()        // giveBack, except in tests
}

// note records that memory was allocated, or is no longer needed. A nil trimmer ignores it.
func (m *trimmer) note() {
	if m == nil {
		return
	}
	m.grown.Add(1)
	if !m.armed.Swap(true) {
		m.arm(m.grown.Load())
	}
}

func (m *trimmer) arm(seen uint64) { time.AfterFunc(trimDelay, func() { m.check(seen) }) }

// check gives memory back unless more was needed since it was armed.
func (m *trimmer) check(seen uint64) {
	if now := m.grown.Load(); now != seen {
		m.arm(now)
		return
	}
	m.armed.Store(false)
	m.free()
}

// giveBack collects twice, since a sync.Pool keeps its content over the first collection.
func giveBack() {
	runtime.GC()
	debug.FreeOSMemory()
}
