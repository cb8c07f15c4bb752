// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/lab/bench"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor"
	"github.com/ropewalk/ropewalk/pkg/observe/portplan"
	"github.com/ropewalk/ropewalk/pkg/observe/top"
	"github.com/ropewalk/ropewalk/test/schema"
)

const schemas = "../../docs/schemas"

// printed returns the output of a command that may find faults.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	root := newRootCmd()
	root.SetArgs(args)
	root.SetOut(&out)
	if err := root.Execute(); err != nil && out.Len() == 0 {
		t.Fatal(err)
	}
	return out.String()
}

func TestSchemasMatchDocumentsOfCommands(t *testing.T) {
	must := func(text string, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	var device bytes.Buffer
	if err := (&flowsFlags{json: true}).printDevice(&device, deviceFlowsAfter(1), deviceFlowsAfter(3)); err != nil {
		t.Fatal(err)
	}
	schema.Check(t, schemas, "Version", buildInfo{}, printed(t, "version", "--json"))
	schema.Check(t, schemas, "DoctorReport", doctor.Report{}, printed(t, "doctor", "--pre", "--json"))
	schema.Check(t, schemas, "Flows", flowsDocument{}, must(runFlows(context.Background(), flowsFlags{json: true}, serveFlows(t, growingFlows()))))
	schema.Check(t, schemas, "SpreadFlows", deviceFlowsDocument{}, device.String())
	schema.Check(t, schemas, "SpreadPlan", struct {
		header
		portplan.Report
	}{}, must(spreadPlan(t, "--rounds", "3", "--json")))
	schema.Check(t, schemas, "Top", struct {
		header
		top.Frame
	}{}, must(runTop(t, topFlags{json: true}, serveTop(t, "wg0", &topHandler{}))))
	schema.Check(t, schemas, "SpreadStatus", spreadStatus{})
	schema.Check(t, schemas, "BenchReport", struct {
		header
		bench.Report
	}{})
}
