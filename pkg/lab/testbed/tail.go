// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"strings"
	"sync"
)

// tailLen is enough for a crash: what led to it stands at the top of many lines.
const tailLen = 16 << 10

// tail is a writer that keeps the end of its input.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if len(t.buf) > 2*tailLen {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-tailLen:]...)
	}
	return len(p), nil
}

// String returns the last whole lines.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := string(t.buf)
	if len(text) > tailLen {
		text = text[len(text)-tailLen:]
		if i := strings.IndexByte(text, '\n'); i >= 0 {
			text = text[i+1:]
		}
	}
	return strings.TrimSpace(text)
}
