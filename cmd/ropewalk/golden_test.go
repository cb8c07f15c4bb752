// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/test/golden"
)

// walk calls f with every command that users see.
func walk(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			walk(c, f)
		}
	}
}

func TestHelpIsThatOfTheGoldenFiles(t *testing.T) {
	walk(newRootCmd(), func(cmd *cobra.Command) {
		words := strings.Fields(cmd.CommandPath())
		var texts [2]string
		for i, args := range [][]string{append([]string{"help"}, words[1:]...), append(words[1:len(words):len(words)], "--help")} {
			out, errs, err := execute(t, newRootCmd(), "", args...)
			if err != nil || errs != "" {
				t.Errorf("%q: %q, %v", args, errs, err)
			}
			texts[i] = out
		}
		golden.Check(t, filepath.Join("testdata", "help", strings.Join(words, "-")+".golden"), texts[0])
		if diff := cmp.Diff(texts[0], texts[1]); diff != "" {
			t.Errorf("%s: help and --help differ:\n%s", cmd.CommandPath(), diff)
		}
	})
}

func TestEveryCommandExplainsItselfWithAnExample(t *testing.T) {
	walk(newRootCmd(), func(cmd *cobra.Command) {
		if cmd.Long == "" || cmd.Short == "" || !strings.Contains(cmd.Example, "ropewalk") {
			t.Errorf("%s: short %q, long %q, example %q", cmd.CommandPath(), cmd.Short, cmd.Long, cmd.Example)
		}
		for line := range strings.Lines(cmd.Long + "\n" + cmd.Example) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 130 {
				t.Errorf("%s: a line of %d columns: %s", cmd.CommandPath(), n, line)
			}
		}
	})
}

func TestCompletionIsOfferedForEveryArgument(t *testing.T) {
	walk(newRootCmd(), func(cmd *cobra.Command) {
		takesArgs := strings.ToUpper(cmd.Use) != cmd.Use && strings.Contains(cmd.Use, " ")
		if takesArgs && cmd.ValidArgsFunction == nil && cmd.ValidArgs == nil {
			t.Errorf("%s: nothing completes the arguments of %q", cmd.CommandPath(), cmd.Use)
		}
	})
}

func TestExitCodesAreThoseOfTheHelp(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want int
		text string
	}{
		{[]string{"shw"}, exitUsage, `unknown command "shw"; did you mean "show"?`},
		{[]string{"shw", "--lanes"}, exitUsage, `unknown command "shw"; did you mean "show"?`},
		{[]string{"help", "bogus"}, exitUsage, `unknown command "bogus": want one of addconf, `},
		{[]string{"help", "spread", "paln"}, exitUsage, `unknown command "paln"; did you mean "plan"?`},
		{[]string{"spread", "attahc", "eth0"}, exitUsage, `unknown command "attahc"; did you mean "attach"?`},
		{[]string{"show", "--lnes"}, exitUsage, `unknown flag: --lnes; did you mean "--lanes"?`},
		{[]string{"show", "--xyzzy"}, exitUsage, `unknown flag: --xyzzy`},
		{[]string{"show", "wg0", "dumpp"}, exitUsage, `unknown selector "dumpp"; did you mean "dump"?`},
		{[]string{"show", "interfaces", "dump"}, exitUsage, `interfaces have no selector, got "dump"`},
		{[]string{"set"}, exitUsage, "want an interface and what to set"},
		{[]string{"set", "nosuch0"}, exitUsage, "want an interface and what to set"},
		{[]string{"set", "nosuch0", "per", "x"}, exitUsage, `invalid argument "per"; did you mean "peer"?`},
		{[]string{"set", "nosuch0", "xyzzy"}, exitUsage, `invalid argument "xyzzy": want one of listen-port, fwmark, `},
		{[]string{"set", "nosuch0", manualPrivate}, exitUsage, `invalid argument: want one of listen-port, fwmark, `},
		{[]string{"set", "nosuch0", "listen-port", "x"}, exitUsage, `listen-port: want 0-65535, got "x"`},
		{[]string{"set", "nosuch0", "listen-port", "1"}, exitUnreachable, "no such interface: nosuch0"},
		{[]string{"show", "nosuch0"}, exitUnreachable, "no such interface: nosuch0"},
		{[]string{"showconf", "nosuch0"}, exitUnreachable, "no such interface: nosuch0"},
		{[]string{"syncconf", "nosuch0", "/dev/null"}, exitUnreachable, "no such interface: nosuch0"},
		{[]string{"setconf", "nosuch0", "/absent"}, exitError, "opening configuration: open /absent: no such file or directory"},
		{[]string{"log", "nosuch0"}, exitUnreachable, "no such interface: nosuch0"},
		{[]string{"log", "nosuch0", "debgu"}, exitUsage, `unknown level "debgu"; did you mean "debug"?`},
		{[]string{"completion", "tcsh"}, exitUsage, `unknown shell "tcsh": want one of bash, zsh, fish`},
		{[]string{"run", "--log-format", "xml", "x"}, exitUsage, `--log-format "xml": want text or json`},
		{[]string{"up", "--log-level", "wran", "x"}, exitUsage, `log level "wran": want debug, info, warn, error or silent; did you mean "warn"?`},
	} {
		root := newRootCmd()
		_, _, err := execute(t, root, "", tc.args...)
		err = unknownCommand(root, err)
		if err == nil || exitCode(err) != tc.want || !strings.HasPrefix(err.Error(), tc.text) {
			t.Errorf("%q: got %v, want %s", tc.args, err, tc.text)
		}
	}
}

