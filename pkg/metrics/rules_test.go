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

// rulesDir is where the recording and alerting rules are, and their own tests.
const rulesDir = "../../deploy/prometheus"

func TestRulesPassTheirOwnTests(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("needs promtool, of Debian's package prometheus (make deps-test installs it)")
	}
	for _, args := range [][]string{{"check", "rules", "rules.yml"}, {"test", "rules", "rules_test.yml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = rulesDir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// recorded finds the names that recording rules make.
var recorded = regexp.MustCompile(`interface:ropewalk_[a-z_:0-9]+`)

func TestRulesAskForMetricsThatAreThere(t *testing.T) {
	for _, name := range []string{"rules.yml", "rules_test.yml"} {
		text, err := os.ReadFile(filepath.Join(rulesDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if unknown := unknownMetrics(recorded.ReplaceAllString(string(text), "")); unknown != nil {
			t.Errorf("%s: no metric is called %v", name, unknown)
		}
		for _, record := range recorded.FindAllString(string(text), -1) {
			if !strings.Contains(string(text), "record: "+record+"\n") {
				t.Errorf("%s: nothing records %s", name, record)
			}
		}
	}
}

func TestEveryAlertIsTested(t *testing.T) {
	rules, err := os.ReadFile(filepath.Join(rulesDir, "rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(filepath.Join(rulesDir, "rules_test.yml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, alert := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
		// Somewhere it fires.
		if !regexp.MustCompile(`alertname: ` + alert[1] + `\n\s+exp_alerts:`).Match(tests) {
			t.Errorf("no test expects %s", alert[1])
		}
	}
}
