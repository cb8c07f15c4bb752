// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
)

func (s source) process() Process {
	p := Process{
		Capabilities: result(capabilities()),
		Memlock:      result(memlock()),
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

// capabilities returns the thread's effective capabilities.
func capabilities() (uint64, error) {
	var data [2]unix.CapUserData // low and high words
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&header, &data[0]); err != nil {
		return 0, fmt.Errorf("reading the capabilities: %w", err)
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), nil
}

// memlock returns the soft limit.
func memlock() (uint64, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return 0, fmt.Errorf("reading RLIMIT_MEMLOCK: %w", err)
	}
	return limit.Cur, nil
}
