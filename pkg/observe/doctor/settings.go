// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// HostSettings implements Settings for this host, in the network namespace of the calling thread.
type HostSettings struct{}

var _ Settings = HostSettings{}

var errUnsupportedValue = errors.New("its current value cannot be set")

// Scope implements Settings.
func (HostSettings) Scope() (Scope, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Scope{}, fmt.Errorf("reading the boot ID: %w", err)
	}
	network, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return Scope{}, fmt.Errorf("reading the network namespace: %w", err)
	}
	return Scope{Boot: strings.TrimSpace(string(boot)), Network: network}, nil
}

// Read implements Settings.
func (HostSettings) Read(c Change) (string, error) {
	switch c.Kind {
	case Sysctl, Sysfs:
		b, err := os.ReadFile(c.path())
		if err != nil {
			return "", err
		}
		return c.normalize(strings.TrimSpace(string(b)))
	case Offload:
		return readOffload(c)
	case FlowHash:
		return readFlowHash(c)
	}
	return "", errUnknownSetting
}

// Write implements Settings.
func (HostSettings) Write(c Change, value string) error {
	switch c.Kind {
	case Sysctl, Sysfs:
		return writeFile(c.path(), value+"\n")
	case Offload:
		return hostnet.SetFeature(c.Target, c.Key, value == onOff(true))
	case FlowHash:
		return writeFlowHash(c, value)
	}
	return errUnknownSetting
}

// The letters of ethtool for RSS hash fields.
const (
	fourTuple     = "sdfn"
	addressesOnly = "sd"
)

func writeFlowHash(c Change, value string) error {
	fields, known := map[string]spread.Fields{fourTuple: spread.FourTuple, addressesOnly: spread.AddressesOnly}[value]
	if !known {
		return errUnsupportedValue
	}
	return hostnet.SetUDPFields(c.Target, c.family(), fields)
}

// family is the address family of the flows whose hash is changed.
func (c Change) family() hostnet.Family {
	if c.Key == "udp6" {
		return hostnet.IPv6
	}
	return hostnet.IPv4
}

func (c Change) path() string {
	if c.Kind == Sysfs {
		return "/sys/" + c.Target
	}
	return "/proc/sys/" + c.Target
}

// normalize returns a value in the form that Changes use. The kernel prints bitmaps with leading zeros.
func (c Change) normalize(value string) (string, error) {
	if !strings.HasSuffix(c.Target, "ps_cpus") {
		return value, nil
	}
	cpus, err := facts.ParseMask(value)
	return facts.Mask(cpus), err
}

func writeFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func readOffload(c Change) (string, error) {
	all, err := hostnet.ReadFeatures(c.Target)
	if err != nil {
		return "", err
	}
	f, there := all[c.Key]
	if !there {
		return "", fs.ErrNotExist
	}
	return onOff(f.On), nil
}

func readFlowHash(c Change) (string, error) {
	rss, err := hostnet.ReadRSS(c.Target)
	if err != nil {
		return "", err
	}
	fields := rss.UDP4
	if c.family() == hostnet.IPv6 {
		fields = rss.UDP6
	}
	switch fields {
	case spread.FourTuple:
		return fourTuple, nil
	case spread.AddressesOnly:
		return addressesOnly, nil
	}
	return "", errUnsupportedValue
}

// isNotFound reports whether err means that the setting's device or CPU no longer exists.
func isNotFound(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, hostnet.ErrNoLink)
}
