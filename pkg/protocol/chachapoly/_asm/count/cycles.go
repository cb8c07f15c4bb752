// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// kernels are the functions whose passes llvm-mca gets: inner is how often the loop of rounds runs in a pass.
var kernels = []struct {
	name         string
	inner, bytes int
}{
	{"xorNEON", 5, 256},
	{"macBlocks", 0, 16},
	{"xorMACNEON", 5, 256},
	{"xorMAC8NEON", 10, 512},
	{"xorMACSVE2", 5, 256},
	{"xorMAC8SVE2", 10, 512},
}

var cores = []string{"neoverse-n1", "neoverse-v1", "neoverse-n2", "neoverse-v2"}

func cycles(test string) error {
	fmt.Printf("| kernel | %s |\n|%s\n", strings.Join(cores, " | "), strings.Repeat(" --- |", len(cores)+1))
	for _, k := range kernels {
		pass, err := passOf(test, k.name, k.inner)
		if err != nil {
			return err
		}
		fmt.Printf("| %s |", k.name)
		for _, core := range cores {
			if strings.Contains(k.name, "SVE2") && !slices.Contains([]string{"neoverse-n2", "neoverse-v2"}, core) {
				fmt.Print(" - |")
				continue
			}
			n, err := cyclesOf(pass, core)
			if err != nil {
				return err
			}
			fmt.Printf(" %.2f |", n/float64(k.bytes))
		}
		fmt.Println()
	}
	return nil
}

// line is an instruction and its address.
type line struct{ address, text string }

var disassembled = regexp.MustCompile(`(?m)^\s*([0-9a-f]+):\s+(\S.*?)\s*(?:<.*>)?$`)

// passOf returns the instructions of the outer loop, with the inner one repeated. The loops end with the function's CBNZ
// instructions, the inner one first.
func passOf(test, function string, inner int) ([]string, error) {
	symbol := "github.com/ropewalk/ropewalk/pkg/protocol/chachapoly." + function + ".abi0"
	out, err := exec.Command("llvm-objdump-19", "-d", "--no-show-raw-insn", "--mattr=+sve2",
		"--disassemble-symbols="+symbol, test).Output()
	if err != nil {
		return nil, fmt.Errorf("disassembling %s: %w", function, err)
	}
	var list []line
	for _, m := range disassembled.FindAllStringSubmatch(string(out), -1) {
		list = append(list, line{m[1], m[2]})
	}
	var from, to []int
	for i, l := range list {
		if target, ok := branch(l.text); ok {
			from = append(from, slices.IndexFunc(list, func(l line) bool { return l.address == target }))
			to = append(to, i)
		}
	}
	last := len(from) - 1
	if last < 0 || slices.Contains(from, -1) || last == 0 && inner > 0 {
		return nil, fmt.Errorf("disassembling %s: its loops were not found", function)
	}
	if inner == 0 {
		return texts(list[from[last]:to[last]]), nil
	}
	pass := texts(list[from[last]:from[0]])
	for range inner {
		pass = append(pass, texts(list[from[0]:to[0]])...)
	}
	return append(pass, texts(list[to[0]+1:to[last]])...), nil
}

func branch(text string) (target string, ok bool) {
	if !strings.HasPrefix(text, "cbnz") {
		return "", false
	}
	_, target, ok = strings.Cut(text, "0x")
	return target, ok
}

func texts(list []line) (out []string) {
	for _, l := range list {
		out = append(out, l.text)
	}
	return out
}

var total = regexp.MustCompile(`Total Cycles:\s+(\d+)`)

// cyclesOf is the model's time of a pass among others.
func cyclesOf(pass []string, core string) (float64, error) {
	const passes = 20
	c := exec.Command("llvm-mca-19", "-mtriple=aarch64", "-mcpu="+core, fmt.Sprint("-iterations=", passes))
	c.Stdin = strings.NewReader(strings.Join(pass, "\n") + "\n")
	var problem bytes.Buffer
	c.Stderr = &problem
	out, err := c.Output()
	if err != nil {
		return 0, fmt.Errorf("estimating cycles on %s: %w: %s", core, err, problem.String())
	}
	found := total.FindSubmatch(out)
	if found == nil {
		return 0, fmt.Errorf("estimating cycles on %s: llvm-mca printed no total", core)
	}
	n, err := strconv.Atoi(string(found[1]))
	return float64(n) / passes, err
}
