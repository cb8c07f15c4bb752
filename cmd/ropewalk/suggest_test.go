// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestMistakesHaveExitCodeAndSuggestion(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want int
		text string
	}{
		{[]string{"shw"}, exitUsage, "unknown command \"shw\" for \"ropewalk\"\n\nDid you mean this?\n\tshow\n\tset\n"},
		{[]string{"shw", "--lanes"}, exitUsage, "unknown command \"shw\" for \"ropewalk\"\n\nDid you mean this?\n\tshow\n\tset\n"},
		{[]string{"help", "bogus"}, exitUsage, `unknown command "bogus" for "ropewalk"`},
		{[]string{"help", "spread", "paln"}, exitUsage, "unknown command \"paln\" for \"ropewalk spread\"\n\nDid you mean this?\n\tplan\n"},
		{[]string{"spread", "attahc", "eth0"}, exitUsage, "unknown command \"attahc\" for \"ropewalk spread\"\n\nDid you mean this?\n\tattach\n"},
		{[]string{"show", "--lnes"}, exitUsage, "unknown flag: --lnes\n\nDid you mean this?\n\t--lanes\n"},
		{[]string{"show", "--xyzzy"}, exitUsage, `unknown flag: --xyzzy`},
		{[]string{"show", "wg0", "dumpp"}, exitUsage, "unknown selector \"dumpp\"\n\nDid you mean this?\n\tdump\n"},
		{[]string{"show", "interfaces", "dump"}, exitUsage, `interfaces takes no selector, got "dump"`},
		{[]string{"set"}, exitUsage, "want an interface and at least one setting"},
		{[]string{"set", "nosuch0"}, exitUsage, "want an interface and at least one setting"},
		{[]string{"set", "nosuch0", "per", "x"}, exitUsage, "invalid argument \"per\"\n\nDid you mean this?\n\tpeer\n"},
		{[]string{"set", "nosuch0", "xyzzy"}, exitUsage, `invalid argument "xyzzy": want one of listen-port, fwmark, `},
		{[]string{"set", "nosuch0", manualPrivate}, exitUsage, `invalid argument: want one of listen-port, fwmark, `},
		{[]string{"set", "nosuch0", "listen-port", "x"}, exitUsage, `listen-port: want 0-65535 or a UDP service, got "x"`},
		{[]string{"set", "nosuch0", "listen-port", "1"}, exitUnreachable, "no such interface: nosuch0"},
		{[]string{"show", "nosuch0"}, exitUnreachable, "no such interface: nosuch0"},
		{[]string{"showconf", "nosuch0"}, exitUnreachable, "no such interface: nosuch0"},
		{[]string{"syncconf", "nosuch0", "/dev/null"}, exitUnreachable, "no such interface: nosuch0"},
		{[]string{"setconf", "nosuch0", "/absent"}, exitError, "opening configuration: open /absent: no such file or directory"},
		{[]string{"log", "nosuch0"}, exitUnreachable, "no such interface: nosuch0"},
		{[]string{"down", "nosuch0"}, exitUnreachable, "`/etc/wireguard/nosuch0.conf' does not exist"},
		{[]string{"save", "nosuch0"}, exitUnreachable, "`/etc/wireguard/nosuch0.conf' does not exist"},
		{[]string{"reload", "nosuch0"}, exitUnreachable, "`/etc/wireguard/nosuch0.conf' does not exist"},
		{[]string{"save", "./nosuch0.conf"}, exitError, "`./nosuch0.conf' does not exist"},
		{[]string{"up", "nosuch0"}, exitError, "`/etc/wireguard/nosuch0.conf' does not exist"},
		{[]string{"log", "nosuch0", "debgu"}, exitUsage, "unknown level \"debgu\"\n\nDid you mean this?\n\tdebug\n"},
		{[]string{"completion", "tcsh"}, exitUsage, `invalid argument "tcsh" for "ropewalk completion"`},
		{[]string{"spread", "attach", "x", "--port", "99999"}, exitUsage, `--port: want 0-65535, got "99999"`},
		{[]string{"run", "--mtu", "big", "x"}, exitUsage, `--mtu: want a whole number, got "big"`},
		{[]string{"bench", "--seconds", "x"}, exitUsage, `--seconds: want a number, got "x"`},
		{[]string{"bench", "--lanes", "1,x"}, exitUsage, `--lanes: want whole numbers, separated by commas, got "1,x"`},
		{[]string{"flows", "--interval", "1"}, exitUsage, `--interval: want a duration such as 500ms or 10s, got "1"`},
		{[]string{"show", "--lanes=2"}, exitUsage, `--lanes: want true or false, got "2"`},
		{[]string{"run", "--log-format", "xml", "x"}, exitUsage, `--log-format "xml": want text or json`},
		{[]string{"up", "--log-level", "wran", "x"}, exitUsage, "log level \"wran\": want debug, info, warn, error or silent\n\nDid you mean this?\n\twarn\n"},
	} {
		_, _, err := execute(t, newRootCmd(), "", tc.args...)
		if err == nil || exitCode(err) != tc.want || !strings.HasPrefix(err.Error(), tc.text) {
			t.Errorf("%q: got %v, want %s", tc.args, err, tc.text)
		}
	}
}

