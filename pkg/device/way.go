// SPDX-License-Identifier: Apache-2.0

package device

import (
	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// configureUnderlay changes the way that data messages take. The caller holds mu.
func (d *Device) configureUnderlay(mode *config.UnderlayMode) {
	if mode == nil || config.UnderlayMode(d.way.Swap(uint32(*mode))) == *mode {
		return
	}
	if s, ok := d.switcher(); ok {
		s.SetMode(*mode)
	}
}

// switcher returns the port that is open now, if it has more than one way.
func (d *Device) switcher() (underlay.Switcher, bool) {
	ref := d.port.Load()
	if ref == nil {
		return nil, false
	}
	s, ok := ref.Port.(underlay.Switcher)
	return s, ok
}

// wayReport says by what way data messages go.
func (d *Device) wayReport() config.UnderlayReport {
	if s, ok := d.switcher(); ok {
		return s.Report()
	}
	r := config.UnderlayReport{Mode: config.UnderlayMode(d.way.Load()), Way: config.UnderlayUDP}
	if d.port.Load() == nil {
		r.Reason = errDown.Error()
	}
	return r
}
