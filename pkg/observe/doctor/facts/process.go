// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
)

var errMissing = errors.New("no such entry")

func (s source) process() Process {
	p := Process{
		Capabilities: result(s.capabilities()),
		Memlock:      result(s.memlock()),
		BPFFS:        result(hook.MountedBPFFS()),
	}
	if s.has("usr/bin/ropewalk-agent") && s.has("dev/termination-log") { // a container of a pod, made from the image of ropewalk-agent
		p.AgentPod = s.has("var/run/secrets/kubernetes.io/serviceaccount")
		p.EnginePod = !p.AgentPod
	}
	return p
}

func (s source) has(path string) bool {
	found, err := s.exists(path)
	return err == nil && found
}

// capabilities reads CapEff from /proc/thread-self/status (proc_pid_status(5)).
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
			return 0, fmt.Errorf("reading /proc/thread-self/status: invalid capabilities %q", shorten(value))
		}
		return caps, nil
	}
	return 0, fmt.Errorf("reading the capabilities in /proc/thread-self/status: %w", errMissing)
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
			return 0, fmt.Errorf("reading /proc/self/limits: invalid limit %q", shorten(fields[0]))
		}
		return n, nil
	}
	return 0, fmt.Errorf("reading Max locked memory in /proc/self/limits: %w", errMissing)
}
