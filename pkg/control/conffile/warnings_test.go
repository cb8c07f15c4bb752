// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"slices"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestOddSettingsAreReported(t *testing.T) {
	private := noise.PrivateKey{0: 8, 31: 64}
	own, other, third := private.Public().Base64(), noise.PublicKey{1}.Base64(), noise.PublicKey{2}.Base64()
	key := "[Interface]\nPrivateKey = " + private.Base64() + "\n"
	for name, tt := range map[string]struct {
		file string
		want []string
	}{
		"nothing wrong":  {key + "Address = fd00::1/64\nMTU = 1280\n[Peer]\nPublicKey = " + other + "\nAllowedIPs = 10.0.0.0/8", nil},
		"no peer":        {key, nil},
		"empty":          {"", []string{"neither a PrivateKey nor a [Peer]"}},
		"no private key": {"[Peer]\nPublicKey = " + other, []string{"no PrivateKey in [Interface]"}},
		"empty private key": {
			"[Interface]\nPrivateKey = " + noise.PrivateKey{}.Base64() + "\n[Peer]\nPublicKey = " + other, []string{"no PrivateKey in [Interface]"},
		},
		"private key by a command": {"[Interface]\nPostUp = wg set %i private-key /etc/wireguard/%i.key\n[Peer]\nPublicKey = " + other, nil},
		"own public key":           {key + "[Peer]\nPublicKey = " + own, []string{own + " has the public key of this interface"}},
		"spray without spread":     {key + "Spread = off\nSpray = auto", []string{"Spray = auto has no effect with Spread = off"}},
		"spray with spread":        {key + "Spread = on\nSpray = 4", nil},
		"neither":                  {key + "Spread = off\nSpray = off", nil},
		"duplicate peer": {
			key + strings.Repeat("[Peer]\nPublicKey = "+other+"\nAllowedIPs = 10.0.0.0/8\n", 3), []string{other + " has several [Peer] sections"},
		},
		"stolen prefixes": {
			key + "[Peer]\nPublicKey = " + other + "\nAllowedIPs = 10.0.0.1/8, ::/0\n[Peer]\nPublicKey = " + third + "\nAllowedIPs = 10.0.0.0/8, 0.0.0.0/0, -::/0",
			[]string{"10.0.0.0/8 of peer " + other + " goes to peer " + third},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Parse("wg0.conf", strings.NewReader(tt.file), Quick)
			expect.NoError(t, err)
			got := f.CheckSettings()
			if len(got) != len(tt.want) {
				t.Fatalf("got %q, want %q", got, tt.want)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], "Warning: ") || !strings.Contains(got[i], tt.want[i]) {
					t.Errorf("got %q, want %q", got[i], tt.want[i])
				}
				if strings.Contains(got[i], private.Base64()) {
					t.Error("the warning has the private key")
				}
			}
		})
	}
}

func TestRepeatedKeysAreReported(t *testing.T) {
	private := noise.PrivateKey{0: 8, 31: 64}.Base64()
	other, third := noise.PublicKey{1}.Base64(), noise.PublicKey{2}.Base64()
	f, err := Parse("wg0.conf", strings.NewReader("[Interface]\nMTU = 1400\nPostUp = a\nPostUp = b\nAddress = 10.0.0.1\nAddress = 10.0.0.2\nPrivateKey = "+private+
		"\n[Interface]\nmtu = 1300\nPrivateKey = "+private+"\n[Peer]\nPublicKey = "+other+"\nAllowedIPs = 10.0.0.1\nAllowedIPs = 10.0.0.2\n"+
		"[Peer]\nPublicKey = "+other+"\nPublicKey = "+third+"\n"), Quick)
	expect.NoError(t, err)
	want := []string{
		"Warning: wg0.conf:9: MTU is given again: it replaces the value before",
		"Warning: wg0.conf:10: PrivateKey is given again: it replaces the value before",
		"Warning: wg0.conf:17: PublicKey is given again: it replaces the value before, and another peer needs a [Peer] line of its own",
	}
	if got := f.CheckSettings(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
