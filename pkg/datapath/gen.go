// SPDX-License-Identifier: Apache-2.0

//go:build ignore

// gen writes events.go from the C enum: gen HEADER OUTPUT.
package main

import (
	"bytes"
	"fmt"
	"go/format"
	"log"
	"os"
	"regexp"
	"strings"
)

var line = regexp.MustCompile(`(?m)^\s*EVENT_([A-Z0-9_]+),\s*// (.+)$`)

func main() {
	src, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	rows := line.FindAllStringSubmatch(string(src), -1)
	if len(rows) == 0 {
		log.Fatalf("no events in %s", os.Args[1])
	}
	out, err := format.Source(render(rows))
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[2], out, 0o644); err != nil {
		log.Fatal(err)
	}
}

func render(rows [][]string) []byte {
	var b bytes.Buffer
	b.WriteString("// Code generated from bpf/include/spread_events.h. DO NOT EDIT.\n\npackage datapath\n\n// The events, in the order of the C enum.\nconst (\n")
	for i, r := range rows {
		kind := ""
		if i == 0 {
			kind = " Event = iota"
		}
		fmt.Fprintf(&b, "\tEvent%s%s // %s\n", camel(r[1]), kind, r[2])
	}
	b.WriteString("\n\t// EventCount is the number of events.\n\tEventCount = iota\n)\n\nvar eventNames = [EventCount]string{\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "\t%q,\n", strings.ToLower(r[1]))
	}
	b.WriteString("}\n\nvar eventHelps = [EventCount]string{\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "\t%q,\n", r[2])
	}
	b.WriteString("}\n")
	return b.Bytes()
}

func camel(s string) string {
	var b strings.Builder
	for _, w := range strings.Split(s, "_") {
		b.WriteString(w[:1] + strings.ToLower(w[1:]))
	}
	return b.String()
}
