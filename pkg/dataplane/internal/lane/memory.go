// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/memory"
)

const (
	// trimDelay is the time without growth after which memory is given back.
	trimDelay = time.Second
	// trimPause is the time from one collection to the next one: each empties the pools, so the next burst allocates again.
	trimPause = 20 * time.Second
)

// trimmer gives memory back to the operating system some seconds after lanes have last needed
// more of it. The runtime alone keeps the peak of a burst for minutes, since lanes allocate
// nothing while they carry packets. Without growth it does nothing.
type trimmer struct {
	grown atomic.Uint64 // how often memory was allocated
	armed atomic.Bool   // check will be called
	last  time.Time     // of giving back; for check
	Free  func()        // GiveBack, except in tests
}

// Note records that memory was allocated, or is no longer needed. A trimmer that is nil or cannot free ignores it.
func (m *trimmer) Note() {
	if m == nil || m.Free == nil {
		return
	}
	m.grown.Add(1)
	if !m.armed.Swap(true) {
		m.arm(trimDelay)
	}
}

// arm calls check after a pause.
func (m *trimmer) arm(pause time.Duration) {
	seen := m.grown.Load()
	time.AfterFunc(pause, func() { m.check(seen) })
}

// check gives memory back unless more was needed since it was armed, or it was given back not long ago.
func (m *trimmer) check(seen uint64) {
	pause := trimPause - time.Since(m.last)
	if pause > 0 || m.grown.Load() != seen {
		m.arm(max(pause, trimDelay))
		return
	}
	m.last = time.Now()
	m.armed.Store(false)
	m.Free()
}

// GiveBack collects twice, since a sync.Pool keeps its content over the first collection. It keeps what lanes take from the pools in between:
// a busy lane does not allocate anew, which would lead here again.
func GiveBack() {
	runtime.GC()
	time.Sleep(trimDelay)
	memory.GiveBack()
}
