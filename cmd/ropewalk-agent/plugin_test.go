// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// plugin runs the plugin with a script as kubectl.
func plugin(t *testing.T, kubectl string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	dir := t.TempDir()
	if kubectl != "" {
		if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte("#!/bin/sh\n"+kubectl), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	if kubectl == "" {
		t.Setenv("PATH", dir)
	}
	t.Setenv("HOME", dir)
	t.Setenv("KUBECONFIG", "")
	var out, log bytes.Buffer
	cmd := newCmd("/opt/krew/bin/kubectl-ropewalk")
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&log)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), log.String(), err
}

// exitCodeOf returns the code with which main ends.
func exitCodeOf(err error) int {
	if err == nil {
		return 0
	}
	if coded, ok := errors.AsType[interface {
		error
		ExitCode() int
	}](err); ok {
		return coded.ExitCode()
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	return exitError
}

const onePod = `case "$*" in
*/pods*) echo '{"items": [{"metadata": {"name": "p", "namespace": "s", "labels": {"app.kubernetes.io/name": "ropewalk-engine"}}, "spec": {"nodeName": "n1", "containers": [{"name": "engine"}]}}]}' ;;
*exec*) echo "$@"; exit 5 ;;
*logs*) echo no connection >&2; exit 1 ;;
*) echo '{}' ;;
esac
`

func TestProgramIsAgentOrPlugin(t *testing.T) {
	for name, want := range map[string]string{"/usr/bin/ropewalk-agent": "ropewalk-agent", "kubectl-ropewalk": "kubectl-ropewalk"} {
		if got := newCmd(name).Name(); got != want {
			t.Errorf("%s: got the command %s, want %s", name, got, want)
		}
	}
}

func TestPluginHelpNamesKubectl(t *testing.T) {
	for _, verb := range []string{"status", "check", "flows", "bundle"} {
		out, _, err := plugin(t, "", verb, "--help")
		if err != nil || !strings.Contains(out, "  kubectl ropewalk "+verb) || strings.Contains(out, "  ropewalk mesh") {
			t.Errorf("%s: %v\n%s", verb, err, out)
		}
	}
}

func TestFlowsRunsInEnginesPod(t *testing.T) {
	out, _, err := plugin(t, onePod, "flows", "n1", "--context=c", "--", "--sort", "drops")
	if want := "--context=c exec --namespace=s p --container=engine -- ropewalk flows --sort drops\n"; out != want || exitCodeOf(err) != 5 {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
}

func TestIncompleteBundleExitsThree(t *testing.T) {
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	out, log, err := plugin(t, onePod, "bundle", "-o", file)
	if exitCodeOf(err) != exitIncomplete || !strings.HasPrefix(out, file+": ") || !strings.Contains(log, "n1: ") || !strings.Contains(log, "index.txt in it has the reasons") {
		t.Errorf("got %v\n%s%s", err, out, log)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", info, err)
	}
	if _, _, err := plugin(t, onePod, "bundle", "-o", file); exitCodeOf(err) != exitError || !os.IsExist(err) {
		t.Errorf("got %v, want an error about the existing file", err)
	}
}

func TestPluginRejectsInvalidArguments(t *testing.T) {
	for line, want := range map[string]int{
		"flows": 2, "flows n1 n2": 2, "flows -- n1": 2, "bundle [": 2, "bundle -o x.zip": 2, "bundle --timeout 0s": 2, "bundle --parallel 0": 2,
		"bundle --log-lines 0": 2, "bundle --nodes": 2, "status --timeout 0s": 2, "stauts": 2, "flows n1": 1, "bundle": 1,
	} {
		if _, _, err := plugin(t, "", strings.Fields(line)...); exitCodeOf(err) != want {
			t.Errorf("%s: got %v, want exit code %d", line, err, want)
		}
	}
}

func TestFailedBundleLeavesNoFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	if _, _, err := plugin(t, "exit 1\n", "bundle", "-o", file); exitCodeOf(err) != exitError {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("got %v, want no file", err)
	}
}
