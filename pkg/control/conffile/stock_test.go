// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// zoneName returns the name of lo, the only interface of a new network namespace.
func zoneName(index uint32) string {
	if index == 1 {
		return "lo"
	}
	return ""
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "wg0.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestParseAgreesWithStockWG gives the same files to both programs and compares the changes that the device gets.
func TestParseAgreesWithStockWG(t *testing.T) {
	var dev uapitest.Device
	dir := uapitest.NewDir(t)
	wg := uapitest.NewStock(t, dir)
	uapitest.Serve(t, dir, "wg0", &dev)
	for _, text := range stockTexts() {
		path := write(t, text)
		r := wg.Run(t, "", nil, "setconf", "wg0", path)
		changes := dev.TakeChanges()
		f, err := Load(path, WG)
		if (err == nil) != (r.Code == 0) {
			t.Errorf("%q:\nwg exits %d, %sropewalk: %v", text, r.Code, r.Stderr, err)
			continue
		}
		if err != nil {
			continue
		}
		got, err := f.Device(t.Context(), NewResolver(ResolverConfig{}))
		if err != nil {
			t.Errorf("%q: got error %v, want none", text, err)
		}
		if diff := cmp.Diff(changes, []config.Device{got}, exact); diff != "" {
			t.Errorf("%q (-wg +ropewalk):\n%s", text, diff)
		}
		warnings := strings.Join(append(f.Warnings, ""), "\n")
		if diff := cmp.Diff(r.Stderr, warnings); diff != "" {
			t.Errorf("%q: warnings (-wg +ropewalk):\n%s", text, diff)
		}
	}
}

func stockTexts() []string {
	texts := []string{
		"", "#\n\n \t\n", "[Interface]\n[Interface]\nListenPort=5\nListenPort=6\n", "ListenPort=5\n", "[Interface]\r\nListenPort=5\r\n",
		"[Foo]\n", "[Interface] foo\n", "[Inter face]\n", "[]\n", "[Interface\n", "Interface]\n", "[Peer]\n", "[Interface]\nFoo=1\n",
		"[Interface]\n=5\n", "[Interface]\nListenPort\n", "[Interface]\nListenPort 5\n", "[Interface]\nListenPortX=5\n",
		"[interface]\nlistenport=51820 # c\nFWMARK=OFF\n", "[Interface]\nListen Port = 5", "[Interface]\nAddress = 10.0.0.1/24",
		"[Interface]\nListenPort=\v5\f", "[Peer]\nListenPort=4\n", "[Interface]\nPublicKey=" + publicKey.Base64(),
		"[Interface]\nPrivateKey=" + privateKey.Base64() + "\n", "[Interface]\nPrivateKey=AAAA\n", "[Interface]\nPrivateKey=\n",
		"[Peer]\nPublicKey=" + publicKey.Base64() + "\n[Interface]\nListenPort=7\n[Peer]\n",
	}
	for _, v := range []string{"0", "65535", "5 1 8 2 0", "010", "-1", "http", "ntp", "open vpn", "nosuch", "0x10", "", "=5", "5=6"} {
		texts = append(texts, "[Interface]\nListenPort = "+v+"\n")
	}
	for _, v := range []string{"0", "off", "0xca6c", "0XFF", "010", "4294967295", "4294967296", "-1", "0x", ""} {
		texts = append(texts, "[Interface]\nFwMark = "+v+"\n")
	}
	for _, line := range []string{
		"PresharedKey = " + psk.Base64(), "PresharedKey = x", "PresharedKey =", "AllowedIPs=1.2.3.4/32\nallowedips=1.2.3.5/32",
		"PublicKey = " + privateKey.Base64(), "Allowed IPs = 1.2.3.4/32", "[Peer]\nPublicKey = " + publicKey.Base64(),
	} {
		texts = append(texts, "[Peer]\nPublicKey = "+publicKey.Base64()+"\n"+line)
	}
	for key, values := range map[string][]string{
		"AllowedIPs": {
			"10.0.0.1/24", "10.0.0.1/24,fd00::1/64", "10.0.0.1", "fd00::1", ",", "10.0.0.0/24,", ",10.0.0.0/24", "10.0.0.1/33",
			"fd00::/129", "10.0.0.1/", "10.0.0.0/024", "10.0.0.1/+4", "10.0.0/24", "10.0.0.01", "1 0.0.0.0/24", "0.0.0.0/0",
			"::ffff:1.2.3.4/120", "::1.2.3.4/128", "fe80::1%lo/64", "10.0.0.0/24/3", "10.0.0.0/24;10.1.0.0/24", "any", "",
		},
		"Endpoint": {
			"1.2.3.4:55", "[::1]:55", "[fe80::1%lo]:55", "[fe80::1%1]:55", "[fe80::1%nope]x:55", "::1:55", "1.2.3.4", "1.2.3.4:",
			"1.2.3.4:http", "1.2.3.4:https", "1.2.3.4:ntp", "1.2.3.4:nosuch", "1.2.3.4:0", "0xc0000202:55", "3221225986:55", "192.0.514:55", "192.514:55",
			"192.000.002.002:55", "0300.0x0.02.0XFE:55", "010.1:55", "0:55", "[0x7f.1]:55", "[1.2.3.4]:55", "[::1]", "[::1]55", "[::1", "[::ffff:1.2.3.4]:55", "1.2.3.4 : 5 5", "",
		},
		"PersistentKeepalive": {"off", "OFF", "0", "65535", "65536", "-1", "25x", "", "0x10", "010", "+5", "2 5", "o f f"},
	} {
		for _, v := range values {
			texts = append(texts, "[Peer]\nPublicKey = "+publicKey.Base64()+"\n"+key+" = "+v+"\n")
		}
	}
	return texts
}

func TestShowConfMatchesStockWG(t *testing.T) {
	var dev uapitest.Device
	dir := uapitest.NewDir(t)
	wg := uapitest.NewStock(t, dir)
	uapitest.Serve(t, dir, "wg0", &dev)
	r := rand.New(rand.NewPCG(7, 8))
	for range 40 {
		st := uapitest.RandomStatus(r, "wg0", time.Now())
		dev.SetStatus(st)
		var b bytes.Buffer
		if err := ShowConf(&b, st, zoneName); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wg.Run(t, "", nil, "showconf", "wg0").Stdout, b.String()); diff != "" {
			t.Fatalf("(-wg +ropewalk):\n%s", diff)
		}
	}
}

