// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestOpenFindsTheFileOfWgQuick(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "wg0.conf")
	if err := os.WriteFile(path, []byte("[Interface]\nListenPort = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, filepath.Join(dir, "alias.conf")); err != nil {
		t.Fatal(err)
	}
	for arg, name := range map[string]string{"wg0": "wg0", path: "wg0", filepath.Join(dir, "alias.conf"): "alias", "alias": "alias"} {
		i, err := Open(dir, arg)
		if err != nil || i.Name != name || i.Path != path || *i.File.Interface.ListenPort != 1 {
			t.Errorf("%s: got %s at %s, %v", arg, i.Name, i.Path, err)
		}
	}
	_, err = Open(dir, "wg1")
	if want := "`" + dir + "/wg1.conf' does not exist"; !errors.Is(err, ErrNoFile) || err.Error() != want {
		t.Errorf("missing: got %v, want %s", err, want)
	}
	if _, err := Open(dir, "./name-of-16-chars.conf"); !errors.Is(err, conffile.ErrName) {
		t.Errorf("long name: got %v", err)
	}
}

func TestReplaceFileIsPrivateAndComplete(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "wg0.conf")
	for _, p := range []string{path, path + ".tmp"} {
		if err := os.WriteFile(p, []byte("old"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := replaceFile(path, []byte("new\n")); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || string(b) != "new\n" {
		t.Errorf("got %q, error %v, want no error", b, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("got mode %v, %v", info.Mode(), err)
	}
	if _, err := os.Lstat(path + ".tmp"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("temporary file: got error %v, want %v", err, os.ErrNotExist)
	}
}

func TestFailedReplaceKeepsTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "absent", "wg0.conf")
	if err := replaceFile(path, []byte("new")); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("got error %v, want %v", err, os.ErrNotExist)
	}
	dir := t.TempDir()
	path = filepath.Join(dir, "wg0.conf")
	if err := os.MkdirAll(filepath.Join(path, "occupied"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := replaceFile(path, []byte("new")); err == nil {
		t.Error("a directory was replaced")
	}
	if _, err := os.Lstat(path + ".tmp"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("temporary file: got error %v, want %v", err, os.ErrNotExist)
	}
}

func TestHooksRunAsWgQuickRunsThem(t *testing.T) {
	tools := FindTools(lookPath)
	if tools.Bash == "" {
		t.Skip("needs bash")
	}
	for command, want := range map[string]string{
		`echo %i`:                             "wg0\n",
		`read x; echo "got $x"`:               "got input\n",
		`cat <(echo process substitution)`:    "process substitution\n",
		`[[ abc == @(abc|def) ]] && echo yes`: "yes\n",
		`echo $LC_ALL`:                        "C\n",
	} {
		var out, echo bytes.Buffer
		j := &job{Runner: &Runner{Stdin: strings.NewReader("input\n"), Stdout: &out, Stderr: &echo, Tools: tools}}
		err := j.executeAll(t.Context(), hooks("wg0", []string{command}))
		if err != nil || out.String() != want {
			t.Errorf("%s: got %q, %v, want %q", command, out.String(), err, want)
		}
		if want := "[#] " + strings.ReplaceAll(command, "%i", "wg0") + "\n"; echo.String() != want {
			t.Errorf("echoed %q, want %q", echo.String(), want)
		}
	}
}

func TestHookStopsAtFirstFailingCommand(t *testing.T) {
	tools := FindTools(lookPath)
	for name, tools := range map[string]Tools{"bash": {Bash: tools.Bash}, "sh": {Sh: tools.Sh}, "no shell": {}} {
		var out bytes.Buffer
		j := &job{Runner: &Runner{Stdout: &out, Stderr: &out, Tools: tools}}
		err := hook{"false; echo reached"}.run(t.Context(), j)
		if err == nil || out.String() != "" {
			t.Errorf("%s: got error %v, %q, want an error, %q", name, err, out.String(), "")
		}
	}
}

func TestInterruptedHookIsTerminated(t *testing.T) {
	tools := FindTools(lookPath)
	if tools.Bash == "" {
		t.Skip("needs bash")
	}
	ctx, cancel := context.WithCancel(t.Context())
	out := writerFunc(func(b []byte) (int, error) {
		if strings.Contains(string(b), "ready") {
			cancel()
		}
		return len(b), nil
	})
	j := &job{Runner: &Runner{Stdout: out, Stderr: out, Tools: tools}}
	err := hook{"trap 'exit 7' TERM; echo ready; while :; do :; done"}.run(ctx, j)
	if err == nil {
		t.Error("the hook succeeded")
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestDNSPrefixComesFromDebiansInterfaceOrder(t *testing.T) {
	for file, want := range map[string]string{
		"# comment\nlo.inet6\nlo.inet\nlo.@(dhclient|pump)\nlo\ntun*\ntap*\n": "tun.",
		"lo\n":              "",
		"tun* \n!x*\nwg*\n": "wg.",
	} {
		r := &Runner{Root: fstest.MapFS{"etc/resolvconf/interface-order": {Data: []byte(file)}}}
		if got := r.dnsPrefix(); got != want {
			t.Errorf("%q: got %q, want %q", file, got, want)
		}
	}
	if got := (&Runner{Root: fstest.MapFS{}}).dnsPrefix(); got != "" {
		t.Errorf("no file: got %q", got)
	}
}

func TestPortOfNameserverNeedsSystemd(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"resolvectl", "openresolv"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(t.TempDir(), "resolvconf")
		if err := os.Symlink(filepath.Join(dir, name), link); err != nil {
			t.Fatal(err)
		}
		for server, want := range map[string]bool{"127.0.0.1": false, "127.0.0.1:5335": name != "resolvectl"} {
			n, ok := conffile.ParseNameserver(server)
			got := Tools{Resolvconf: link}.PortWarning([]conffile.Nameserver{n})
			if !ok || strings.Contains(got, "127.0.0.1:5335") != want {
				t.Errorf("%s, %s: got warning %q, want one: %v", name, server, got, want)
			}
		}
	}
}

func TestPortOfNameserverReachesResolvconf(t *testing.T) {
	h := newHost(t)
	i := h.open("wg0", strings.Replace(basic, "MTU", "DNS = 127.0.0.1:5335\nMTU", 1))
	h.up(i)
	got, err := os.ReadFile(filepath.Join(h.dir, "dns", "wg0"))
	if err != nil || string(got) != "nameserver 127.0.0.1:5335\n" {
		t.Errorf("got %q, error %v", got, err)
	}
	expect.NoError(t, h.Save(t.Context(), i))
	if text, err := os.ReadFile(i.Path); err != nil || !strings.Contains(string(text), "\nDNS = 127.0.0.1:5335\n") {
		t.Errorf("saved %s, error %v, want DNS with its port", text, err)
	}
}

func FuzzParseResolv(f *testing.F) {
	f.Add("nameserver 10.0.0.1\nnameserver fe80::1%eth0\nsearch a.example b.example\noptions ndots:2\n")
	f.Add("nameserver 127.0.0.1:5335\nnameserver [fe80::1%eth0]:53\n")
	f.Add("nameserver\nnameserver x y\nsearch\n# c\n\x00")
	f.Fuzz(func(t *testing.T, text string) {
		servers, search := parseResolv(text)
		again, searchAgain := parseResolv(setDNS{servers: servers, search: search}.text())
		diff := cmp.Diff(servers, again, cmp.Comparer(func(a, b conffile.Nameserver) bool { return a == b }))
		if diff != "" || !cmp.Equal(search, searchAgain) {
			t.Errorf("%q: %v %q became %v %q", text, servers, search, again, searchAgain)
		}
	})
}
