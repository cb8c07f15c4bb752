// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/ropewalk/ropewalk/test/program"
)

var ropewalk = program.Ropewalk()

func TestMain(m *testing.M) {
	flag.Parse()
	if err := checkOnly(*only); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(program.Main(m, ropewalk))
}

// checkOnly fails if -only names no test: all would be skipped, and the run would pass.
func checkOnly(name string) error {
	switch name {
	case "", "memory", "xdp", "churn":
		return nil
	}
	return fmt.Errorf("-only %s: want memory, xdp or churn", name)
}

func TestUnknownTestIsRefused(t *testing.T) {
	for name, ok := range map[string]bool{"": true, "memory": true, "xdp": true, "churn": true, "chrun": false, "churn,xdp": false} {
		if err := checkOnly(name); (err == nil) != ok {
			t.Errorf("-only %q: got error %v, want none: %t", name, err, ok)
		}
	}
}
