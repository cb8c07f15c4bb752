// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// rulesDir holds the recording and alerting rules, and their promtool tests.
const rulesDir = "../../../deploy/prometheus"

// promtool returns a command of promtool, or skips the test.
func promtool(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("needs promtool, of Debian's package prometheus (make deps-test installs it)")
	}
	return exec.Command(path, args...)
}

func TestRulesPassPromtool(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "rules.yml"}, {"test", "rules", "rules_test.yml"}} {
		cmd := promtool(t, args...)
		cmd.Dir = rulesDir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// recorded matches the names of recorded series.
var recorded = regexp.MustCompile(`interface:ropewalk_[a-z_:0-9]+`)

func TestRulesQueryExistingMetrics(t *testing.T) {
	for _, name := range []string{"rules.yml", "rules_test.yml"} {
		text, err := os.ReadFile(filepath.Join(rulesDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if unknown := unknownMetrics(recorded.ReplaceAllString(string(text), "")); unknown != nil {
			t.Errorf("%s: got unknown metrics %v, want nil", name, unknown)
		}
		for _, record := range recorded.FindAllString(string(text), -1) {
			if !strings.Contains(string(text), "record: "+record+"\n") {
				t.Errorf("%s: no rule records %s", name, record)
			}
		}
	}
}

func TestEveryAlertHasPromtoolTest(t *testing.T) {
	rules, err := os.ReadFile(filepath.Join(rulesDir, "rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(filepath.Join(rulesDir, "rules_test.yml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, alert := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
		if !regexp.MustCompile(`alertname: ` + alert[1] + `\n\s+exp_alerts:`).Match(tests) {
			t.Errorf("no promtool test expects alert %s to fire", alert[1])
		}
	}
}
