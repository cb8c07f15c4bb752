// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"syscall"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// checkUnderlay returns an error if the underlay mode is unknown.
func checkUnderlay(mode *config.UnderlayMode) error {
	if mode == nil {
		return nil
	}
	if _, err := config.ParseUnderlayMode(mode.String()); err != nil {
		return fmt.Errorf("configuring the underlay: %w (%w)", err, syscall.EINVAL)
	}
	return nil
}

// configureUnderlay sets the underlay mode. nil leaves it unchanged; the present mode makes the port choose again. The caller holds mu.
func (d *Device) configureUnderlay(mode *config.UnderlayMode) {
	if mode == nil {
		return
	}
	d.underlayMode.Store(uint32(*mode))
	if s, ok := d.switcher(); ok {
		s.SetMode(*mode)
	}
}

// switcher returns the present port if it can switch between modes.
func (d *Device) switcher() (underlay.Switcher, bool) {
	ref := d.port.Load()
	if ref == nil {
		return nil, false
	}
	s, ok := ref.Port.(underlay.Switcher)
	return s, ok
}

// underlayReport reports the path of data messages: UDP sockets or AF_XDP.
func (d *Device) underlayReport() config.UnderlayReport {
	if s, ok := d.switcher(); ok {
		return s.Report()
	}
	r := config.UnderlayReport{Mode: config.UnderlayMode(d.underlayMode.Load()), Path: config.UnderlayUDP}
	if d.port.Load() == nil {
		r.Reason = errDown.Error()
	}
	return r
}
