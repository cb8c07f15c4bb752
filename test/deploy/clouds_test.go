// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
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
		if !strings.Contains(text, "user_data") {
			t.Errorf("%s has no user data", dir)
		}
		if !regexp.MustCompile(`version = "\d+\.\d+\.\d+"`).MatchString(text) {
			t.Errorf("%s has no exact version of its provider", dir)
		}
	}
	for _, m := range regexp.MustCompile(`\$\{path\.module\}/([^"]+)`).FindAllStringSubmatch(read(t, "deploy/bench/variables.tf"), -1) {
		read(t, filepath.Join("deploy/bench/aws", m[1]))
	}
}

var (
	rules   = regexp.MustCompile(`(?ms)^  (?:ingress|rule) \{$.*?^  \}$|^resource "google_compute_firewall" "\w+" \{$.*?^\}$`)
	egress  = regexp.MustCompile(`(?ms)^  egress \{$.*?^  \}$`)
	sources = regexp.MustCompile(`(?m)^ *((?:\w*cidr\w*|source_\w+|self|security_groups|prefix_list_ids) += .+)$`)
	allowed = regexp.MustCompile(`^(cidr_blocks|source_ranges|source_ips) += \[(var\.from|google_compute_subnetwork\.pair\.ip_cidr_range)\]$|^self += true$`)
)

// open returns the rules of a configuration that let in anything but ssh of the caller, and the other host.
func open(text string) []string {
	var bad []string
	found := rules.FindAllString(text, -1)
	for _, rule := range found {
		from := sources.FindAllStringSubmatch(rule, -1)
		if len(from) != 1 || !allowed.MatchString(from[0][1]) || strings.Contains(from[0][1], "var.from") && !regexp.MustCompile(`"22"|= 22\n`).MatchString(rule) {
			bad = append(bad, rule)
		}
	}
	for _, m := range sources.FindAllStringSubmatch(egress.ReplaceAllString(rules.ReplaceAllString(text, ""), ""), -1) {
		if !regexp.MustCompile(`^ip_cidr_range += "10\.77\.0\.0/24"$`).MatchString(m[1]) {
			bad = append(bad, m[1])
		}
	}
	if len(found) == 0 {
		bad = append(bad, "no rule")
	}
	return bad
}

func TestCloudsLetInOnlyTheCaller(t *testing.T) {
	for cloud, second := range map[string]string{
		"aws":     "  ingress {\n    protocol    = \"-1\"\n    cidr_blocks = [\"0.0.0.0/0\"]\n  }\n",
		"google":  "resource \"google_compute_firewall\" \"all\" {\n  network = google_compute_network.pair.id\n}\n", // without a source: all
		"hetzner": "  rule {\n    port       = \"22\"\n    source_ips = [var.from, \"::/0\"]\n  }\n",
	} {
		text := read(t, "deploy/bench/"+cloud+"/main.tf")
		if bad := open(text); len(bad) > 0 {
			t.Errorf("%s: %q", cloud, bad)
		}
		for _, more := range []string{second, "resource \"x\" \"y\" {\n  cidr_ipv4 = \"0.0.0.0/0\"\n}\n"} {
			if len(open(text+more)) == 0 {
				t.Errorf("%s may have\n%s", cloud, more)
			}
		}
	}
}

// TestCallerIsAnIPv4Prefix holds the regular expressions of OpenTofu's variable and of the script to the same prefixes.
func TestCallerIsAnIPv4Prefix(t *testing.T) {
	found := regexp.MustCompile(`regex\("([^"]+)", var\.from\)`).FindStringSubmatch(read(t, "deploy/bench/variables.tf"))
	if found == nil {
		t.Fatal("variables.tf has no regular expression for from")
	}
	for from, good := range map[string]bool{
		"192.0.2.7/32": true, "255.249.99.0/24": true,
		"": false, "192.0.2.7": false, "192.0.2.7/23": false, "192.0.2.7/33": false, "256.0.2.7/32": false, "2001:db8::1/128": false, "192.0.2.7/32\n": false,
	} {
		if got := regexp.MustCompile(found[1]).MatchString(from); got != good {
			t.Errorf("variables.tf takes %q: %v", from, got)
		}
		c := newCloudRun(t, "aws")
		out, err := c.command("no\n", "aws", "c7g.16xlarge", from, "2").CombinedOutput()
		if priced := bytes.Contains(out, []byte("2.32 USD/h")); priced != good || err == nil || !good && !bytes.Contains(out, []byte("FROM is ")) {
			t.Errorf("run.sh with %q: %v\n%s", from, err, out)
		}
	}
}

