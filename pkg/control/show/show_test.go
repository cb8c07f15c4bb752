// SPDX-License-Identifier: Apache-2.0

package show_test

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/golden"
)

// now is the time in the golden files.
var now = time.Unix(1_800_000_000, 0)

// sample returns a device with a peer for each form of each field.
func sample() config.Status {
	priv := noise.PrivateKey{31: 1}.Clamp()
	ago := func(seconds int64) time.Time { return now.Add(-time.Duration(seconds) * time.Second) }
	endpoint := func(s string, scope uint32) config.Endpoint {
		return config.Endpoint{AddrPort: netip.MustParseAddrPort(s), Scope: scope}
	}
	peers := []config.PeerStatus{
		{Keepalive: 65535},
		{LastHandshake: ago(60), RxBytes: 1023, TxBytes: 1024, Keepalive: 1},
		{LastHandshake: ago(0), Endpoint: endpoint("192.0.2.1:51820", 0), PresharedKey: noise.PresharedKey{0xaa}},
		{LastHandshake: ago(-5), Endpoint: endpoint("[2001:db8::1]:1", 0), TxBytes: 1<<40 - 1},
		{LastHandshake: ago(65), Endpoint: endpoint("[fe80::1]:2", 1), RxBytes: 1 << 62, Keepalive: 25},
		{LastHandshake: ago(2*365*86400 + 86400 + 3600), Endpoint: endpoint("[::ffff:192.0.2.1]:3", 0)},
		{LastHandshake: ago(60), AllowedIPs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}},
		{AllowedIPs: []netip.Prefix{netip.MustParsePrefix("::1.2.3.4/128")}, RxBytes: 5 << 30, TxBytes: 1},
	}
	for i := range peers {
		peers[i].PublicKey = noise.PublicKey{byte(i + 1)}
	}
	return config.Status{
		Name: "wg0", PrivateKey: priv, PublicKey: priv.Public(), ListenPort: 51820, FwMark: 0xca6c, Peers: peers,
	}
}

// TestPrettyMatchesGoldenFiles uses files that TestGoldenSampleMatchesStockWG compares with wg(8): run that after -update.
func TestPrettyMatchesGoldenFiles(t *testing.T) {
	golden.Check(t, "testdata/pretty.golden", pretty(t, show.Options{Now: now, ZoneName: zoneName}, sample(), config.Status{Name: "bare"}))
	golden.Check(t, "testdata/color.golden", pretty(t, show.Options{Now: now, ZoneName: zoneName, Color: true, ShowKeys: true}, sample()))
}

func TestSelectorsMatchGoldenFiles(t *testing.T) {
	for _, sel := range show.Selectors() {
		golden.Check(t, "testdata/"+string(sel)+".golden", selected(t, sample(), sel, false)+"--all--\n"+selected(t, sample(), sel, true)+
			"--bare--\n"+selected(t, config.Status{Name: "bare"}, sel, true))
	}
}

func TestPrettyHidesSecretsWithoutShowKeys(t *testing.T) {
	st := sample()
	secrets := []string{st.PrivateKey.Base64(), st.Peers[2].PresharedKey.Base64()}
	for _, secret := range secrets {
		if strings.Contains(pretty(t, show.Options{Now: now}, st), secret) {
			t.Error("a secret key is in the pretty form")
		}
		if !strings.Contains(pretty(t, show.Options{Now: now, ShowKeys: true}, st), secret) {
			t.Error("a secret key is missing with ShowKeys")
		}
	}
}

func TestPrettyDoesNotModifyPeers(t *testing.T) {
	st := sample()
	pretty(t, show.Options{Now: now}, st)
	if diff := cmp.Diff(sample().Peers[0].PublicKey, st.Peers[0].PublicKey); diff != "" {
		t.Error(diff)
	}
}

func TestColorFollowsModeThenNoColorThenTerminal(t *testing.T) {
	for _, tc := range []struct {
		mode              string
		noColor, terminal bool
		want              bool
	}{
		{"always", true, false, true},
		{"never", false, true, false},
		{"auto", false, true, true},
		{"auto", false, false, false},
		{"", true, true, false},
		{"nonsense", false, true, true},
	} {
		if got := show.UseColor(tc.mode, tc.noColor, tc.terminal); got != tc.want {
			t.Errorf("UseColor(%q, %v, %v) = %v", tc.mode, tc.noColor, tc.terminal, got)
		}
	}
}

func TestParseSelectorRejectsUnknownNames(t *testing.T) {
	for _, name := range []string{"", "Peers", "peer", "interfaces"} {
		if _, ok := show.ParseSelector(name); ok {
			t.Errorf("%q is accepted as a selector", name)
		}
	}
	if sel, ok := show.ParseSelector("dump"); !ok || sel != show.Dump {
		t.Error("dump is not accepted as a selector")
	}
}

func TestUnnamedZoneIsPrintedAsNumber(t *testing.T) {
	ep := config.Endpoint{AddrPort: netip.MustParseAddrPort("[fe80::1]:2"), Scope: 7}
	if got := show.Endpoint(ep, nil); got != "[fe80::1%7]:2" {
		t.Error(got)
	}
	if got := show.Endpoint(config.Endpoint{}, nil); got != "(none)" {
		t.Error(got)
	}
}

// failing is a writer that fails, such as on a full disk.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestWriteErrorsAreReported(t *testing.T) {
	if err := show.Pretty(failing{}, []config.Status{sample()}, show.Options{}); err == nil {
		t.Error("Pretty hid a write error")
	}
	if err := show.Select(failing{}, sample(), show.Dump, false, show.Options{}); err == nil {
		t.Error("Select hid a write error")
	}
	if err := show.Interfaces(failing{}, []string{"wg0"}); err == nil {
		t.Error("Interfaces hid a write error")
	}
}

// zoneName returns the name of lo, the only interface of a new network namespace.
func zoneName(index uint32) string {
	if index == 1 {
		return "lo"
	}
	return ""
}
