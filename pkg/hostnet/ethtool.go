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

// asked opens a device's ethtool and has f ask it. Errors are the kernel's, such as unix.EOPNOTSUPP where the driver does not
// answer this and unix.ENODEV where there is no such device, and of drivers that contradict themselves.
//
// It is not github.com/safchain/ethtool that asks: that has neither the key nor the hashed fields of RSS (v0.7.0), takes a mebibyte
// for each set of names, and does not notice that there are other names by the second question.
func asked[T any](device, what string, f func(ethtool) (T, error)) (answer T, err error) {
	call, closeIt, err := openEthtool(device)
	if err == nil {
		defer closeIt()
		answer, err = f(call)
	}
	if err != nil {
		var none T
		return none, fmt.Errorf("%s of %s: %w", what, device, err)
	}
	return answer, nil
}

// Driver returns the name of a device's driver, as `ethtool -i` does.
func Driver(device string) (string, error) { return asked(device, "reading the driver", driverName) }

// struct ethtool_drvinfo.
const (
	drvinfoDriver = 4 // offset
	drvinfoLen    = 196
	driverLen     = 32
)

func driverName(call ethtool) (string, error) {
	b := request(unix.ETHTOOL_GDRVINFO, drvinfoLen)
	if err := call(b); err != nil {
		return "", err
	}
	name, _, _ := bytes.Cut(b[drvinfoDriver:drvinfoDriver+driverLen], []byte{0})
	return string(bytes.Map(printable, name)), nil
}

// printable keeps what names of drivers, features and counters consist of: some have spaces in them.
func printable(c rune) rune {
	if c < ' ' || c > '~' {
		return '?'
	}
	return c
}

// Channels are a NIC's pairs of queues (combined), and queues of one direction alone.
type Channels struct{ RX, MaxRX, Combined, MaxCombined int }

// ReadChannels reads them as `ethtool -l` does.
func ReadChannels(device string) (Channels, error) {
	return asked(device, "reading the channels", channels)
}

// struct ethtool_channels.
const (
	channelsMaxRX       = 4 // offsets
	channelsMaxCombined = 16
	channelsRX          = 20
	channelsCombined    = 32
	channelsLen         = 36
)

func channels(call ethtool) (c Channels, err error) {
	err = numbers(call, unix.ETHTOOL_GCHANNELS, channelsLen, map[int]*int{
		channelsRX: &c.RX, channelsMaxRX: &c.MaxRX, channelsCombined: &c.Combined, channelsMaxCombined: &c.MaxCombined,
	}, maxQueue)
	return c, err
}

// Rings are the lengths of a NIC's queues, in packets.
type Rings struct{ RX, MaxRX, TX, MaxTX int }

// ReadRings reads them as `ethtool -g` does.
func ReadRings(device string) (Rings, error) { return asked(device, "reading the rings", rings) }

// struct ethtool_ringparam.
const (
	ringsMaxRX = 4 // offsets
	ringsMaxTX = 16
	ringsRX    = 20
	ringsTX    = 32
	ringsLen   = 36
	maxRing    = 1 << 24
)

func rings(call ethtool) (r Rings, err error) {
	err = numbers(call, unix.ETHTOOL_GRINGPARAM, ringsLen, map[int]*int{
		ringsRX: &r.RX, ringsMaxRX: &r.MaxRX, ringsTX: &r.TX, ringsMaxTX: &r.MaxTX,
	}, maxRing)
	return r, err
}

// Coalescing is how long a NIC waits before it interrupts.
type Coalescing struct {
	RX       time.Duration
	Adaptive bool
}

// ReadCoalescing reads it as `ethtool -c` does.
func ReadCoalescing(device string) (Coalescing, error) {
	return asked(device, "reading the coalescing", coalescing)
}

// struct ethtool_coalesce.
const (
	coalesceRX         = 4 // offset of rx_coalesce_usecs
	coalesceAdaptiveRX = 40
	coalesceLen        = 92
	maxCoalescing      = 1 << 31 // µs
)

func coalescing(call ethtool) (Coalescing, error) {
	var micros, adaptive int
	err := numbers(call, unix.ETHTOOL_GCOALESCE, coalesceLen, map[int]*int{coalesceRX: &micros, coalesceAdaptiveRX: &adaptive}, maxCoalescing)
	return Coalescing{RX: time.Duration(micros) * time.Microsecond, Adaptive: adaptive != 0}, err
}

// numbers asks for a structure of n bytes and takes those at some offsets, none of which is above most.
func numbers(call ethtool, command uint32, n int, at map[int]*int, most uint32) error {
	b := request(command, n)
	if err := call(b); err != nil {
		return err
	}
	for offset, to := range at {
		v := uint32At(b, offset)
		if v > most {
			return fmt.Errorf("%d of what are at most %d: %w", v, most, errContradicts)
		}
		*to = int(v)
	}
	return nil
}

// told reports whether a command that drivers need not know has answered.
func told(err error) (bool, error) {
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
