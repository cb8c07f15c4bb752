// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// Host is the Hands of this host, in the network namespace of the calling thread. Its Context ends commands that it runs.
type Host struct{ Context context.Context }

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
func (h Host) Read(c Change) (string, error) {
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
func (h Host) Write(c Change, value string) error {
	switch c.Kind {
	case Sysctl, Sysfs:
		return writeFile(c.path(), value+"\n")
	case Offload:
		return writeOffload(c, value == onOff(true))
	case FlowHash:
		return h.writeFlowHash(c, value)
	}
	return errForeign
}

// writeFlowHash leaves the ioctl to the tool, which ends with 0 also when the driver refuses, and then says so.
func (h Host) writeFlowHash(c Change, value string) error {
	out, err := exec.CommandContext(h.Context, "ethtool", "-N", c.Target, "rx-flow-hash", c.Key, value).CombinedOutput()
	said := strings.TrimSpace(string(out))
	if err == nil && said != "" {
		err = errIgnored
	}
	if err != nil {
		return fmt.Errorf("running `%s`: %w (%s)", c.command(value), err, said)
	}
	return nil
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
	e, err := ethtool.NewEthtool()
	if err != nil {
		return "", err
	}
	defer e.Close()
	all, err := e.Features(c.Target)
	if err != nil {
		return "", err
	}
	on, there := all[c.Key]
	if !there {
		return "", fs.ErrNotExist
	}
	return onOff(on), nil
}

func writeOffload(c Change, on bool) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer e.Close()
	return e.Change(c.Target, map[string]bool{c.Key: on})
}

func readFlowHash(c Change) (string, error) {
	rss, err := hostnet.ReadRSS(c.Target)
	if err != nil {
		return "", err
	}
	fields := rss.UDP4
	if c.Key == "udp6" {
		fields = rss.UDP6
	}
	switch fields {
	case spread.FourTuple:
		return "sdfn", nil
	case spread.AddressesOnly:
		return "sd", nil
	}
	return "", errNoValue
}

// gone tells that a setting's device or processor is.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, hostnet.ErrNoLink)
}
