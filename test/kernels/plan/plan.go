// SPDX-License-Identifier: Apache-2.0

// Package plan is what the harness and the init of the virtual machine agree on: what to do, and how its end is told.
package plan

// Path is where init finds the plan, as JSON.
const Path = "/plan.json"

// Marker starts the last line on the console. Behind it stands a space and the exit code of the whole plan.
const Marker = "ropewalk-vm-exit:"

// StepMarker starts the line before each step's output. Behind it stands a space and the step's name.
const StepMarker = "ropewalk-vm-step:"

// StepEndMarker starts the line behind each step's output. Behind it stand the step's name and its exit code.
const StepEndMarker = "ropewalk-vm-step-end:"

// AliveMarker starts a line that init writes all the time: programs still run, whatever the tests do. Behind it stands
// the machine's uptime.
const AliveMarker = "ropewalk-vm-alive:"

// Step is one command.
type Step struct {
	Name string
	Argv []string
}

// Plan is the work of one virtual machine.
type Plan struct {
	// Modules are the paths of kernel modules, each after those that it depends on.
	Modules []string
	// Env is the environment of all steps, as NAME=value.
	Env []string
	// Steps run one after the other; a failed one does not keep the next from running.
	Steps []Step
}
