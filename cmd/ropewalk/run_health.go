// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// healthCheck checks whether a device works. It uses the control socket, like clients do: a request takes the locks of the device
// and of all peers. It is not safe for concurrent use.
type healthCheck struct {
	socket  uapi.Dir
	name    string
	threads func() ([]string, error) // returns the names of this process's threads

	named bool // at some time, all threads of the lanes had their names
}

// check returns an error if the device does not answer, or if a loop of a lane has ended or makes no progress.
func (h *healthCheck) check() error {
	c, err := h.socket.Dial(h.name)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Status(); err != nil {
		return err
	}
	var stats struct {
		Up     bool               `json:"up"`
		Lanes  []json.RawMessage  `json:"lanes"`
		Stalls config.StallReport `json:"stalls"`
	}
	if err := c.Stats(&stats); err != nil {
		return err
	}
	if stalled := stats.Stalls.Lanes; len(stalled) > 0 {
		return fmt.Errorf("lanes make no progress: %s", strings.Join(stalled, ", "))
	}
	return h.checkLoops(len(stats.Lanes), stats.Up)
}

// checkLoops checks that each loop of a lane has its thread, which ends with the loop. It identifies threads by name, so it
// checks nothing on a system where threads cannot be renamed.
func (h *healthCheck) checkLoops(lanes int, up bool) error {
	names, err := h.threads()
	if err != nil {
		return err
	}
	loops := map[string]int{}
	for _, name := range names {
		loops[strings.TrimRight(name, "0123456789")]++
	}
	tx, rx := loops["rw-tx"], loops["rw-rx"]
	missing := up && (tx < lanes || rx < lanes) // lanes do not read the TUN before the interface was up
	h.named = h.named || up && !missing
	if h.named && missing {
		return fmt.Errorf("a lane has stopped: of %d lanes, %d transmit and %d receive", lanes, tx, rx)
	}
	return nil
}

// threadNames returns the names of this process's threads. A thread that ends during the call may be missing.
func threadNames() ([]string, error) {
	const tasks = "/proc/self/task"
	entries, err := os.ReadDir(tasks)
	if err != nil {
		return nil, fmt.Errorf("listing threads: %w", err)
	}
	var names []string
	for _, e := range entries {
		if comm, err := os.ReadFile(filepath.Join(tasks, e.Name(), "comm")); err == nil {
			names = append(names, strings.TrimSpace(string(comm)))
		}
	}
	return names, nil
}
