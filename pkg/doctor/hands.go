// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// Host is the Hands of this host, in the network namespace of the calling thread.
type Host struct{}

var _ Hands = Host{}

var errNoValue = errors.New("it has a value that cannot be set")

// Place implements Hands.
func (Host) Place() (Place, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Place{}, fmt.Errorf("telling this start of the machine from others: %w", err)
	}
	network, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return Place{}, fmt.Errorf("telling this network namespace from others: %w", err)
	}
	return Place{Boot: strings.TrimSpace(string(boot)), Network: network}, nil
}

// Read implements Hands.
func (Host) Read(c Change) (string, error) {
	switch c.Kind {
	case Sysctl, Sysfs:
		b, err := os.ReadFile(c.path())
		if err != nil {
			return "", err
		}
		return c.normal(strings.TrimSpace(string(b)))
	case Offload:
		return readOffload(c)
	case FlowHash:
		return readFlowHash(c)
	}
	return "", errForeign
}

// Write implements Hands.
func (Host) Write(c Change, value string) error {
	switch c.Kind {
	case Sysctl, Sysfs:
		return writeFile(c.path(), value+"\n")
	case Offload:
		return hostnet.SetFeature(c.Target, c.Key, value == onOff(true))
	case FlowHash:
		return writeFlowHash(c, value)
	}
	return errForeign
}

// The letters that ethtool has for hashed fields.
const (
	fourTuple     = "sdfn"
	addressesOnly = "sd"
)

func writeFlowHash(c Change, value string) error {
	fields, known := map[string]spread.Fields{fourTuple: spread.FourTuple, addressesOnly: spread.AddressesOnly}[value]
	if !known {
		return errNoValue
	}
	return hostnet.SetUDPFields(c.Target, c.family(), fields)
}

// family is that of the flows whose hash is changed.
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

// normal is the form of a value that Changes have: the kernel writes bitmaps with zeros in front.
func (c Change) normal(value string) (string, error) {
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
	return "", errNoValue
}

// gone tells that a setting's device or processor is.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, hostnet.ErrNoLink)
}
