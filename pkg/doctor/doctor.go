// SPDX-License-Identifier: Apache-2.0

// Package doctor judges whether a host lets ropewalk be fast, and says what to do where it does not. Its checks are pure
// functions over gathered facts (package facts). Treat carries out, and Undo takes back, those changes that are safe
// while packets flow.
package doctor

import (
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/doctor/facts"
)

// Status is a check's verdict.
type Status string

// The verdicts. Unknown is what this process may not see; it counts for nothing.
const (
	OK      Status = "ok"
	Warning Status = "warning" // it works, and is slower or more fragile than need be
	Failed  Status = "failed"  // it does not work
	Unknown Status = "unknown"
)

// Section is a group of checks.
type Section string

// The sections, in the order of a report.
const (
	SectionKernel  Section = "kernel"
	SectionProcess Section = "privileges"
	SectionNIC     Section = "network devices"
	SectionCPU     Section = "processors"
	SectionHost    Section = "host network"
	SectionClock   Section = "clock"
	SectionTunnels Section = "tunnels"
)

// Check looks at one thing.
type Check struct {
	ID      string // for scripts; never changes
	Section Section
	Looks   string // at what, for people
	Why     string // it matters
	Fixable bool   // Treat can mend what it finds
	Running bool   // it is about tunnels that run
	judge   func(*facts.Facts, *recorder)
}

// check makes a Check of the host.
func check(id, looks string, judge func(*facts.Facts, *recorder), why string) Check {
	return Check{ID: id, Looks: looks, Why: why, judge: judge}
}

// checkNICs makes one of each underlay device.
func checkNICs(id, looks string, judge func(*facts.Facts, *facts.NIC, *recorder), why string) Check {
	return check(id, looks, eachNIC(judge), why)
}

// checkDaemons makes one of each tunnel that ropewalk serves and that is up.
func checkDaemons(id, looks string, judge func(*facts.Facts, string, *facts.Stats, *recorder), why string) Check {
	return check(id, looks, eachDaemon(judge), why).running()
}

func (c Check) fixable() Check {
	c.Fixable = true
	return c
}

func (c Check) running() Check {
	c.Running = true
	return c
}

// Finding is what a check found of one subject.
type Finding struct {
	Check   string  `json:"check"`
	Section Section `json:"section"`
	Subject string  `json:"subject,omitempty"` // a device or tunnel; empty for the host
	Status  Status  `json:"status"`
	Found   string  `json:"found"`
	Why     string  `json:"why"`
	// Mend is the command or the step that mends it; empty for OK.
	Mend string `json:"mend,omitempty"`
	// Changes are what Treat would do.
	Changes []Change `json:"changes,omitempty"`
}

// Checks lists all, in the order of a report.
func Checks() []Check {
	var all []Check
	for _, group := range []struct {
		section Section
		checks  []Check
	}{
		{SectionKernel, kernelChecks()},
		{SectionProcess, processChecks()},
		{SectionNIC, append(nicChecks(), queueChecks()...)},
		{SectionCPU, cpuChecks()},
		{SectionHost, append(hostChecks(), pluginChecks()...)},
		{SectionClock, clockChecks()},
		{SectionTunnels, append(tunnelChecks(), fastChecks()...)},
	} {
		for _, c := range group.checks {
			c.Section = group.section
			all = append(all, c)
		}
	}
	return all
}

// Examine runs all checks that apply. It changes nothing.
func Examine(f *facts.Facts) Report {
	r := newReport()
	for _, c := range Checks() {
		if f.Pre && c.Running {
			continue
		}
		rec := recorder{check: c}
		c.judge(f, &rec)
		r.Findings = append(r.Findings, rec.findings...)
	}
	r.count()
	return r
}

// recorder collects what one check finds.
type recorder struct {
	check    Check
	findings []Finding
}

func (r *recorder) add(subject string, status Status, found, mend string, changes []Change) {
	if mend == "" {
		mend = commands(changes)
	}
	r.findings = append(r.findings, Finding{
		Check: r.check.ID, Section: r.check.Section, Subject: subject, Status: status, Found: found, Why: r.check.Why,
		Mend: mend, Changes: changes,
	})
}

func (r *recorder) ok(subject, format string, args ...any) {
	r.add(subject, OK, fmt.Sprintf(format, args...), "", nil)
}

func (r *recorder) unknown(subject string, err error) {
	r.add(subject, Unknown, fmt.Sprintf("could not be told: %v", err), "", nil)
}

func (r *recorder) warn(subject, found, mend string, changes ...Change) {
	r.add(subject, Warning, found, mend, changes)
}

func (r *recorder) fail(subject, found, mend string, changes ...Change) {
	r.add(subject, Failed, found, mend, changes)
}
