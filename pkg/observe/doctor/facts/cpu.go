// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/thread"
)

const cpuDir = "sys/devices/system/cpu"

func (s source) cpu() CPU {
	c := CPU{
		Online:  result(s.cpus(cpuDir + "/online")),
		SMT:     result(s.smt()),
		Idle:    result(s.idle()),
		Latency: result(s.latency()),
		Nodes:   result(s.cpus("sys/devices/system/node/online")),
	}
	c.Cores = s.cores(c.Online.Value)
	c.Governors = s.governors(c.Online.Value)
	c.Daemon = s.daemon()
	process := "self"
	if c.Daemon > 0 {
		process = strconv.Itoa(c.Daemon)
	}
	c.Group = result(thread.ReadGroup(s.text, process))
	return c
}

// daemon returns the PID of a daemon, 0 for none.
func (s source) daemon() (found int) {
	s.processes(func(pid int, comm string) {
		if comm == "ropewalk" && pid != os.Getpid() {
			found = pid
		}
	})
	return found
}

func (s source) smt() (bool, error) {
	text, err := s.text(cpuDir + "/smt/active")
	return text == "1", err
}

// cores counts the CPUs that are the first thread of their core.
func (s source) cores(online []int) (n int) {
	for _, cpu := range online {
		siblings, err := s.cpus(fmt.Sprintf("%s/cpu%d/topology/thread_siblings_list", cpuDir, cpu))
		if err != nil || len(siblings) == 0 {
			return 0
		}
		if siblings[0] == cpu {
			n++
		}
	}
	return n
}

func (s source) governors(online []int) Result[map[int]string] {
	governors := map[int]string{}
	for _, cpu := range online {
		text, err := s.text(GovernorPath(cpu))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Unknown[map[int]string](err)
		}
		governors[cpu] = text
	}
	return Known(governors)
}

// GovernorPath returns the path of a CPU's cpufreq governor, relative to the root.
func GovernorPath(cpu int) string {
	return fmt.Sprintf("%s/cpu%d/cpufreq/scaling_governor", cpuDir, cpu)
}

// idle reads the idle states of CPU 0. All CPUs have the same, except on big.LITTLE.
func (s source) idle() ([]IdleState, error) {
	dir := cpuDir + "/cpu0/cpuidle"
	names, err := s.names(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var states []IdleState
	for _, name := range names {
		if !strings.HasPrefix(name, "state") {
			continue
		}
		micros, err := s.number(path.Join(dir, name, "latency"))
		if err != nil {
			return nil, err
		}
		called, _ := s.text(path.Join(dir, name, "name"))
		off, _ := s.text(path.Join(dir, name, "disable"))
		states = append(states, IdleState{Name: called, Latency: micro(micros), Off: off == "1"})
	}
	return states, nil
}

func micro(n int) time.Duration { return time.Duration(min(max(n, 0), 1<<31)) * time.Microsecond }

// latency reads the PM QoS limit from /dev/cpu_dma_latency (Linux, pm_qos_interface.rst): one signed number in native byte
// order.
func (s source) latency() (time.Duration, error) {
	f, err := s.root.Open("dev/cpu_dma_latency")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var b [4]byte
	if _, err := io.ReadFull(f, b[:]); err != nil {
		return 0, fmt.Errorf("reading /dev/cpu_dma_latency: %w", err)
	}
	return micro(int(int32(binary.NativeEndian.Uint32(b[:])))), nil
}
