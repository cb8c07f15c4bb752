// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const (
	privateKey = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk="
	hexKey     = "c809f3e5317e9575c9b5ed78b638b7ce530dabe85ddab61422024180 1ddf0669"
	publicKey  = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
	token      = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl"
)

// fakeKubectl answers as a cluster of two nodes does.
type fakeKubectl struct {
	answers map[string]string // by the beginning of the command line
	silent  string            // a node whose kubelet does not answer
	calls   chan string
}

func newFake() *fakeKubectl {
	podOf := func(node, kind, container, restarts string) string {
		return fmt.Sprintf(`{"metadata": {"name": "%s-%s", "namespace": "system", "labels": {"app.kubernetes.io/name": "ropewalk-%[2]s"}, "managedFields": [1],
		  "annotations": {"other": "annotated", "ropewalk.io/own": "kept"}},
		 "spec": {"nodeName": "%[1]s", "containers": [{"name": "%s", "args": ["--listen=$(LISTEN)"], "env": [{"name": "LISTEN", "value": "127.0.0.1:9567"}, {"name": "X", "value": "environment"}]}]},
		 "status": {"phase": "Running", "containerStatuses": [{"name": "%[3]s", "restartCount": %s}]}}`, node, kind, container, restarts)
	}
	pods := strings.Join([]string{podOf("n2", "agent", "agent", "0"), podOf("n1", "engine", "engine", "1"), podOf("n1", "agent", "agent", "0")}, ",")
	return &fakeKubectl{
		calls: make(chan string, 100),
		answers: map[string]string{
			"get --raw /version":                                            `{"gitVersion": "v1.36.3"}`,
			"get --raw /api/v1/nodes":                                       `{"items": [{"metadata": {"name": "n1"}, "status": {"nodeInfo": {}, "images": ["private"]}}]}`,
			"get --raw /apis/apps/v1/daemonsets":                            `{"items": []}`,
			"get --raw /api/v1/events":                                      `{"items": []}`,
			"get --raw /api/v1/namespaces/system/events":                    `{"items": []}`,
			"get --raw /apis/ropewalk.io/v1alpha1/ropewalknodes":            `{"items": [{"status": {"publicKey": "` + publicKey + `"}}]}`,
			"get --raw /apis/ropewalk.io/v1alpha1":                          `{"resources": [{"name": "ropewalknodes"}, {"name": "ropewalknodes/status"}]}`,
			"get --raw /apis/apiextensions.k8s.io/v1/customresourcedefinit": `{}`,
			"get --raw /api/v1/pods":                                        `{"items": [` + pods + `]}`,
			"logs": "private key " + privateKey + "\nPresharedKey = " + privateKey + "\nprivate_key=" + strings.ReplaceAll(hexKey, " ", "") +
				"\n{\"private_key\":\"" + privateKey + "\"}\nAuthorization: Bearer abc.def-123\n" + token + "\npassword: hunter2\npublic key " + publicKey + "\n" +
				"-----BEGIN EC PRIVATE KEY-----\n" + privateKey + "\n-----END EC PRIVATE KEY-----\n",
			"forwarded": "metric 1\n",
			"exec":      `{"interfaces": []}`,
		},
	}
}

func (f *fakeKubectl) answer(ctx context.Context, line string) ([]byte, error) {
	f.calls <- line
	if f.silent != "" && strings.Contains(line, f.silent+"-") {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for _, begin := range slices.Backward(slices.Sorted(maps.Keys(f.answers))) { // the longest
		if strings.HasPrefix(line, begin) {
			return []byte(f.answers[begin]), nil
		}
	}
	return nil, errors.New("not found")
}

func (f *fakeKubectl) Output(ctx context.Context, args ...string) ([]byte, error) {
	return f.answer(ctx, strings.Join(args, " "))
}

func (f *fakeKubectl) Forwarded(ctx context.Context, namespace, pod, port, path string) ([]byte, error) {
	return f.answer(ctx, strings.Join([]string{"forwarded", namespace, pod, port, path}, " "))
}

func (f *fakeKubectl) config() Config {
	return Config{
		Kubectl: f, Timeout: time.Minute, LogLines: 10, Parallel: 2, Name: "b", Header: "header\n", Progress: func(Progress) {},
		Files: []File{{"status.txt", func(context.Context) ([]byte, error) { return []byte("status\n"), nil }}},
	}
}

// write returns the files of a bundle.
func write(t *testing.T, ctx context.Context, c Config) (map[string]string, Summary) {
	t.Helper()
	var b bytes.Buffer
	s, err := Write(ctx, &b, c)
	if err != nil {
		t.Fatal(err)
	}
	gz, err := gzip.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, s
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if dir, name, _ := strings.Cut(h.Name, "/"); dir == "b" && err == nil && h.Mode == 0o600 {
			files[name] = string(text)
		} else {
			t.Errorf("got file %s, mode %o, error %v", h.Name, h.Mode, err)
		}
	}
}

func TestBundleHasFilesOfAllNodes(t *testing.T) {
	files, s := write(t, t.Context(), newFake().config())
	want := []string{
		"index.txt", "nodes/n1/doctor.json", "nodes/n1/n1-agent/agent.log", "nodes/n1/n1-agent/metrics.txt", "nodes/n1/n1-engine/engine-previous.log",
		"nodes/n1/n1-engine/engine.log", "nodes/n1/n1-engine/metrics.txt", "nodes/n1/show.json", "nodes/n2/doctor.json", "nodes/n2/n2-agent/agent.log",
		"nodes/n2/n2-agent/metrics.txt", "nodes/n2/show.json", "objects/crd-ropewalknodes.json", "objects/daemonsets.json", "objects/events-system.json",
		"objects/events.json", "objects/nodes.json", "objects/pods.json", "objects/resources.json", "objects/ropewalknodes.json", "status.txt", "version.json",
	}
	if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, want) || s.Missing != 0 || s.Files != len(want)-1 {
		t.Errorf("got %+v, %q", s, got)
	}
	if !strings.HasPrefix(files["index.txt"], "header\n") || strings.Contains(files["index.txt"], "MISSING") {
		t.Error(files["index.txt"])
	}
}

