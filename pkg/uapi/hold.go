// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// hold is whether a Listener lets somebody in.
type hold struct {
	mu   sync.Mutex
	over chan struct{} // closed by Release; nil while everybody is let in
}

// Hold has Accept wait: who connects waits too, for Release, or for the process that has the same socket (Dir.Resume). One who is just
// being accepted may still be.
func (l *Listener) Hold() error {
	l.hold.mu.Lock()
	defer l.hold.mu.Unlock()
	if l.hold.over == nil {
		l.hold.over = make(chan struct{})
	}
	return l.SetDeadline(time.Unix(1, 0))
}

// Release undoes Hold.
func (l *Listener) Release() error {
	l.hold.mu.Lock()
	defer l.hold.mu.Unlock()
	if l.hold.over == nil {
		return nil
	}
	err := l.SetDeadline(time.Time{})
	close(l.hold.over)
	l.hold.over = nil
	return err
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.UnixListener.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return conn, err
		}
		l.hold.wait()
	}
}

func (h *hold) wait() {
	h.mu.Lock()
	over := h.over
	h.mu.Unlock()
	if over != nil {
		<-over
	}
}
