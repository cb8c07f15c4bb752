// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// withEthtool opens a device's ethtool socket and calls f with it. Errors are the kernel's, such as unix.EOPNOTSUPP
// where the driver does not support the command and unix.ENODEV for a missing device, or errInconsistent.
//
// Three faults rule out github.com/safchain/ethtool (v0.7.0). It supports neither the RSS key nor
// the hashed fields, and allocates a mebibyte for each set of names. It also does not notice when
// the names change between its two requests.
func withEthtool[T any](device, operation string, f func(ethtool) (T, error)) (result T, err error) {
	call, closeIt, err := openEthtool(device)
	if err == nil {
		defer closeIt()
		result, err = f(call)
	}
	if err != nil {
		var none T
		return none, fmt.Errorf("%s of %s: %w", operation, device, err)
	}
	return result, nil
}

// Driver returns the name of a device's driver, as `ethtool -i` does.
func Driver(device string) (string, error) {
	d, err := ReadDriver(device)
	return d.Name, err
}

// DriverInfo identifies a device's driver, its firmware and the device's place on its bus. Names are empty if the driver reports none.
type DriverInfo struct{ Name, Version, Firmware, Bus string }

// ReadDriver reads what `ethtool -i` shows of a device.
func ReadDriver(device string) (DriverInfo, error) {
	return withEthtool(device, "reading the driver", driverInfo)
}

// struct ethtool_drvinfo: strings of 32 bytes from offset 4 on.
const (
	drvinfoDriver = 4
	drvinfoLen    = 196
	driverLen     = 32
)

func driverInfo(call ethtool) (d DriverInfo, err error) {
	b := request(unix.ETHTOOL_GDRVINFO, drvinfoLen)
	if err := call(b); err != nil {
		return d, err
	}
	for i, field := range []*string{&d.Name, &d.Version, &d.Firmware, &d.Bus} {
		text, _, _ := bytes.Cut(b[drvinfoDriver+i*driverLen:][:driverLen], []byte{0})
		*field = string(bytes.Map(printable, text))
	}
	return d, nil
}

// printable replaces characters that names of drivers, features and counters do not contain. Some contain spaces.
func printable(c rune) rune {
	if c < ' ' || c > '~' {
		return '?'
	}
	return c
}

// Channels are a NIC's receive queues and its combined queue pairs.
type Channels struct{ RX, MaxRX, Combined, MaxCombined int }

// ReadChannels reads a device's channels as `ethtool -l` does.
func ReadChannels(device string) (Channels, error) {
	return withEthtool(device, "reading the channels", channels)
}

// channels reads struct ethtool_channels.
func channels(call ethtool) (c Channels, err error) {
	err = readNumbers(call, unix.ETHTOOL_GCHANNELS, 9, map[int]*int{1: &c.MaxRX, 4: &c.MaxCombined, 5: &c.RX, 8: &c.Combined}, maxQueue)
	return c, err
}

// Rings are the lengths of a NIC's receive and transmit rings, in packets.
type Rings struct{ RX, MaxRX, TX, MaxTX int }

// ReadRings reads a device's rings as `ethtool -g` does.
func ReadRings(device string) (Rings, error) { return withEthtool(device, "reading the rings", rings) }

// rings reads struct ethtool_ringparam.
func rings(call ethtool) (r Rings, err error) {
	err = readNumbers(call, unix.ETHTOOL_GRINGPARAM, 9, map[int]*int{1: &r.MaxRX, 4: &r.MaxTX, 5: &r.RX, 8: &r.TX}, 1<<24)
	return r, err
}

// Coalescing is a NIC's interrupt coalescing: the delay before a receive interrupt.
type Coalescing struct {
	RX       time.Duration
	Adaptive bool
}

// ReadCoalescing reads a device's interrupt coalescing as `ethtool -c` does.
func ReadCoalescing(device string) (Coalescing, error) {
	return withEthtool(device, "reading the coalescing", coalescing)
}

// coalescing reads struct ethtool_coalesce: rx_coalesce_usecs and use_adaptive_rx_coalesce.
func coalescing(call ethtool) (Coalescing, error) {
	var micros, adaptive int
	err := readNumbers(call, unix.ETHTOOL_GCOALESCE, 23, map[int]*int{1: &micros, 10: &adaptive}, 1<<31)
	return Coalescing{RX: time.Duration(micros) * time.Microsecond, Adaptive: adaptive != 0}, err
}

// readNumbers requests a structure of n 32-bit numbers, the command first, and reads the given ones, none of which may
// exceed limit.
func readNumbers(call ethtool, command uint32, n int, at map[int]*int, limit uint32) error {
	b := request(command, 4*n)
	if err := call(b); err != nil {
		return err
	}
	for i, to := range at {
		v := uint32At(b, 4*i)
		if v > limit {
			return fmt.Errorf("value %d above the maximum %d: %w", v, limit, errInconsistent)
		}
		*to = int(v)
	}
	return nil
}

// isSupported reports whether an optional command succeeded. It hides the errors of drivers without the command.
func isSupported(err error) (bool, error) {
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	return err == nil, err
}

func request(command uint32, n int) []byte {
	b := make([]byte, n)
	binary.NativeEndian.PutUint32(b, command)
	return b
}

func uint32At(b []byte, offset int) uint32 { return binary.NativeEndian.Uint32(b[offset:]) }
