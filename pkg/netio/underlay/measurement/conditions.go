// SPDX-License-Identifier: Apache-2.0

package measurement

import (
	"fmt"
	"net"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
)

// Conditions describe the machine of a measurement. The measurement says nothing about a device
// once they have changed.
type Conditions struct {
	Driver string `json:"driver"`
	// DriverVersion is empty if it is the kernel's.
	DriverVersion string `json:"driver_version,omitempty"`
	Firmware      string `json:"firmware,omitempty"`
	Bus           string `json:"bus,omitempty"` // the device's address on its bus
	// MAC is the hardware address of a device without a bus. Devices in other network namespaces
	// may have the same name.
	MAC    string `json:"mac,omitempty"`
	Kernel string `json:"kernel"` // uname -r
	Queues int    `json:"queues"` // receive queues; 1 if the driver does not report them
}

// ReadConditions reads the present conditions of a device in the network namespace of the calling thread.
func ReadConditions(device string) (Conditions, error) {
	d, err := hostnet.ReadDriver(device)
	if err != nil {
		return Conditions{}, err
	}
	c := Conditions{Driver: d.Name, DriverVersion: d.Version, Firmware: d.Firmware, Bus: d.Bus, Queues: 1}
	if c.Kernel, _ = kernel.Uname(); c.DriverVersion == c.Kernel {
		c.DriverVersion = ""
	}
	if c.Bus == "" {
		i, err := net.InterfaceByName(device)
		if err != nil {
			return Conditions{}, fmt.Errorf("reading the hardware address of %s: %w", device, err)
		}
		c.MAC = i.HardwareAddr.String()
	}
	if q, err := hostnet.ReadChannels(device); err == nil {
		c.Queues = max(q.RX+q.Combined, 1)
	}
	return c, nil
}

// String names all conditions in one line.
func (c Conditions) String() string {
	return fmt.Sprintf("driver %s (version %q, firmware %q, bus address %q), hardware address %q, kernel %s, receive queues %d",
		c.Driver, c.DriverVersion, c.Firmware, c.Bus, c.MAC, c.Kernel, c.Queues)
}
