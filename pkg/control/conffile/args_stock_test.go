// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// keyFiles are key files, valid and invalid, by name.
func keyFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	good := privateKey.Base64()
	for name, text := range map[string]string{
		"good": good + "\n", "bare": good, "spaced": good + " \t\n\n", "empty": "", "short": good[:43], "newline": "\n",
		"double": good + "\n" + good + "\n", "junk": good[:42] + "!=\n", "lead": " " + good, "zero": good + "\x00",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// setWords are arguments for both programs, of a device and of a peer.
func setWords(dir string) [][]string {
	var all [][]string
	add := func(word string, values ...string) {
		for _, v := range values {
			all = append(all, []string{word, v})
		}
	}
	add("listen-port", "0", "51820", "65535", "-1", "http", "", "5 1", "0x10", "010")
	add("fwmark", "0", "off", "OFF", "0xca6c", "0XFF", "4294967295", "4294967296", "-1", "0x", "", "off ")
	keys := []string{"good", "bare", "spaced", "empty", "short", "newline", "double", "junk", "lead", "zero", "absent", ""}
	for _, k := range keys {
		add("private-key", filepath.Join(dir, k))
	}
	add("peer", publicKey.Base64(), "x", "", publicKey.Base64()+"=", privateKey.Base64())
	all = append(all, []string{"listen-port"}, []string{"remove"}, []string{"Peer", publicKey.Base64()}, []string{"peer"},
		[]string{"endpoint", "1.2.3.4:5"}, []string{"listen-port", "1", "fwmark", "2", "listen-port", "3"}, []string{"nonsense"})
	peer := func(words ...string) { all = append(all, append([]string{"peer", publicKey.Base64()}, words...)) }
	for _, v := range []string{
		"10.0.0.1/24", "10.0.0.0/8,fd00::/64", "10.0.0.1", "", " ", ",", "10.0.0.0/8,", "10.0.0.0/33", "1 0.0.0.0/8", "x", "10.0.0.0/8, fd00::1",
	} {
		peer("allowed-ips", v)
	}
	for _, v := range []string{"1.2.3.4:5", "[::1]:5", "[fe80::1%lo]:5", "::1:5", "1.2.3.4", "", "1.2.3.4:http", "[::1]"} {
		peer("endpoint", v)
	}
	for _, v := range []string{"off", "0", "25", "65535", "65536", "", "x", "Off"} {
		peer("persistent-keepalive", v)
	}
	for _, k := range keys {
		peer("preshared-key", filepath.Join(dir, k))
	}
	peer("remove")
	peer("remove", "allowed-ips", "10.0.0.0/8", "allowed-ips", "10.1.0.0/16")
	peer("listen-port", "5")
	peer("endpoint")
	peer("peer", privateKey.Base64(), "persistent-keepalive", "7", "peer", publicKey.Base64(), "remove")
	return all
}

func TestSetAgreesWithStockWG(t *testing.T) {
	var dev uapitest.Device
	dir := uapitest.NewDir(t)
	wg := uapitest.NewStock(t, dir)
	uapitest.Serve(t, dir, "wg0", &dev)
	for _, words := range setWords(keyFiles(t)) {
		r := wg.Run(t, "", nil, append([]string{"set", "wg0"}, words...)...)
		changes := dev.TakeChanges()
		got, warnings, err := ParseArgs(t.Context(), words, NewResolver(ResolverConfig{}))
		if (err == nil) != (r.Code == 0) {
			t.Errorf("%q:\nwg exits %d, %sropewalk: %v", words, r.Code, r.Stderr, err)
			continue
		}
		if err != nil {
			continue
		}
		if diff := cmp.Diff(changes, []config.Device{got}, exact); diff != "" {
			t.Errorf("%q (-wg +ropewalk):\n%s", words, diff)
		}
		if diff := cmp.Diff(r.Stderr, strings.Join(append(warnings, ""), "\n")); diff != "" {
			t.Errorf("%q: warnings (-wg +ropewalk):\n%s", words, diff)
		}
	}
}

// someFile returns a random file with some of the peers, and some new ones.
func someFile(r *rand.Rand, peers []config.PeerStatus) string {
	var b strings.Builder
	b.WriteString("[Interface]\n")
	if r.IntN(2) == 0 {
		fmt.Fprintf(&b, "ListenPort = %d\nPrivateKey = %s\n", r.IntN(1<<16), privateKey.Base64())
	}
	keys := []noise.PublicKey{publicKey}
	for i := range peers {
		keys = append(keys, peers[i].PublicKey)
	}
	r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, key := range keys[:r.IntN(len(keys)+1)] {
		fmt.Fprintf(&b, "[Peer]\nPublicKey = %s\n", key.Base64())
		for _, line := range []string{"PresharedKey = " + psk.Base64(), "AllowedIPs = 10.0.0.0/8", "PersistentKeepalive = 9", "Endpoint = 1.2.3.4:5"} {
			if r.IntN(2) == 0 {
				b.WriteString(line + "\n")
			}
		}
	}
	return b.String()
}

func TestSyncAgreesWithStockWG(t *testing.T) {
	var dev uapitest.Device
	dir := uapitest.NewDir(t)
	wg := uapitest.NewStock(t, dir)
	uapitest.Serve(t, dir, "wg0", &dev)
	r := rand.New(rand.NewPCG(9, 10))
	for range 60 {
		st := uapitest.RandomStatus(r, "wg0", time.Now())
		dev.SetStatus(st)
		text := someFile(r, st.Peers)
		path := write(t, text)
		if res := wg.Run(t, "", nil, "syncconf", "wg0", path); res.Code != 0 {
			t.Fatalf("wg exits %d: %s\n%s", res.Code, res.Stderr, text)
		}
		f, err := Load(path, WG)
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.Sync(t.Context(), NewResolver(ResolverConfig{}), st.Peers)
		want := dev.TakeChanges()
		for i := range got.Peers { // older versions keep preshared keys that the file does not have
			if psk := got.Peers[i].PresharedKey; psk != nil && psk.IsZero() && want[0].Peers[i].PresharedKey == nil {
				got.Peers[i].PresharedKey = nil
			}
		}
		if diff := cmp.Diff(want, []config.Device{got}, exact); diff != "" || err != nil {
			t.Fatalf("%d peers, %v (-wg +ropewalk):\n%s\n%s", len(st.Peers), err, diff, text)
		}
	}
}
