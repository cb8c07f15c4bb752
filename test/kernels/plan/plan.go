// SPDX-License-Identifier: Apache-2.0

// Package plan is the protocol between the harness and the init of the virtual machine: the steps to run and the markers on the
// console.
package plan

// Path is the file with the plan, as JSON.
const Path = "/plan.json"

// Marker starts the last line on the console. A space and the exit code of the plan follow it.
const Marker = "ropewalk-vm-exit:"

// StepMarker starts the line before each step's output. A space and the step's name follow it.
const StepMarker = "ropewalk-vm-step:"

// StepEndMarker starts the line after each step's output. The step's name and its exit code follow it.
const StepEndMarker = "ropewalk-vm-step-end:"

// AliveMarker starts init's periodic heartbeat, which shows that the machine still runs programs. The machine's uptime follows it.
const AliveMarker = "ropewalk-vm-alive:"

// Step is one command.
type Step struct {
	Name string
	Argv []string
}

// Plan is the work of one virtual machine.
type Plan struct {
	// Modules are the paths of kernel modules, each after its dependencies.
	Modules []string
	// Env is the environment of all steps. Its elements have the form NAME=value.
	Env []string
	// Steps run one after the other. The next one runs even if one fails.
	Steps []Step
}