func TestInstancesOfCloudsPowerThemselvesOff(t *testing.T) {
	text := strings.NewReplacer("${public_key}", "ssh-ed25519 AAAA x", "${end}", "2026-12-01 03:04:05 UTC").Replace(read(t, "deploy/bench/cloud-init.yaml"))
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
	for i, want := range []string{"ExecStart=/usr/bin/systemctl poweroff", "OnCalendar=2026-12-01 03:04:05 UTC\nPersistent=true"} {
		f := data.Files[i]
		if !strings.Contains(f.Content, want) {
			t.Errorf("%s lacks %q", f.Path, want)
		}
		write(t, filepath.Join(dir, filepath.Base(f.Path)), f.Content, 0o644)
	}
	if !strings.Contains(read(t, "deploy/bench/variables.tf"), `"YYYY-MM-DD hh:mm:ss 'UTC'", timeadd(plantimestamp(), "${var.hours}h")`) {
		t.Error("the end is not HOURS after the start")
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze, which reads the timer, is missing")
	}
	if out, err := exec.Command("systemd-analyze", "verify", filepath.Join(dir, "bench-end.timer")).CombinedOutput(); err != nil || bytes.Contains(out, []byte("bench-end")) {
		t.Errorf("systemd-analyze: %v\n%s", err, out)
	}
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// fakeCloud stands in for OpenTofu, ssh, make, and the commands that ask a provider, by its name. It logs its commands, and fails in the
// one named FAIL. HANG names one that waits for the file LOG.go, and says if a signal reached it. The provider lists LEFT after destroy.
const fakeCloud = `#!/bin/bash
case ${0##*/} in
tofu) command=$2 ;;
*) command=${0##*/} ;;
esac
if [ "$command" = "$HANG" ]; then
  trap 'echo "a signal reached $command" >>"$LOG"; exit 1' INT TERM HUP QUIT
fi
echo "$command" >>"$LOG"
[ "$command" != "$FAIL" ] || exit 1
for ((i = 0; i < 1200; i++)); do
  [ "$command" = "$HANG" ] && [ ! -e "$LOG.go" ] || break
  sleep 0.05
done
[ $i != 1200 ] || echo "$command was not ended" >>"$LOG"
[[ $command != apply && $command != destroy ]] || echo "$command ends" || exit 1
left=$(grep -q destroy "$LOG" && echo "$LEFT")
case $command in
apply) [[ $3 == -state=* ]] && : >"${3#-state=}" ;;
output) case $5 in public) echo 192.0.2.1 192.0.2.2 ;; private) echo 10.0.0.1,10.0.0.2 ;; mtu) echo 1280 ;; esac ;;
make) echo "$*" >>"$LOG" ;;
aws) [ -z "$left" ] || echo "$left" ;;
gcloud)
  if [[ $* != *instances* ]]; then left=token; else [[ $CLOUDSDK_AUTH_ACCESS_TOKEN == token ]] || exit 1; fi
  [ -z "$left" ] || echo "$left"
  ;;
curl)
  [[ $* != *"$HCLOUD_TOKEN"* ]] && [ "$(cat "${5#@}")" = "Authorization: Bearer $HCLOUD_TOKEN" ] || exit 22
  echo "{\"meta\": {}, \"servers\": [${left:+{\"id\": 1, \"name\": \"$left\", \"placement_group\": {\"servers\": []\}\}}]}"
  ;;
esac
`

// cloudRun is a copy of deploy/bench, with stand-ins.
type cloudRun struct {
	tree, log, state string
	env              []string
}

func newCloudRun(t *testing.T, cloud string, env ...string) *cloudRun {
	t.Helper()
	tree, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	if err := os.CopyFS(filepath.Join(tree, "deploy/bench"), os.DirFS(filepath.Join(root, "deploy/bench"))); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(tree, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tofu", "ssh", "make", "aws", "gcloud", "curl"} {
		write(t, filepath.Join(bin, name), fakeCloud, 0o755)
	}
	env = append(env, "PATH="+bin+":"+os.Getenv("PATH"), "LOG="+log, "RETRY=0", "ARGS=--rounds 1", "HCLOUD_TOKEN=secret", "GOOGLE_PROJECT=ours")
	return &cloudRun{tree, log, filepath.Join(tree, "build/clouds", cloud), append(os.Environ(), env...)}
}

func (c *cloudRun) command(stdin string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.tree, "deploy/bench/run.sh"), args...)
	cmd.Env, cmd.Stdin = c.env, strings.NewReader(stdin)
	return cmd
}