func TestFileOfWGQuicksIsToldFromAMistake(t *testing.T) {
	for text, want := range map[string]string{
		"[Interface]\nAddress = 10.0.0.1/24\n": "this is a file for `ropewalk up`",
		"[Interface]\nListenProt = 5\n":        `did you mean "ListenPort"?`,
		"[Peer]\nAllowedIP = 5\n":              `did you mean "AllowedIPs"?`,
	} {
		_, _, err := execute(t, newRootCmd(), "", "setconf", "nosuch0", writeConf(t, "wg0", text))
		if err == nil || exitCode(err) != exitError || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestMisspeltKeyOfAQuickFileIsToldItsRightForm(t *testing.T) {
	_, _, err := execute(t, newRootCmd(), "", "up", writeConf(t, "wg0", "[Interface]\nTabel = auto\n"))
	if err == nil || exitCode(err) != exitError || !strings.HasSuffix(err.Error(), "\ndid you mean \"Table\"?") {
		t.Error(err)
	}
}

func TestNearestWordIsTheOneMeant(t *testing.T) {
	known := []string{"show", "showconf", "set", "setconf", "syncconf", "addconf", "up", "down", "allowed-ips", "endpoint"}
	for word, want := range map[string]string{
		"shwo": "show", "SHOW": "show", "showcnf": "showconf", "synconf": "syncconf", "donw": "down", "allowed-ip": "allowed-ips",
		"allowedips": "allowed-ips", "end": "endpoint", "xyzzy": "", "": "", "q": "", "upp": "up",
	} {
		if got := nearest(word, known); got != want {
			t.Errorf("%q: got %q, want %q", word, got, want)
		}
	}
}

// slowDistance is distance by its definition.
func slowDistance(a, b string) int {
	if a == "" || b == "" {
		return len(a) + len(b)
	}
	cost := 1
	if a[0] == b[0] {
		cost = 0
	}
	d := min(slowDistance(a[1:], b)+1, slowDistance(a, b[1:])+1, slowDistance(a[1:], b[1:])+cost)
	if len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0] {
		d = min(d, slowDistance(a[2:], b[2:])+1)
	}
	return d
}

func TestDistanceIsThatOfItsDefinition(t *testing.T) {
	words := []string{"", "a", "ab", "ba", "abc", "acb", "cab", "show", "shwo", "shoow", "woh", "aabb", "abab"}
	for _, a := range words {
		for _, b := range words {
			if got, want := distance(a, b), slowDistance(a, b); got != want {
				t.Errorf("%q and %q: got %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestManualHasAPageForEveryCommand(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := execute(t, newRootCmd(), "", "docs", "man", dir); err != nil {
		t.Fatal(err)
	}
	walk(newRootCmd(), func(cmd *cobra.Command) {
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".8"
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Contains(text, []byte(".SH EXAMPLES")) {
			t.Errorf("%s: %v", name, err)
		}
	})
}

func TestLogIsOfTheFormAskedFor(t *testing.T) {
	for format, want := range map[string]string{"": "level=INFO msg=hello", "text": "level=INFO msg=hello", "JSON": `"msg":"hello"`} {
		var b bytes.Buffer
		log, level, err := (&logOptions{format: format}).open(&b)
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("quiet")
		log.Info("hello")
		level.Set(100)
		log.Error("silent")
		if got := b.String(); !strings.Contains(got, want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%q: %s", format, got)
		}
	}
}
