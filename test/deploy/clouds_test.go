// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var clouds = []string{"aws", "google", "hetzner"}

// TestCloudsReferToWhatTheyDeclare finds a variable, a resource or a file that a configuration names and does not have. Only the providers,
// which are on the internet, know the arguments of a resource.
func TestCloudsReferToWhatTheyDeclare(t *testing.T) {
	declared := regexp.MustCompile(`(?m)^(?:(variable|output) "(\w+)"|(?:resource|data) "(\w+)" "(\w+)")`)
	named := regexp.MustCompile(`\b(var|(?:aws|google|hcloud)_\w+)\.(\w+)`)
	for _, cloud := range clouds {
		dir := "deploy/bench/" + cloud
		text := read(t, dir+"/main.tf") + read(t, dir+"/variables.tf")
		has := map[string]bool{}
		for _, m := range declared.FindAllStringSubmatch(text, -1) {
			has[strings.Replace(m[1], "variable", "var", 1)+m[3]+"."+m[2]+m[4]] = true
		}
		for _, output := range []string{"public", "private", "mtu"} {
			if !has["output."+output] {
				t.Errorf("%s has no output %s", dir, output)
			}
		}
		used := named.FindAllString(text, -1)
		if len(used) < 8 {
			t.Fatalf("%s names only %q", dir, used)
		}
		for _, name := range used {
			if !has[name] {
				t.Errorf("%s names %s, which it does not declare", dir, name)
			}
		}
		if !strings.Contains(text, "user_data") || !strings.Contains(text, "[var.from]") {
			t.Errorf("%s does not limit ssh to the caller, or has no user data", dir)
		}
	}
	for _, m := range regexp.MustCompile(`\$\{path\.module\}/([^"]+)`).FindAllStringSubmatch(read(t, "deploy/bench/variables.tf"), -1) {
		read(t, filepath.Join("deploy/bench/aws", m[1]))
	}
}

func TestInstancesOfCloudsPowerThemselvesOff(t *testing.T) {
	text := strings.NewReplacer("${public_key}", "ssh-ed25519 AAAA x", "${hours}", "3").Replace(read(t, "deploy/bench/cloud-init.yaml"))
	var data struct {
		Keys  []string                         `json:"ssh_authorized_keys"`
		Files []struct{ Path, Content string } `json:"write_files"`
		Run   [][]string                       `json:"runcmd"`
	}
	parse(t, text, &data)
	if !strings.HasPrefix(text, "#cloud-config\n") || strings.Contains(text, "${") || !slices.Equal(data.Keys, []string{"ssh-ed25519 AAAA x"}) {
		t.Errorf("unusable:\n%s", text)
	}
	if len(data.Files) != 2 || len(data.Run) != 1 || !slices.Equal(data.Run[0], []string{"systemctl", "enable", "--now", "bench-end.timer"}) {
		t.Fatalf("got %+v", data)
	}
	dir := t.TempDir()
	for i, want := range []string{"ExecStart=/usr/bin/systemctl poweroff", "OnBootSec=3h"} {
		f := data.Files[i]
		if !strings.Contains(f.Content, want) {
			t.Errorf("%s lacks %q", f.Path, want)
		}
		write(t, filepath.Join(dir, filepath.Base(f.Path)), f.Content, 0o644)
	}
	if out, err := exec.Command("systemd-analyze", "verify", filepath.Join(dir, "bench-end.timer")).CombinedOutput(); len(out) > 0 && bytes.Contains(out, []byte("bench-end")) {
		t.Errorf("systemd-analyze: %v\n%s", err, out)
	}
	for cloud, want := range map[string]string{"aws": `instance_initiated_shutdown_behavior = "terminate"`, "google": `instance_termination_action = "DELETE"`} {
		if !strings.Contains(read(t, "deploy/bench/"+cloud+"/main.tf"), want) {
			t.Errorf("%s lacks %s", cloud, want)
		}
	}
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// fakeCloud stands in for OpenTofu, ssh and make, by its name. It logs its commands, and fails in the one named FAIL.
const fakeCloud = `#!/bin/bash
case ${0##*/} in
tofu) command=$2 ;;
*) command=${0##*/} ;;
esac
echo "$command" >>"$LOG"
[ "$command" != "$FAIL" ] || exit 1
case $command in
apply) [[ $3 == -state=* ]] && : >"${3#-state=}" ;;
output) case $5 in public) echo 192.0.2.1 192.0.2.2 ;; private) echo 10.0.0.1,10.0.0.2 ;; mtu) echo 1280 ;; esac ;;
make) echo "$*" >>"$LOG" ;;
esac
`

func TestPairOfCloudIsDeletedAfterEveryRun(t *testing.T) {
	for _, c := range []struct {
		name, fail, answer, hours, want string
		fails                           bool
		cloud                           string
	}{
		{name: "whole", answer: "yes", hours: "2", want: "init apply output output output ssh ssh make destroy"},
		{name: "failed start", fail: "apply", answer: "yes", hours: "2", want: "init apply destroy", fails: true},
		{name: "failed run", fail: "make", answer: "yes", hours: "2", want: "init apply output output output ssh ssh make destroy", fails: true},
		{name: "failed end", fail: "destroy", answer: "yes", hours: "2", want: "init apply output output output ssh ssh make destroy destroy destroy", fails: true},
		{name: "no answer", answer: "", hours: "2", fails: true},
		{name: "too long", answer: "yes", hours: "24", fails: true},
		{name: "no such cloud", answer: "yes", hours: "2", cloud: "moon", fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			tree, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
			if out, err := exec.Command("cp", "-r", root+"/deploy", tree).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			bin := filepath.Join(tree, "bin")
			if err := os.Mkdir(bin, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"tofu", "ssh", "make"} {
				write(t, filepath.Join(bin, name), fakeCloud, 0o755)
			}
			if c.cloud == "" {
				c.cloud = "aws"
			}
			cmd := exec.Command(filepath.Join(tree, "deploy/bench/run.sh"), c.cloud, "c7g.16xlarge", "192.0.2.7/32", c.hours)
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "LOG="+log, "FAIL="+c.fail, "RETRY=0", "ARGS=--rounds 1")
			cmd.Stdin = strings.NewReader(c.answer + "\n")
			out, err := cmd.CombinedOutput()
			if (err != nil) != c.fails {
				t.Errorf("error %v\n%s", err, out)
			}
			ran, _ := os.ReadFile(log) // none without a command
			commands := regexp.MustCompile(`(?m)^\w+$`).FindAllString(string(ran), -1)
			if got := strings.Join(commands, " "); got != c.want {
				t.Errorf("ran %q, want %q\n%s", got, c.want, out)
			}
			if c.want != "" && !strings.Contains(string(out), "2 ×  2.32 USD/h, for 2 h at most:   9.28 USD") {
				t.Errorf("no price before:\n%s", out)
			}
			_, left := os.Stat(filepath.Join(tree, "build/clouds/aws/tfstate"))
			if kept := left == nil; kept != (c.fail == "destroy") {
				t.Errorf("the state is kept: %v", kept)
			}
			if c.fail == "destroy" && !bytes.Contains(out, []byte("make bench-clouds-end CLOUD=aws")) {
				t.Errorf("no word of the pair that is left:\n%s", out)
			}
			if want := "A=192.0.2.1 B=192.0.2.2 HOSTS_ARCH=arm64 ARGS=--ssh 'ssh -F " + tree; c.name == "whole" && !strings.Contains(string(ran), want) {
				t.Errorf("got %q, want %q", ran, want)
			}
		})
	}
}
