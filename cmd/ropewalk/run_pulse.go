// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// pulse finds out whether a device is alive, the way its users would: it goes through the control socket, and so through the
// locks of the device and of all peers. Its check is for one goroutine at a time.
type pulse struct {
	socket  uapi.Dir
	name    string
	threads func() ([]string, error) // the names of this process's threads

	named bool // each lane's threads had their names once
}

// check fails when the device does not answer, or when a loop of a lane has ended.
func (p *pulse) check() error {
	c, err := p.socket.Dial(p.name)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Status(); err != nil {
		return err
	}
	var stats struct {
		Up    bool              `json:"up"`
		Lanes []json.RawMessage `json:"lanes"`
	}
	if err := c.Stats(&stats); err != nil {
		return err
	}
	return p.checkLoops(len(stats.Lanes), stats.Up)
}

// checkLoops wants a thread of each loop: a loop that ends takes its thread along. Where threads cannot be named it does not
// know.
func (p *pulse) checkLoops(lanes int, up bool) error {
	names, err := p.threads()
	if err != nil {
		return err
	}
	loops := map[string]int{}
	for _, name := range names {
		loops[strings.TrimRight(name, "0123456789")]++
	}
	tx, rx := loops["rw-tx"], loops["rw-rx"]
	missing := tx < lanes || up && rx < lanes
	p.named = p.named || up && !missing
	if p.named && missing {
		return fmt.Errorf("of %d lanes, %d transmit and %d receive", lanes, tx, rx)
	}
	return nil
}

// threadNames lists the names of this process's threads. One that ends meanwhile may be missing.
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