func TestToolsRunInEnginesPod(t *testing.T) {
	f := newFake()
	write(t, t.Context(), f.config())
	close(f.calls)
	for line := range f.calls {
		if strings.HasPrefix(line, "exec") && !strings.Contains(line, "n1-engine --container=engine") && !strings.Contains(line, "n2-agent --container=agent") {
			t.Errorf("got %s", line)
		}
	}
	args, err := ExecArgs(t.Context(), newFake(), "", "n1")
	if got := strings.Join(args, " "); err != nil || got != "exec --namespace=system n1-engine --container=engine --" {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestBundleHasNoSecrets(t *testing.T) {
	files, _ := write(t, t.Context(), newFake().config())
	for name, text := range files {
		for _, secret := range []string{
			privateKey, privateKey[:43], strings.ReplaceAll(hexKey, " ", ""), token, "abc.def-123", "hunter2", "environment", "annotated", "managedFields", "private\"",
		} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %s:\n%s", name, secret, text)
			}
		}
	}
	if log := files["nodes/n2/n2-agent/agent.log"]; !strings.Contains(log, publicKey) || strings.Count(log, removed) != 8 {
		t.Errorf("got log\n%s", log)
	}
	if pods := files["objects/pods.json"]; !strings.Contains(pods, "kept") || !strings.Contains(pods, `"LISTEN"`) {
		t.Errorf("got pods\n%s", pods)
	}
	if nodes := files["objects/ropewalknodes.json"]; !strings.Contains(nodes, publicKey) {
		t.Errorf("got objects\n%s", nodes)
	}
}

func TestSilentNodeIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.silent = "n1"
		began := time.Now()
		c := f.config()
		var seen []Progress
		c.Progress = func(p Progress) { seen = append(seen, p) }
		files, s := write(t, t.Context(), c)
		if took := time.Since(began); took != c.Timeout {
			t.Errorf("took %v, want %v", took, c.Timeout)
		}
		if index := files["index.txt"]; s.Missing != 7 || strings.Count(index, "MISSING  nodes/n1/") != 7 || !strings.Contains(index, "no answer within 1m0s") ||
			files["nodes/n2/show.json"] == "" {
			t.Errorf("got %+v\n%s", s, index)
		}
		if last := seen[len(seen)-1]; len(seen) != 3 || last.Node != "n1" || last.Missing != 7 || last.Done != 2 || last.Nodes != 2 {
			t.Errorf("got progress %+v", seen)
		}
	})
}

func TestInterruptedBundleIsReadable(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := newFake().config()
	c.Progress = func(Progress) { cancel() }
	files, s := write(t, ctx, c)
	if s.Missing == 0 || !strings.Contains(files["index.txt"], "MISSING  nodes/n1/show.json: context canceled") || files["objects/nodes.json"] == "" {
		t.Errorf("got %+v\n%s", s, files["index.txt"])
	}
}

func TestBundleHasChosenNodesOnly(t *testing.T) {
	c := newFake().config()
	c.Wanted = func(node string) bool { return node == "n2" }
	c.Namespace = "system"
	f := c.Kubectl.(*fakeKubectl)
	f.answers["get --raw /api/v1/namespaces/system/pods"], f.answers["get --raw /apis/apps/v1/namespaces/system/daemonsets"] = f.answers["get --raw /api/v1/pods"], "{}"
	files, s := write(t, t.Context(), c)
	for name := range files {
		if strings.HasPrefix(name, "nodes/n1/") {
			t.Errorf("got %s", name)
		}
	}
	if s.Missing != 0 || files["nodes/n2/show.json"] == "" {
		t.Errorf("got %+v\n%s", s, files["index.txt"])
	}
}

func TestClusterWithoutPodsIsIncomplete(t *testing.T) {
	f := newFake()
	f.answers["get --raw /api/v1/pods"] = `{"items": []}`
	files, s := write(t, t.Context(), f.config())
	if s.Missing != 1 || !strings.Contains(files["index.txt"], "MISSING  nodes: there are no pods") {
		t.Errorf("got %+v\n%s", s, files["index.txt"])
	}
}

func TestAbsentServerIsError(t *testing.T) {
	f := newFake()
	delete(f.answers, "get --raw /version")
	if _, err := Write(t.Context(), io.Discard, f.config()); err == nil {
		t.Error("got no error")
	}
}

func TestFindingsOfDoctorAreNoError(t *testing.T) {
	for code, want := range map[int]int{1: 1, 3: 0, 4: 0} {
		c := newFake().config()
		c.Kubectl = failingDoctor{c.Kubectl, code}
		c.Wanted = func(node string) bool { return node == "n2" }
		if files, s := write(t, t.Context(), c); s.Missing != want || files["nodes/n2/doctor.json"] != "findings" {
			t.Errorf("exit code %d: got %+v, %q", code, s, files["nodes/n2/doctor.json"])
		}
	}
}

// failingDoctor has findings.
type failingDoctor struct {
	Kubectl
	code int
}

func (f failingDoctor) Output(ctx context.Context, args ...string) ([]byte, error) {
	if slices.Contains(args, "doctor") {
		return []byte("findings"), fmt.Errorf("kubectl: %w", codedError(f.code))
	}
	return f.Kubectl.Output(ctx, args...)
}

type codedError int

func (e codedError) Error() string { return "failed" }
func (e codedError) ExitCode() int { return int(e) }
