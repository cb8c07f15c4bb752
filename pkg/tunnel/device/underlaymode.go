// SPDX-License-Identifier: Apache-2.0

package device

import (
	"cmp"
	"fmt"
	"syscall"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// checkUnderlay returns an error if the underlay mode is unknown, or if it and the receive CPUs contradict each other. The
// caller holds mu.
func (d *Device) checkUnderlay(c *config.Device) error {
	mode, cpus := config.UnderlayMode(d.underlayMode.Load()), d.receiveCPUs()
	if c.Underlay != nil {
		mode = *c.Underlay
	}
	if c.ReceiveCPUs != nil {
		cpus = *c.ReceiveCPUs
	}
	_, err := config.ParseUnderlayMode(mode.String())
	if err = cmp.Or(err, config.CheckReceiveCPUs(mode, cpus)); err != nil {
		return fmt.Errorf("configuring the underlay: %w (%w)", err, syscall.EINVAL)
	}
	return nil
}

// configureUnderlay changes the underlay mode, and the CPUs over which the kernel distributes received packets. nil leaves
// a setting unchanged. The caller holds mu.
func (d *Device) configureUnderlay(mode *config.UnderlayMode, cpus *config.ReceiveCPUs) {
	newMode := mode != nil && config.UnderlayMode(d.underlayMode.Swap(uint32(*mode))) != *mode
	newCPUs := cpus != nil && !cpus.Equal(d.receiveCPUs())
	if newCPUs {
		d.cpus.Store(cpus)
	}
	s, ok := d.switcher()
	if !ok {
		return
	}
	if newMode {
		s.SetMode(*mode)
	}
	if newCPUs {
		s.SetReceiveCPUs(*cpus)
	}
}

// receiveCPUs returns the configured receive CPUs.
func (d *Device) receiveCPUs() config.ReceiveCPUs {
	if c := d.cpus.Load(); c != nil {
		return *c
	}
	return config.ReceiveCPUs{}
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

// receiveCPUsState returns the receive CPUs for a State, nil if none are configured.
func (d *Device) receiveCPUsState() *config.ReceiveCPUs {
	if c := d.cpus.Load(); c != nil && c.On() {
		return c
	}
	return nil
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
	if c := d.receiveCPUs(); c.On() {
		r.ReceiveCPUs = &config.ReceiveCPUsReport{Mode: c, Reason: cmp.Or(r.Reason, "the port does not support it")}
	}
	return r
}
