// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Sysctl reads a number below /proc/sys/net, such as "ipv4/ip_default_ttl", in the thread's network namespace. It returns 0 on errors.
func Sysctl(name string) int {
	b, err := os.ReadFile("/proc/sys/net/" + name)
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(b)))
	if err != nil {
		return 0
	}
	return n
}

// IPv6MTU returns the MTU (bytes) for IPv6 packets through a device, in the thread's network
// namespace. It is the device's MTU, or the smaller MTU of a router advertisement (RFC 4861,
// section 4.6.4). It returns 0 if it is unknown.
func IPv6MTU(device string) int { return Sysctl("ipv6/conf/" + device + "/mtu") }

// namingSysctl returns an error of the kernel for an address or a route of a link. If a sysctl disables
// IPv6, the kernel refuses both as if the caller had no privilege, so the error names the sysctl.
func namingSysctl(err error, link string, prefix netip.Prefix) error {
	if !errors.Is(err, unix.EACCES) || !prefix.Addr().Is6() {
		return err
	}
	return cmp.Or(disabledIPv6("all", "default", link), err)
}

// IPv6OfNewLinks returns the reason why a link that is created now has no IPv6, nil if it has.
func IPv6OfNewLinks() error {
	if _, err := os.Stat("/proc/sys/net/ipv6"); errors.Is(err, fs.ErrNotExist) {
		return errors.New("the kernel has no IPv6 (ipv6.disable=1)")
	}
	if Sysctl("ipv6/conf/default/disable_ipv6") == 0 {
		return nil
	}
	return disabledIPv6("all", "default")
}

// disabledIPv6 returns an error that names the first sysctl that is set, nil if none is. A link that is
// new has the value of "default", and writing "all" writes all others (Linux's ip-sysctl
// documentation, disable_ipv6).
func disabledIPv6(confs ...string) error {
	for _, conf := range confs {
		if Sysctl("ipv6/conf/"+conf+"/disable_ipv6") != 0 {
			return fmt.Errorf("IPv6 is disabled by the sysctl net.ipv6.conf.%s.disable_ipv6", strings.ReplaceAll(conf, ".", "/")) // as sysctl(8)
		}
	}
	return nil
}

// srcValidMark makes reverse path filtering consider a packet's mark (Linux's ip-sysctl documentation,
// src_valid_mark).
const srcValidMark = "/proc/sys/net/ipv4/conf/all/src_valid_mark"

// SrcValidMark reports whether net.ipv4.conf.all.src_valid_mark is set.
func SrcValidMark() (bool, error) {
	b, err := os.ReadFile(srcValidMark)
	if err != nil {
		return false, fmt.Errorf("reading net.ipv4.conf.all.src_valid_mark: %w", err)
	}
	return !bytes.Equal(bytes.TrimSpace(b), []byte("0")), nil
}

// SetSrcValidMark sets or clears net.ipv4.conf.all.src_valid_mark.
func SetSrcValidMark(on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	if err := writeSysctl(srcValidMark, value); err != nil {
		return fmt.Errorf("setting net.ipv4.conf.all.src_valid_mark to %s: %w", value, err)
	}
	return nil
}

// PromoteSecondaries sets promote_secondaries of a link: when an IPv4 address is removed, the others of its subnet stay (Linux's
// ip-sysctl documentation).
func PromoteSecondaries(name string) error {
	if err := writeSysctl("/proc/sys/net/ipv4/conf/"+name+"/promote_secondaries", "1"); err != nil {
		return fmt.Errorf("setting net.ipv4.conf.%s.promote_secondaries: %w", name, err)
	}
	return nil
}

func writeSysctl(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
