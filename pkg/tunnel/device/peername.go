// SPDX-License-Identifier: Apache-2.0

package device

import "log/slog"

// log returns the device's log, with the peer's name if it has one.
func (p *Peer) log() *slog.Logger {
	if name := p.name.Load(); name != nil {
		return p.dev.log.With("name", *name)
	}
	return p.dev.log
}

// nameText returns the peer's name, empty for none.
func (p *Peer) nameText() string {
	if name := p.name.Load(); name != nil {
		return *name
	}
	return ""
}

// configureName sets the peer's name; empty removes it.
func (p *Peer) configureName(name string) {
	if name == "" {
		p.name.Store(nil)
		return
	}
	p.name.Store(&name)
}