// commands returns those that ran, and the whole log.
func (c *cloudRun) commands() (string, string) {
	ran, _ := os.ReadFile(c.log) // none without a command
	return strings.Join(regexp.MustCompile(`(?m)^\w+$`).FindAllString(string(ran), -1), " "), string(ran)
}

// kept says whether the state, or the word of a pair, is left.
func (c *cloudRun) kept() bool {
	states, _ := filepath.Glob(c.state + "/tfstate*")
	_, err := os.Stat(c.state + "/pair.tfvars")
	return len(states) > 0 || err == nil
}

func TestPairOfCloudIsDeletedAfterEveryRun(t *testing.T) {
	const whole = "aws init apply output output output ssh ssh make destroy"
	for _, c := range []struct {
		name, fail, answer, hours, want string
		fails, kept                     bool
		cloud, left                     string
	}{
		{name: "whole", answer: "yes", hours: "2", want: whole + " aws"},
		{name: "failed start", fail: "apply", answer: "yes", hours: "2", want: "aws init apply destroy aws", fails: true},
		{name: "failed output", fail: "output", answer: "yes", hours: "2", want: "aws init apply output destroy aws", fails: true},
		{name: "failed run", fail: "make", answer: "yes", hours: "2", want: whole + " aws", fails: true},
		{name: "failed end", fail: "destroy", answer: "yes", hours: "2", want: whole + " destroy destroy", fails: true, kept: true},
		{name: "instance out of the state", left: "i-7", answer: "yes", hours: "2", want: whole + " aws destroy aws destroy aws", fails: true, kept: true},
		{name: "failed init", fail: "init", answer: "yes", hours: "2", want: "aws init", fails: true},
		{name: "no credentials", fail: "aws", answer: "yes", hours: "2", want: "aws", fails: true},
		{name: "no answer", answer: "", hours: "2", want: "aws", fails: true},
		{name: "too long", answer: "yes", hours: "24", fails: true},
		{name: "no such cloud", answer: "yes", hours: "2", cloud: "moon", fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.cloud == "" {
				c.cloud = "aws"
			}
			r := newCloudRun(t, c.cloud, "FAIL="+c.fail, "LEFT="+c.left)
			out, err := r.command(c.answer+"\n", c.cloud, "c7g.16xlarge", "192.0.2.7/32", c.hours).CombinedOutput()
			if (err != nil) != c.fails {
				t.Errorf("error %v\n%s", err, out)
			}
			got, ran := r.commands()
			if got != c.want {
				t.Errorf("ran %q, want %q\n%s", got, c.want, out)
			}
			if strings.Contains(c.want, "init") && !strings.Contains(string(out), "2 ×  2.32 USD/h, for 2 h at most:   9.28 USD") {
				t.Errorf("no price before:\n%s", out)
			}
			if r.kept() != c.kept {
				t.Errorf("the state is kept: %v", !c.kept)
			}
			if c.kept && (!bytes.Contains(out, []byte("make bench-clouds-end CLOUD=aws")) || !bytes.Contains(out, []byte("https://console.aws")) || !bytes.Contains(out, []byte(c.left))) {
				t.Errorf("no word of the pair that is left:\n%s", out)
			}
			if want := "A=192.0.2.1 B=192.0.2.2 HOSTS_ARCH=arm64 ARGS=--ssh 'ssh -F " + r.tree; c.name == "whole" && !strings.Contains(ran, want) {
				t.Errorf("got %q, want %q", ran, want)
			}
		})
	}
}

