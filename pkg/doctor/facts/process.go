// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/datapath/hook"
)

var errAbsent = errors.New("it does not tell")

func (s source) process() Process {
	return Process{
		Capabilities: answer(s.capabilities()),
		Memlock:      answer(s.memlock()),
		BPFFS:        answer(hook.MountedFS()),
	}
}

// capabilities reads CapEff of proc(5)'s status.
func (s source) capabilities() (uint64, error) {
	text, err := s.text("proc/thread-self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		value, ok := strings.CutPrefix(line, "CapEff:")
		if !ok {
			continue
		}
		caps, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			return 0, fmt.Errorf("reading /proc/thread-self/status: %q are no capabilities", shorten(value))
		}
		return caps, nil
	}
	return 0, fmt.Errorf("reading the capabilities in /proc/thread-self/status: %w", errAbsent)
}

// memlock reads the soft limit.
func (s source) memlock() (uint64, error) {
	text, err := s.text("proc/self/limits")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "Max locked memory")
		fields := strings.Fields(rest)
		if !ok || len(fields) == 0 {
			continue
		}
		if fields[0] == "unlimited" {
			return NoLimit, nil
		}
		n, err := strconv.ParseUint(fields[0], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading /proc/self/limits: %q is no limit", shorten(fields[0]))
		}
		return n, nil
	}
	return 0, fmt.Errorf("reading the limits in /proc/self/limits: %w", errAbsent)
}
