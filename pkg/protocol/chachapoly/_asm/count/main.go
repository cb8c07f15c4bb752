// SPDX-License-Identifier: Apache-2.0

// The program counts the arm64 instructions per byte of each implementation, with QEMU's user
// emulation and a plugin (`make count-arm64`). Or it estimates the cycles per byte of each kernel,
// with LLVM's models of cores (`make cycles-arm64`).
package main

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

func main() {
	dir, err := os.MkdirTemp("", "count")
	if err != nil {
		log.Fatal(err)
	}
	err = run(filepath.Join(dir, "chachapoly.test"), filepath.Join(dir, "count.so"))
	_ = os.RemoveAll(dir)
	if err != nil {
		log.Fatal(err)
	}
}

func run(test, plugin string) error {
	if err := command([]string{"GOARCH=arm64"}, "go", "test", "-C", "..", "-c", "-o", test, "."); err != nil {
		return err
	}
	if len(os.Args) > 1 && os.Args[1] == "cycles" {
		return cycles(test)
	}
	if err := command(nil, "cc", "-shared", "-fPIC", "-O2", "-o", plugin, "count/plugin/count.c"); err != nil {
		return err
	}
	return count(test, plugin)
}

func count(test, plugin string) error {
	fmt.Println("| messages | generic | neon | sve2 |\n| --- | --- | --- | --- |")
	for _, set := range []struct{ count, size int }{{32, 1440}, {1, 1440}, {32, 64}, {1, 64}} {
		for _, op := range []string{"seal", "open"} {
			fmt.Printf("| %d × %d B, %s |", set.count, set.size, op)
			for _, implementation := range []string{"generic", "neon", "sve2"} {
				name := fmt.Sprintf("%s/%dx%d/%s", implementation, set.count, set.size, op)
				n, err := perByte(test, plugin, name, set.count*set.size)
				if err != nil {
					return err
				}
				fmt.Printf(" %.2f |", n)
			}
			fmt.Println()
		}
	}
	return nil
}

// perByte takes the difference of two runs, which start and end alike.
func perByte(test, plugin, name string, bytes int) (float64, error) {
	const fewer = 100
	times := max(200, 2_000_000/bytes)
	least, err := instructions(test, plugin, name, fewer)
	if err != nil {
		return 0, err
	}
	most, err := instructions(test, plugin, name, fewer+times)
	return float64(most-least) / float64(times*bytes), err
}

var counted = regexp.MustCompile(`instructions: (\d+)`)

func instructions(test, plugin, name string, times int) (int, error) {
	c := exec.Command("qemu-aarch64", "-plugin", plugin, test,
		"-test.run", "^$", "-test.bench", "^BenchmarkEach/"+name+"$", "-test.benchtime", fmt.Sprint(times, "x"))
	c.Env = append(os.Environ(), "GOGC=off", "GOMAXPROCS=1")
	out, err := c.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("counting instructions of %s: %w: %s", name, err, out)
	}
	found := counted.FindSubmatch(out)
	if found == nil || !bytes.Contains(out, []byte("ns/op")) {
		return 0, fmt.Errorf("counting instructions of %s: the benchmark did not run, or the plugin printed no count: %s", name, out)
	}
	return strconv.Atoi(string(found[1]))
}

func command(env []string, name string, args ...string) error {
	c := exec.Command(name, args...)
	c.Env, c.Stderr = append(os.Environ(), env...), os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("running %s: %w", name, err)
	}
	return nil
}
