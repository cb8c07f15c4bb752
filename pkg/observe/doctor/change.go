// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// ChangeKind is the kind of a setting.
type ChangeKind string

// The kinds of changes. All take effect at once, keep the link up and can be undone.
const (
	Sysctl   ChangeKind = "sysctl"    // Target is a path below /proc/sys
	Sysfs    ChangeKind = "sysfs"     // Target is a path below /sys
	Offload  ChangeKind = "offload"   // Target is a device, Key the kernel's name of the feature, values are on and off
	FlowHash ChangeKind = "flow-hash" // Target is a device, Key udp4 or udp6, values are ethtool's letters for fields
)

// Change is a change of one setting.
type Change struct {
	Kind   ChangeKind `json:"kind"`
	Target string     `json:"target"`
	Key    string     `json:"key,omitempty"`
	Before string     `json:"before"`
	After  string     `json:"after"`
}

// Command returns the shell command that makes the same change.
func (c Change) Command() string { return c.command(c.After) }

func (c Change) command(value string) string {
	target, value := quote(c.Target), quote(value)
	switch c.Kind {
	case Sysctl:
		return fmt.Sprintf("sysctl -w %s=%s", quote(sysctlName(c.Target)), value)
	case Sysfs:
		return fmt.Sprintf("echo %s > %s", value, quote("/sys/"+c.Target))
	case Offload:
		return fmt.Sprintf("ethtool -K %s %s %s", target, quote(c.Key), value)
	case FlowHash:
		return fmt.Sprintf("ethtool -N %s rx-flow-hash %s %s", target, quote(c.Key), value)
	}
	return ""
}

// Setting returns the readable name of the setting.
func (c Change) Setting() string {
	switch c.Kind {
	case Sysctl:
		return sysctlName(c.Target)
	case Sysfs:
		return "/sys/" + c.Target
	}
	return c.Target + " " + c.Key
}

func commands(changes []Change) string {
	lines := make([]string, len(changes))
	for i, c := range changes {
		lines[i] = c.Command()
	}
	return strings.Join(lines, "\n")
}

// sysctlName returns the dotted name of a path. Dots in a device's name become slashes (sysctl(8)): net/ipv4/conf/eth0.5/rp_filter has one.
func sysctlName(path string) string {
	return strings.Map(func(r rune) rune {
		switch r {
		case '/':
			return '.'
		case '.':
			return '/'
		}
		return r
	}, path)
}

// quote returns text as one shell word.
func quote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_.:/=@%+,-", r)
	}
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool { return !plain(r) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

var errUnknownSetting = errors.New("not a setting that doctor changes")

// check refuses a change that doctor never proposes. Somebody may have put one into an undo record, which --undo applies as root. A kind of
// change that doctor learns must be added here.
func (c Change) check() error {
	patterns := map[ChangeKind][2]string{
		Sysctl:   {`net/core/(bpf_jit_enable|netdev_max_backlog)|net/ipv4/(ip_local_reserved_ports|conf/all/src_valid_mark)`, ``},
		Sysfs:    {`class/net/[^/]+/queues/(rx-[0-9]+/rps|tx-[0-9]+/xps)_cpus|devices/system/cpu/cpu[0-9]+/cpufreq/scaling_governor`, ``},
		Offload:  {`[^-/][^/]*`, `[a-z0-9-]+`},
		FlowHash: {`[^-/][^/]*`, `udp[46]`},
	}
	p, known := patterns[c.Kind]
	if !known || !matches(p[0], c.Target) || !matches(p[1], c.Key) || strings.Contains(c.Target, "..") {
		return fmt.Errorf("%s %q: %w", c.Kind, c.Setting(), errUnknownSetting)
	}
	for _, value := range []string{c.Before, c.After} {
		if !matches(`[a-zA-Z0-9_,-]*`, value) {
			return fmt.Errorf("value %q of %s: %w", value, c.Setting(), errUnknownSetting)
		}
	}
	return nil
}

func matches(pattern, text string) bool {
	return regexp.MustCompile(`^(` + pattern + `)$`).MatchString(text)
}
