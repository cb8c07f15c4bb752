// SPDX-License-Identifier: Apache-2.0

//go:build ignore

// gen writes reasons.go from the C enum: gen HEADER OUTPUT.
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

var line = regexp.MustCompile(`(?m)^\s*DROP_([A-Z0-9_]+),\s*// (.+)$`)

// initialisms maps the words of C names that stay in capitals in Go names.
var initialisms = map[string]string{"TX": "TX", "RX": "RX", "HS": "HS", "TUN": "TUN", "MAC1": "MAC1", "XDP": "XDP"}

func main() {
	src, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	rows := line.FindAllStringSubmatch(string(src), -1)
	if len(rows) == 0 {
		log.Fatalf("no drop reasons in %s", os.Args[1])
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
	b.WriteString("// Code generated from bpf/include/drop_reasons.h. DO NOT EDIT.\n\npackage drop\n\n// The reasons, in the order of the C enum.\nconst (\n")
	for i, r := range rows {
		kind := ""
		if i == 0 {
			kind = " Reason = iota"
		}
		fmt.Fprintf(&b, "\t%s%s // %s\n", camel(r[1]), kind, r[2])
	}
	b.WriteString("\n\t// Count is the number of reasons, None included.\n\tCount = iota\n)\n\nvar names = [Count]string{\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "\t%q,\n", strings.ToLower(r[1]))
	}
	b.WriteString("}\n\nvar helps = [Count]string{\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "\t%q,\n", r[2])
	}
	b.WriteString("}\n")
	return b.Bytes()
}

func camel(s string) string {
	var b strings.Builder
	for _, w := range strings.Split(s, "_") {
		if v, ok := initialisms[w]; ok {
			b.WriteString(v)
			continue
		}
		b.WriteString(w[:1] + strings.ToLower(w[1:]))
	}
	return b.String()
}
