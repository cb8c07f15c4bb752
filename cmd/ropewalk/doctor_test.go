// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
)

// fakeSettings keeps the host's settings in memory.
type fakeSettings map[string]string

func (fakeSettings) Scope() (doctor.Scope, error) { return doctor.Scope{Boot: "b", Network: "n"}, nil }

func (s fakeSettings) Read(c doctor.Change) (string, error) { return s[c.Setting()], nil }

func (s fakeSettings) Write(c doctor.Change, value string) error {
	s[c.Setting()] = value
	return nil
}

const doctorJIT = "net.core.bpf_jit_enable"

// runDoctor runs the command on a host with the given setting of the eBPF JIT compiler.
func runDoctor(t *testing.T, o doctorOptions, settings fakeSettings, input string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	d := doctorRun{o: o, settings: settings, in: strings.NewReader(input), out: &out}
	d.gather = func(context.Context) (*facts.Facts, error) {
		return &facts.Facts{
			Pre: true, Kernel: facts.Kernel{Release: "6.12.1", BTF: facts.Known(true)},
			Sysctls: map[string]facts.Result[string]{facts.BPFJIT: facts.Known(settings[doctorJIT])},
		}, nil
	}
	err := d.run(t.Context())
	return out.String(), err
}

func doctorRecord(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "undo.json")
}

func TestDoctorFixAsksBeforeChanges(t *testing.T) {
	for answer, want := range map[string]string{"y\n": "1", "yes\n": "1", "n\n": "0", "\n": "0", "": "0", "nyet": "0"} {
		settings := fakeSettings{doctorJIT: "0"}
		out, err := runDoctor(t, doctorOptions{fix: true, record: doctorRecord(t)}, settings, answer)
		if settings[doctorJIT] != want {
			t.Errorf("%q: the value is %s, want %s", answer, settings[doctorJIT], want)
		}
		if want == "0" && (err == nil || exitCode(err) != exitError) {
			t.Errorf("%q: got error %v", answer, err)
		}
		plan := strings.Index(out, `net.core.bpf_jit_enable: "0" -> "1"`)
		if question := strings.Index(out, "[y/N]"); plan < 0 || question < plan {
			t.Errorf("%q: the plan is not shown before the question: %s", answer, out)
		}
	}
}

func TestDoctorUndoRestoresSettings(t *testing.T) {
	settings, record := fakeSettings{doctorJIT: "0"}, doctorRecord(t)
	out, _ := runDoctor(t, doctorOptions{fix: true, yes: true, record: record}, settings, "")
	if settings[doctorJIT] != "1" || !strings.Contains(out, "done: sysctl -w net.core.bpf_jit_enable=1") {
		t.Error(settings, out)
	}
	out, err := runDoctor(t, doctorOptions{undo: true, record: record}, settings, "")
	if settings[doctorJIT] != "0" || err != nil || !strings.Contains(out, `"1" -> "0"`) {
		t.Error(settings, err, out)
	}
	if _, err := runDoctor(t, doctorOptions{undo: true, record: record}, settings, ""); err == nil || !strings.Contains(err.Error(), "nothing to undo") {
		t.Error(err)
	}
}

func TestDoctorExitCodeFollowsFindings(t *testing.T) {
	for _, c := range []struct {
		summary doctor.Summary
		strict  bool
		want    int
	}{
		{doctor.Summary{OK: 3, Unknown: 2}, false, 0},
		{doctor.Summary{Warnings: 1}, false, exitWarnings},
		{doctor.Summary{Warnings: 1}, true, exitFailed},
		{doctor.Summary{Warnings: 1, Failed: 1}, false, exitFailed},
		{doctor.Summary{Unknown: 1}, true, 0},
	} {
		d := doctorRun{o: doctorOptions{strict: c.strict}}
		got, err := 0, d.verdict(c.summary)
		if err != nil {
			got = exitCode(printing(err))
		}
		if got != c.want {
			t.Errorf("%+v, strict %v: got %d, want %d", c.summary, c.strict, got, c.want)
		}
	}
}

func TestDoctorRejectsContradictingFlags(t *testing.T) {
	for _, args := range [][]string{
		{"--pre", "wg0"},
		{"--undo", "--fix"},
		{"--undo", "wg0"},
		{"--fix", "--json"},
		{"--yes"},
		{"--port", "70000"},
		{"--nope"},
		{"--device", "no-such-device"},
	} {
		root := newRootCmd()
		root.SetArgs(append([]string{"doctor"}, args...))
		root.SetOut(&bytes.Buffer{})
		if err := root.Execute(); err == nil || exitCode(err) != exitUsage {
			t.Errorf("%v: got error %v, want an error", args, err)
		}
	}
}

func TestDoctorOfUnservedInterfaceIsUnreachable(t *testing.T) {
	root := newRootCmd()
	root.SetArgs([]string{"doctor", "no-such-tunnel"})
	if err := root.Execute(); err == nil || exitCode(err) != exitUnreachable {
		t.Error(err)
	}
}

func TestDoctorUsesCommonAPIVersion(t *testing.T) {
	if doctor.APIVersion != show.APIVersion {
		t.Errorf("got different API versions %s and %s, want the same", doctor.APIVersion, show.APIVersion)
	}
}

// asNobody runs the command as user nobody, without capabilities. The program is passed as a file descriptor, because nobody
// cannot read its directory.
func asNobody(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to become nobody")
	}
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	cmd := exec.CommandContext(t.Context(), "/proc/self/fd/3")
	cmd.Args = append([]string{"ropewalk", "doctor"}, args...) // makes TestMain run ropewalk
	cmd.ExtraFiles = []*os.File{program}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	} else if ok {
		code = exit.ExitCode()
	}
	return out.String(), errs.String(), code
}

func TestDoctorReportsUnknownWithoutPrivileges(t *testing.T) {
	out, errs, code := asNobody(t, "--pre", "--json")
	if code != exitFailed || strings.Contains(out+errs, "panic") {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	var report doctor.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err, out)
	}
	status := map[string]doctor.Finding{}
	for _, f := range report.Findings {
		status[f.Check] = f
	}
	if f := status["capabilities"]; f.Status != doctor.Failed || !strings.Contains(f.Found, "CAP_NET_ADMIN") {
		t.Errorf("got %+v, want Status %v, Found with \"CAP_NET_ADMIN\"", f, doctor.Failed)
	}
	for _, id := range []string{"tun-offloads", "tun-steer", "tcx", "xdp-sockets"} {
		if f := status[id]; f.Status != doctor.Unknown || !strings.Contains(f.Found, "not permitted") && !strings.Contains(f.Found, "denied") {
			t.Errorf("%s: got %+v", id, f)
		}
	}
	if f := status["udp-gso"]; f.Status != doctor.OK {
		t.Errorf("got %+v, want Status %v", f, doctor.OK)
	}
}

func TestDoctorFixesNothingWithoutPrivileges(t *testing.T) {
	record := filepath.Join(t.TempDir(), "undo.json")
	out, errs, code := asNobody(t, "--pre", "--fix", "--yes", "--device", "lo", "--record", record)
	if code == 0 || strings.Contains(out, "done:") || strings.Contains(out+errs, "panic") {
		t.Errorf("exit code %d: got %s%s, want no %q in it", code, out, errs, "done:")
	}
}