// TestPairOfCloudIsDeletedAfterSignals sends each signal twice to the process group, as a terminal does, or to the script alone. The output
// is a pipe whose reader ends with the first signal, as in "make bench-clouds | tee file".
func TestPairOfCloudIsDeletedAfterSignals(t *testing.T) {
	// Under nohup the script would ignore hangups: a shell cannot catch a signal that is ignored at its start.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(caught) })
	for _, during := range []string{"apply", "make", "destroy"} {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
			for _, group := range []bool{true, false} {
				if !group && (sig != syscall.SIGTERM || during != "make") {
					continue
				}
				t.Run(fmt.Sprintf("%v during %s, group %v", sig, during, group), func(t *testing.T) {
					t.Parallel()
					r := newCloudRun(t, "aws", "HANG="+during)
					cmd := r.command("yes\n", "aws", "c7g.16xlarge", "192.0.2.7/32", "2")
					cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
					out, in, err := os.Pipe()
					if err != nil {
						t.Fatal(err)
					}
					cmd.Stdout, cmd.Stderr = in, in
					if err := cmd.Start(); err != nil {
						t.Fatal(err)
					}
					in.Close()
					ended := make(chan error, 1)
					go func() { ended <- cmd.Wait() }()
					for {
						if got, _ := r.commands(); strings.HasSuffix(got, during) {
							break
						}
						select {
						case err := <-ended:
							t.Fatalf("%s never ran: %v", during, err)
						case <-time.After(10 * time.Millisecond):
						}
					}
					out.Close()
					to := cmd.Process.Pid
					if group {
						to = -to
					}
					for range 2 {
						if err := syscall.Kill(to, sig); err != nil {
							t.Fatal(err)
						}
					}
					if during != "make" {
						write(t, r.log+".go", "", 0o644)
					}
					err = <-ended
					if (err == nil) != (during == "destroy") {
						t.Errorf("error %v", err)
					}
					want := "aws init apply output output output ssh ssh make destroy aws"
					if during == "apply" {
						want = "aws init apply destroy aws"
					}
					got, ran := r.commands()
					if got != want || strings.Contains(ran, "not ended") || during != "make" && strings.Contains(ran, "reached") || r.kept() {
						t.Errorf("kept %v, ran %q, want %q:\n%s", r.kept(), got, want, ran)
					}
				})
			}
		}
	}
}

func TestEndOfPairOfCloud(t *testing.T) {
	for cloud, list := range map[string]string{"aws": "aws", "google": "gcloud gcloud", "hetzner": "curl"} {
		for _, c := range []struct {
			name, left, fail, want, report string
			none, fails                    bool
		}{
			{name: "pair", want: "destroy " + list},
			{name: "instance out of the state", left: "ropewalk-bench-1", want: strings.Repeat(" destroy "+list, 3)[1:], report: "ropewalk-bench-1", fails: true},
			{name: "no list", fail: strings.Fields(list)[0], want: strings.Repeat(" destroy "+strings.Fields(list)[0], 3)[1:], report: "instances: unknown", fails: true},
			{name: "no pair", none: true, want: list, report: "has no pair", fails: true},
			{name: "no pair, no list", none: true, fail: strings.Fields(list)[0], want: strings.Fields(list)[0], report: ": unknown", fails: true},
		} {
			t.Run(cloud+" "+c.name, func(t *testing.T) {
				r := newCloudRun(t, cloud, "LEFT="+c.left, "FAIL="+c.fail)
				if !c.none { // OpenTofu died before its first write of the state
					if err := os.MkdirAll(r.state, 0o755); err != nil {
						t.Fatal(err)
					}
					write(t, r.state+"/pair.tfvars", "", 0o644)
				}
				out, err := r.command("", "end", cloud).CombinedOutput()
				if got, _ := r.commands(); got != c.want || (err != nil) != c.fails || r.kept() != (c.fails && !c.none) {
					t.Errorf("error %v, ran %q, want %q, kept %v\n%s", err, got, c.want, r.kept(), out)
				}
				if c.fails && (!bytes.Contains(out, []byte(c.report)) || !bytes.Contains(out, []byte("https://console."))) || !c.none && bytes.Contains(out, []byte("has no pair")) || bytes.Contains(out, []byte("secret")) {
					t.Errorf("says:\n%s", out)
				}
				if after := r.command("yes\n", cloud, map[string]string{"aws": "c7g.16xlarge", "google": "c3-highcpu-88", "hetzner": "ccx63"}[cloud], "192.0.2.7/32", "2"); r.kept() && after.Run() == nil {
					t.Error("another run started beside the pair")
				}
			})
		}
	}
}

// TestCloudsHaveWhatOthersNeed holds the names that run.sh lists, what ends an instance, and the disk that C3 takes.
func TestCloudsHaveWhatOthersNeed(t *testing.T) {
	for cloud, lines := range map[string][]string{
		"aws":     {`Name = "ropewalk-bench"`, `instance_initiated_shutdown_behavior = "terminate"`},
		"google":  {`name = "ropewalk-bench-${count.index}"`, `instance_termination_action = "DELETE"`, `type = "pd-balanced"`},
		"hetzner": {`labels = { ropewalk-bench = "" }`, `name = "ropewalk-bench-${count.index}"`},
	} {
		text := regexp.MustCompile(` +=`).ReplaceAllString(read(t, "deploy/bench/"+cloud+"/main.tf"), " =")
		for _, line := range lines {
			if !strings.Contains(text, line) {
				t.Errorf("%s lacks %s", cloud, line)
			}
		}
	}
}