func TestSetconfExplainsKeysItDoesNotKnow(t *testing.T) {
	for text, want := range map[string]string{
		"[Interface]\nAddress = 10.0.0.1/24\n": "this is a wg-quick file, for `ropewalk up`",
		"[Interface]\nListenProt = 5\n":        "Did you mean this?\n\tline 2: ListenPort",
		"[Peer]\nAllowedIP = 5\n":              "Did you mean this?\n\tline 2: AllowedIPs",
	} {
		_, _, err := execute(t, newRootCmd(), "", "setconf", "nosuch0", writeConf(t, "wg0", text))
		if err == nil || exitCode(err) != exitError || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want an error", text, err)
		}
	}
}

func TestUpSuggestsKeyForMisspeltOne(t *testing.T) {
	_, _, err := execute(t, newRootCmd(), "", "up", writeConf(t, "wg0", "[Interface]\nTabel = auto\n"))
	if err == nil || exitCode(err) != exitError || !strings.HasSuffix(err.Error(), "\n\nDid you mean this?\n\tline 2: Table") {
		t.Error(err)
	}
}

func TestDidYouMeanListsSimilarWords(t *testing.T) {
	known := []string{"show", "showconf", "set", "setconf", "syncconf", "addconf", "up", "down", "allowed-ips", "endpoint", "PublicKey"}
	for word, want := range map[string]string{
		"shwo": "show", "SHO": "show showconf set", "showcnf": "showconf", "synconf": "setconf syncconf", "donw": "down", "allowed-ip": "allowed-ips",
		"allowedips": "allowed-ips", "end": "endpoint", "publickey": "PublicKey", "xyzzy": "", "": "",
	} {
		text := ""
		if want != "" {
			text = "\n\nDid you mean this?\n\t" + strings.ReplaceAll(want, " ", "\n\t") + "\n"
		}
		if got := didYouMean(word, known); got != text {
			t.Errorf("%q: got %q, want %q", word, got, text)
		}
	}
}

func TestWrongNumberOfArgumentsIsExplained(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"run"}, "missing argument: INTERFACE\nusage: ropewalk run INTERFACE"},
		{[]string{"up"}, "missing argument: CONFIG_FILE | INTERFACE\n"},
		{[]string{"setconf", "wg0"}, "missing argument: FILE\n"},
		{[]string{"setconf"}, "missing argument: INTERFACE\n"},
		{[]string{"setconf", "wg0", "file", "more"}, "unexpected argument \"more\"\n"},
		{[]string{"genkey", "x"}, "unexpected argument \"x\"\n"},
		{[]string{"show", "wg0", "peers", "x"}, "unexpected argument \"x\"\n"},
		{[]string{"completion", "tcsh"}, "invalid argument \"tcsh\""},
	} {
		_, _, err := execute(t, newRootCmd(), "", tc.args...)
		if err == nil || exitCode(err) != exitUsage || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%q: got %v, want %q", tc.args, err, tc.want)
		}
	}
}