func TestStockWGAcceptsStrippedFile(t *testing.T) {
	var dev uapitest.Device
	dir := uapitest.NewDir(t)
	wg := uapitest.NewStock(t, dir)
	uapitest.Serve(t, dir, "wg0", &dev)
	text := "[Interface]\nSpread = on\nPrivateKey = " + privateKey.Base64() + "\nlanes = 4\nListenPort = 5\nMTU = 1300\n" +
		"SpreadPorts = 2000-3000\n[Peer]\nPublicKey = " + publicKey.Base64() + "\nAllowedIPs = 10.0.0.0/8\n"
	if r := wg.Run(t, "", nil, "setconf", "wg0", write(t, text)); r.Code == 0 {
		t.Error("wg accepts the file without strip")
	}
	var b bytes.Buffer
	if err := Strip(&b, strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	if r := wg.Run(t, "", nil, "setconf", "wg0", write(t, b.String())); r.Code != 0 {
		t.Fatalf("wg exits %d: %s", r.Code, r.Stderr)
	}
	f := parse(t, text, Quick)
	want, err := f.Device(t.Context(), NewResolver(ResolverConfig{}))
	if diff := cmp.Diff([]config.Device{want}, dev.TakeChanges(), exact); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

func TestStripMatchesWGQuick(t *testing.T) {
	if _, err := exec.LookPath("wg-quick"); err != nil {
		t.Skip("needs wg-quick(8): ", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, without which wg-quick calls sudo")
	}
	for _, text := range []string{
		strings.Replace(strings.TrimPrefix(full, "\ufeff"), ownLines, "", 1), "", "\n\n", "[Interface]", "MTU = 1\n[Interface]\nMTU = 2\n[Peer]\nMTU = 3\n",
		" [interface] # c\n\tAddress=1\n  ListenPort = 5  \n address = 2 # c\n#MTU = 5\nMTU\nPreUp = a = b\n",
		"[Inter face]\nMTU = 1\n[Interface]x\nMTU = 2\n", "[Interface]\r\nMTU = 1\r\nListenPort = 1\r\n", "a\\\nb\\n\n*\n",
		"[Interface]\nSaveConfig = true\nDNS = 1.1.1.1,x\nTable=auto\nPostDown = x\n[Interface]\nPreDown=y\n[peer]\nPreDown=z",
	} {
		out, err := exec.Command("wg-quick", "strip", write(t, text)).Output()
		if err != nil {
			t.Fatalf("%q: got error %v, want none", text, err)
		}
		var b bytes.Buffer
		if err := Strip(&b, strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(out), b.String()); diff != "" {
			t.Errorf("%q (-wg-quick +ropewalk):\n%s", text, diff)
		}
	}
}
