// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"testing"

	"github.com/ropewalk/ropewalk/test/bench/remote"
)

func TestNamesTheProcessor(t *testing.T) {
	for cpuinfo, want := range map[string]string{
		"processor\t: 0\nmodel\t\t: 143\nmodel name\t: Example(R)  CPU\t@ 2.00GHz\nmodel name\t: other\n": "Example(R) CPU @ 2.00GHz",
		"processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n":                                    runtime.GOARCH,
		"": runtime.GOARCH,
	} {
		if got := remote.Processor(cpuinfo); got != want {
			t.Errorf("%q: got %q, want %q", cpuinfo, got, want)
		}
	}
}

func TestKnowsTheMachine(t *testing.T) {
	if m := thisMachine(); m.Kernel == "unknown" || m.CPU == "unknown" || m.Cores < 1 || m.Cipher == "" || m.Group == "" {
		t.Errorf("got %+v", m)
	}
}

func TestHeadingNamesCipherAndGroup(t *testing.T) {
	m := machine{Kernel: "6.18.5", CPU: "Example", Cores: 2}
	if got, want := m.String(), "Linux 6.18.5, 2 × Example"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	m.Cipher, m.Group = "avx2", "one autogroup with nice 0"
	if got, want := m.String(), "Linux 6.18.5, 2 × Example, cipher avx2, CPU time shared by one autogroup with nice 0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
