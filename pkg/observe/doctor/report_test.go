// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
	"github.com/ropewalk/ropewalk/test/golden"
)

// mixed is a host with findings of every status.
func mixed() Report {
	f := healthy()
	f.Sysctls[facts.Forward4] = facts.Known("1")
	f.Sysctls[facts.Forward6] = facts.Known("1")
	f.NICs[0].RSS.Value.UDP4, f.NICs[0].RSS.Value.UDP6 = 1, 1
	f.NICs[0].IRQs.Err = errHidden
	f.Tunnels[0].Stats.Value.TUN.USO = false
	return Examine(f)
}

func TestTextReportMatchesGolden(t *testing.T) {
	r := mixed()
	var b bytes.Buffer
	if err := r.WriteText(&b, Style{}); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/report.txt", b.Bytes())
}

func TestJSONReportMatchesGolden(t *testing.T) {
	r := mixed()
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/report.json", b.Bytes())
	var back Report
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, back); diff != "" {
		t.Error(diff)
	}
}

func TestColorIsOptional(t *testing.T) {
	r := mixed()
	var plain, colored bytes.Buffer
	if err := r.WriteText(&plain, Style{Verbose: true}); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteText(&colored, Style{Verbose: true, Color: true}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(plain.String(), "\x1b") || !strings.Contains(colored.String(), "\x1b[31;1m✗\x1b[0m") {
		t.Errorf("plain %q, coloured %q", plain.String(), colored.String())
	}
	if n := strings.Count(plain.String(), "why:"); n != len(r.Findings) {
		t.Errorf("%d reasons for %d findings", n, len(r.Findings))
	}
}

func TestDeviceNamesAreEscaped(t *testing.T) {
	f := healthy()
	f.NICs[0].Name = "a\x1b[2J;b"
	f.NICs[0].Features.Value[featureGRO] = hostnet.Feature{}
	r := Examine(f)
	var b bytes.Buffer
	if err := r.WriteText(&b, Style{}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "\x1b") || !strings.Contains(b.String(), "ethtool -K 'a?[2J;b' rx-gro on") {
		t.Error(b.String())
	}
}

func TestShellQuoting(t *testing.T) {
	for word, want := range map[string]string{
		"eth0.5": "eth0.5", "net.core.x=1": "net.core.x=1", "": "''", "a b": "'a b'", "a'b": `'a'\''b'`, "$(id)": "'$(id)'", "é": "'é'",
	} {
		if got := quote(word); got != want {
			t.Errorf("%q: got %s, want %s", word, got, want)
		}
	}
}

func TestSysctlNameOfDeviceWithDots(t *testing.T) {
	if got := sysctlName(facts.RPFilter("eth0.5")); got != "net.ipv4.conf.eth0/5.rp_filter" {
		t.Error(got)
	}
}

const (
	docPath  = "../../../docs/doctor.md"
	docBegin = "<!-- checks: written by go test ./pkg/observe/doctor -update -->"
	docEnd   = "<!-- end of checks -->"
)

func TestDocumentationListsChecks(t *testing.T) {
	var b strings.Builder
	b.WriteString("| check | looks at | why it matters | `--fix` |\n| --- | --- | --- | --- |\n")
	var section Section
	for _, c := range Checks() {
		if c.Section != section {
			section = c.Section
			b.WriteString("| **" + string(section) + "** | | | |\n")
		}
		fix := ""
		if c.Fixable {
			fix = "yes"
		}
		b.WriteString("| `" + c.ID + "` | " + c.Description + " | " + c.Why + " | " + fix + " |\n")
	}
	golden.CheckSection(t, docPath, docBegin, docEnd, b.String())
}
