// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
)

// Status is a check's result.
type Status string

// The results of a check. Unknown means that this process could not read the setting; it is no warning.
const (
	OK      Status = "ok"
	Warning Status = "warning" // it works, but is slower or less robust than possible
	Failed  Status = "failed"  // it does not work
	Unknown Status = "unknown"
)

// Section is a group of checks.
type Section string

// The sections in report order.
const (
	SectionKernel  Section = "kernel"
	SectionProcess Section = "privileges"
	SectionNIC     Section = "network devices"
	SectionCPU     Section = "CPUs"
	SectionHost    Section = "host network"
	SectionClock   Section = "clock"
	SectionTunnels Section = "tunnels"
	SectionPeer    Section = "peer"
)

// Check examines one property of the host.
type Check struct {
	ID          string // stable, for scripts
	Section     Section
	Description string // of the property
	Why         string // the property matters
	Fixable     bool   // Apply can fix a finding
	NeedsTunnel bool   // it examines running tunnels
	NeedsPeer   bool   // it examines the path to one peer
	evaluate    func(*facts.Facts, *recorder)
}

// check returns a Check of the host.
func check(id, description string, evaluate func(*facts.Facts, *recorder), why string) Check {
	return Check{ID: id, Description: description, Why: why, evaluate: evaluate}
}

// checkNICs returns a Check of each underlay device.
func checkNICs(id, description string, evaluate func(*facts.Facts, *facts.NIC, *recorder), why string) Check {
	return check(id, description, forEachNIC(evaluate), why)
}

// checkDaemons returns a Check of each ropewalk tunnel that is up.
func checkDaemons(id, description string, evaluate func(*facts.Facts, string, *facts.Stats, *recorder), why string) Check {
	return check(id, description, forEachDaemon(evaluate), why).needsTunnel()
}

func (c Check) fixable() Check {
	c.Fixable = true
	return c
}

func (c Check) needsTunnel() Check {
	c.NeedsTunnel = true
	return c
}

// Finding is the result of one check for one subject.
type Finding struct {
	Check   string  `json:"check"`
	Section Section `json:"section"`
	Subject string  `json:"subject,omitempty"` // a device or tunnel; empty for the host
	Status  Status  `json:"status"`
	Found   string  `json:"found"`
	Why     string  `json:"why"`
	// Fix is the command or the step that fixes it; empty for OK.
	Fix string `json:"fix,omitempty"`
	// Changes are the changes that Apply would make.
	Changes []Change `json:"changes,omitempty"`
}

// Checks lists all checks in report order.
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
		{SectionPeer, peerChecks()},
	} {
		for _, c := range group.checks {
			c.Section = group.section
			all = append(all, c)
		}
	}
	return all
}

// Examine runs all applicable checks. With a test of a peer in f, it runs only that peer's checks.
// It changes nothing.
func Examine(f *facts.Facts) Report {
	r := Report{APIVersion: APIVersion, Kind: "DoctorReport", Findings: []Finding{}}
	for _, c := range Checks() {
		if f.Pre && c.NeedsTunnel || c.NeedsPeer != (f.Peer != nil) {
			continue
		}
		rec := recorder{check: c}
		c.evaluate(f, &rec)
		r.Findings = append(r.Findings, rec.findings...)
	}
	r.count()
	return r
}

// recorder collects the findings of one check.
type recorder struct {
	check    Check
	findings []Finding
}

// add appends a finding. subject is the device, tunnel or peer of a check that has several, else "".
func (r *recorder) add(subject string, status Status, found, fix string, changes []Change) {
	if fix == "" {
		fix = commands(changes)
	}
	r.findings = append(r.findings, Finding{
		Check: r.check.ID, Section: r.check.Section, Subject: subject, Status: status, Found: found, Why: r.check.Why,
		Fix: fix, Changes: changes,
	})
}

func (r *recorder) ok(subject, format string, args ...any) {
	r.add(subject, OK, fmt.Sprintf(format, args...), "", nil)
}

func (r *recorder) unknown(subject string, err error) {
	r.add(subject, Unknown, fmt.Sprintf("unknown: %v", err), "", nil)
}

func (r *recorder) warn(subject, found, fix string, changes ...Change) {
	r.add(subject, Warning, found, fix, changes)
}

func (r *recorder) fail(subject, found, fix string, changes ...Change) {
	r.add(subject, Failed, found, fix, changes)
}
