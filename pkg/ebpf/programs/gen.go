// SPDX-License-Identifier: Apache-2.0

//go:build ignore

// gen writes Go constants, names and help texts for C enums: gen {GO_TYPE C_PREFIX HEADER}... OUTPUT
package main

import (
	"bytes"
	"fmt"
	"go/format"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	var b bytes.Buffer
	b.WriteString("// Code generated from bpf/include. DO NOT EDIT.\n\npackage programs\n")
	args := os.Args[1:]
	for ; len(args) >= 3; args = args[3:] {
		src, err := os.ReadFile(args[2])
		if err != nil {
			log.Fatal(err)
		}
		line := regexp.MustCompile(`(?m)^\s*` + args[1] + `_([A-Z0-9_]+),\s*// (.+)$`)
		rows := line.FindAllStringSubmatch(string(src), -1)
		if len(rows) == 0 {
			log.Fatalf("no events in %s", args[2])
		}
		render(&b, args[0], filepath.Base(args[2]), rows, args[0] == "Event")
	}
	out, err := format.Source(b.Bytes())
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(args[0], out, 0o644); err != nil {
		log.Fatal(err)
	}
}

// render writes the constants and names of one enum, and with helps the help texts. The constants' prefix is the type's name without a
// trailing Event.
func render(b *bytes.Buffer, kind, header string, rows [][]string, helps bool) {
	prefix, list := kind, strings.ToLower(kind[:1])+kind[1:]
	if short := strings.TrimSuffix(kind, "Event"); short != "" {
		prefix = short
	}
	fmt.Fprintf(b, "\n// The constants of %s, in the order of the C enum.\nconst (\n", header)
	for i, r := range rows {
		typed := ""
		if i == 0 {
			typed = " " + kind + " = iota"
		}
		fmt.Fprintf(b, "\t%s%s%s // %s\n", prefix, camel(r[1]), typed, r[2])
	}
	fmt.Fprintf(b, "\n\t// %sCount is the number of constants.\n\t%sCount = iota\n)\n\nvar %sNames = [%sCount]string{\n", kind, kind, list, kind)
	for _, r := range rows {
		fmt.Fprintf(b, "\t%q,\n", strings.ToLower(r[1]))
	}
	b.WriteString("}\n")
	if !helps {
		return
	}
	fmt.Fprintf(b, "\nvar %sHelps = [%sCount]string{\n", list, kind)
	for _, r := range rows {
		fmt.Fprintf(b, "\t%q,\n", r[2])
	}
	b.WriteString("}\n")
}

func camel(s string) string {
	var b strings.Builder
	for _, w := range strings.Split(s, "_") {
		b.WriteString(w[:1] + strings.ToLower(w[1:]))
	}
	return b.String()
}
