// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

var exact = cmp.Options{
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

var (
	privateKey = noise.PrivateKey{1, 2, 3}
	publicKey  = noise.PublicKey{4, 5, 6}
	psk        = noise.PresharedKey{7, 8, 9}
)

func parse(t testing.TB, text string, dialect Dialect) *File {
	t.Helper()
	f, err := Parse("wg0.conf", strings.NewReader(text), dialect)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// ownLines are those that wg-quick does not have.
const ownLines = "SPREAD = Off # ours\n lanes=4\nSpreadPorts = 2000-3000\nUnderlay = UDP\nMetrics = [::1]:9820\nSpread=\n"

// full has every key, in odd but legal spellings.
var full = "\ufeff# a comment\r\n [Interface] # here too\r\n" +
	"privatekey = " + privateKey.Base64() + "\r\n" +
	"ListenPort=5 1 8 2 0\n FWMARK = 0xca6c # hex\n" +
	"Address = 10.0.0.2/24, fd00::2/64\nADDRESS = 10.9.9.9\n" +
	"DNS = 192.0.2.53, corp.example [fd00::53]:5335\nMTU = 1420\nTable = off\nSaveConfig = TRUE\n" +
	ownLines + "PreUp = echo 'a  b' = c # comment\nPostUp=one\nPostUp =  two  \nPreDown = x\nPostDown = y\nPreUp =\n" +
	"[PEER]\nPublicKey=" + publicKey.Base64() + "\nPresharedKey = " + psk.Base64() + "\n" +
	"AllowedIPs = 10.0.0.1/24, fd00::/64\nallowedips = 192.0.2.1\nEndpoint = vpn.example.com : 51820\nPersistentKeepalive = OFF\n" +
	"[Peer]\nPublicKey = " + publicKey.Base64() + "\nAllowedIPs = +10.1.0.0/16, -10.2.0.0/16, 10.3.0.0/16\nEndpoint = ::1:5"

func TestParseReadsEveryKey(t *testing.T) {
	want := &File{
		Interface: Interface{
			PrivateKey: &privateKey, ListenPort: new(uint16(51820)), FwMark: new(uint32(0xca6c)),
			Address: []netip.Prefix{
				netip.MustParsePrefix("10.0.0.2/24"), netip.MustParsePrefix("fd00::2/64"), netip.MustParsePrefix("10.9.9.9/32"),
			},
			DNS:       []Nameserver{{Addr: netip.MustParseAddr("192.0.2.53")}, {netip.MustParseAddr("fd00::53"), 5335}},
			DNSSearch: []string{"corp.example"}, MTU: 1420, Table: "off", SaveConfig: true,
			PreUp: []string{"echo 'a  b' = c"}, PostUp: []string{"one", "two"}, PreDown: []string{"x"}, PostDown: []string{"y"},
			Settings: config.Settings{Spread: new(config.SpreadOff), SpreadPorts: &spread.Ports{First: 2000, Last: 3000}, Underlay: new(config.UnderlayUDP)}, Lanes: 4, Metrics: "[::1]:9820",
		},
		Peers: []Peer{{
			PublicKey: publicKey, PresharedKey: &psk, Endpoint: "vpn.example.com:51820", Keepalive: new(uint16(0)),
			AllowedIPs: []config.AllowedIP{
				{Prefix: netip.MustParsePrefix("10.0.0.0/24")},
				{Prefix: netip.MustParsePrefix("fd00::/64")},
				{Prefix: netip.MustParsePrefix("192.0.2.1/32")},
			},
		}, {
			PublicKey: publicKey, Endpoint: "::1:5", ModifyAllowedIPs: true,
			AllowedIPs: []config.AllowedIP{
				{Prefix: netip.MustParsePrefix("10.1.0.0/16")},
				{Prefix: netip.MustParsePrefix("10.2.0.0/16"), Remove: true},
				{Prefix: netip.MustParsePrefix("10.3.0.0/16")},
			},
		}},
		Warnings: []string{"Warning: AllowedIP has nonzero host part: 10.0.0.1/24"},
	}
	if diff := cmp.Diff(want, parse(t, full, Quick), exact); diff != "" {
		t.Error(diff)
	}
}

func TestErrorsNameFileLineKeyAndWant(t *testing.T) {
	peer := "[Peer]\nPublicKey = " + publicKey.Base64() + "\n"
	for _, tc := range []struct{ in, want string }{
		{peer + "PersistentKeepalive = x", `wg0.conf:3: PersistentKeepalive: want 0-65535 or "off", got "x"`},
		{peer + "persistentkeepalive = 65536", `wg0.conf:3: PersistentKeepalive: want 0-65535 or "off", got "65536"`},
		{"[Interface]\nListenPort = 65536", `wg0.conf:2: ListenPort: want 0-65535 or a UDP service, got "65536"`},
		{"[Interface]\nListenPort =", `wg0.conf:2: ListenPort: want a value`},
		{"[Interface]\nListenPort", `wg0.conf:2: ListenPort: want a value`},
		{"[Interface]\nFwMark = 0X1", `wg0.conf:2: FwMark: want 0-0xffffffff or "off", got "0X1"`},
		{"[Interface]\nFwMark = 0x", `wg0.conf:2: FwMark: want 0-0xffffffff or "off", got "0x"`},
		{"[Interface]\nPrivateKey = c2VjcmV0", `wg0.conf:2: PrivateKey: want a base64 key of 44 characters`},
		{"[Interface]\nNoise = 1", `wg0.conf:2: Noise: unknown key, want one of PrivateKey, ListenPort, FwMark`},
		{"[Interface]\nMTU = 1420", `wg0.conf:2: MTU: unknown key, want one of PrivateKey, ListenPort, FwMark`},
		{"[Interface]\nNoise", `wg0.conf:2: no "=", want a line such as ListenPort = 51820`},
		{"[Interface]\nListen\x00Port = 1", `wg0.conf:2: want text without NUL bytes`},
		{"ListenPort = 1", `wg0.conf:1: want [Interface] or [Peer] before this line`},
		{"junk", `wg0.conf:1: want [Interface] or [Peer] before this line`},
		{"#\n" + strings.Repeat("#", maxLine+1), `wg0.conf:2: longer than 16777216 bytes`},
		{"[Interface]\nFwMark\n" + strings.Repeat("#", maxLine+1), "wg0.conf:2: FwMark: want a value\nwg0.conf:3: longer than 16777216 bytes"},
		{"[Wireguard]", `wg0.conf:1: want [Interface] or [Peer], got "[Wireguard]"`},
		{"[Interface]\rPrivateKey = secret", `wg0.conf:1: want [Interface] or [Peer], got "[Interface]"`},
		{"\n[Peer]\nEndpoint = 192.0.2.1:1", `wg0.conf:2: want a PublicKey in this [Peer]`},
		{"[Peer]\n" + peer, `wg0.conf:1: want a PublicKey in this [Peer]`},
		{peer + "Endpoint = 192.0.2.1", `wg0.conf:3: Endpoint: want address:port, [IPv6 address]:port or name:port, got "192.0.2.1"`},
		{peer + "Endpoint = [::1]5", `wg0.conf:3: Endpoint: want address:port, [IPv6 address]:port or name:port, got "[::1]5"`},
		{peer + "ListenPort = 1", `wg0.conf:3: ListenPort: belongs in [Interface]`},
		{"[Interface]\nendpoint = 192.0.2.1:1", `wg0.conf:2: Endpoint: belongs in [Peer]`},
		{peer + "Address = 10.0.0.1/24", `wg0.conf:3: Address: unknown key, want one of PublicKey, PresharedKey, AllowedIPs, Endpoint, PersistentKeepalive`},
		{
			peer + "AllowedIPs = ::/0, 10.0.0.0/33",
			`wg0.conf:3: AllowedIPs: want addresses with prefix lengths, such as 10.0.0.0/24 or fd00::/64, got "10.0.0.0/33"`,
		},
	} {
		f, err := Parse("wg0.conf", strings.NewReader(tc.in), WG)
		if err == nil || err.Error() != tc.want || f != nil {
			t.Errorf("%.200q:\n got %v\nwant %s", tc.in, err, tc.want)
		}
	}
}

func TestParseReportsAllMistakesAtOnce(t *testing.T) {
	_, err := Parse("f", strings.NewReader("[Interface]\nListenPort = x\n[Peer]\nEndpoint = y\n"), WG)
	list, ok := errors.AsType[Error](err)
	if !ok || len(list) != 3 {
		t.Fatal(err)
	}
	if line, ok := errors.AsType[*LineError](err); !ok || line.Key != "ListenPort" || line.Line != 2 {
		t.Error(line)
	}
	_, err = Parse("f", strings.NewReader(strings.Repeat("x\n", 1000)), WG)
	if list, _ := errors.AsType[Error](err); len(list) != maxErrors {
		t.Errorf("got %d faults, want %d", len(list), maxErrors)
	}
}

func TestInvalidQuickValuesAreReported(t *testing.T) {
	for _, line := range []string{
		"Address = 10.0.0.1/33", "Address = host", "DNS = 1.2.3", "DNS = 1.2.3.4:0", "DNS = 1.2.3.4:dns", "DNS = fd00::x", "MTU = 67", "MTU = many", "Table = a b",
		"SaveConfig = yes", "Pre Up = x",
	} {
		if _, err := Parse("f", strings.NewReader("[Interface]\n"+line), Quick); err == nil {
			t.Errorf("%q is accepted", line)
		}
	}
	if _, err := Parse("f", strings.NewReader("[Peer]\nPublicKey="+publicKey.Base64()+"\nMTU=1420"), Quick); err == nil {
		t.Error("MTU is accepted in [Peer]")
	}
}

// TestMTUIsReadAsByIP: wg-quick gives it to `ip link set mtu`, for which a leading 0 is octal and 0x hexadecimal.
func TestMTUIsReadAsByIP(t *testing.T) {
	for text, want := range map[string]int{"1420": 1420, "01420": 784, "02614": 1420, "0x5dc": 1500, "+1400": 1400} {
		f, err := Parse("f", strings.NewReader("[Interface]\nMTU = "+text), Quick)
		if err != nil || f.Interface.MTU != want {
			t.Errorf("%s: got %+v, %v, want %d", text, f, err, want)
		}
	}
	for _, text := range []string{"089", "0b10110", "1_420", "-1420", "0x", "1420x"} {
		if _, err := Parse("f", strings.NewReader("[Interface]\nMTU = "+text), Quick); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}

func TestSmallMTUIsAMistakeWithIPv6Addresses(t *testing.T) {
	want := `f:2: MTU: want 1280 or more with the IPv6 Address fd00::1/64, got "1279"`
	if _, err := Parse("f", strings.NewReader("[Interface]\nMTU = 1279\nAddress = 10.0.0.1/24, fd00::1/64"), Quick); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	const peer = "[Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n"
	want = `f:2: MTU: want 1280 or more with the IPv6 AllowedIPs fd00::/64, got "1279"`
	if _, err := Parse("f", strings.NewReader("[Interface]\nMTU = 1279\n"+peer+"AllowedIPs = 10.0.0.0/8, fd00::/64"), Quick); err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
	for _, lines := range []string{"MTU = 1279\nAddress = 10.0.0.1/24", "MTU = 1279\nTable = off\n" + peer + "AllowedIPs = fd00::/64", "MTU = 1280\nAddress = fd00::1/64", "Address = fd00::1/64"} {
		if _, err := Parse("f", strings.NewReader("[Interface]\n"+lines), Quick); err != nil {
			t.Errorf("%q: got %v, want no error", lines, err)
		}
	}
}

func TestInvalidRopewalkValuesAreReported(t *testing.T) {
	for in, want := range map[string]string{
		"Spread = sometimes":        `wg0.conf:2: Spread: want "auto", "off" or "on", got "sometimes"`,
		"Underlay = dpdk":           `wg0.conf:2: Underlay: want "auto", "udp" or "xdp", got "dpdk"`,
		"Metrics = 9820":            `wg0.conf:2: Metrics: want address:port, [IPv6 address]:port or name:port, got "9820"`,
		"Metrics = ::1:9820":        `wg0.conf:2: Metrics: want address:port, [IPv6 address]:port or name:port, got "::1:9820"`,
		"Metrics = host:http":       `wg0.conf:2: Metrics: want address:port, [IPv6 address]:port or name:port, got "host:http"`,
		"Metrics = my host:9":       `wg0.conf:2: Metrics: want address:port, [IPv6 address]:port or name:port, got "my host:9"`,
		"lanes = 0":                 `wg0.conf:2: Lanes: want 1-256, got "0"`,
		"Lanes = 257":               `wg0.conf:2: Lanes: want 1-256, got "257"`,
		"Lanes = all":               `wg0.conf:2: Lanes: want 1-256, got "all"`,
		"spreadports = 61000":       `wg0.conf:2: SpreadPorts: want two ports from 1024 on, such as 61000-61999, got "61000"`,
		"SpreadPorts = 80-90":       `wg0.conf:2: SpreadPorts: want two ports from 1024 on, such as 61000-61999, got "80-90"`,
		"SpreadPorts = 61002-61001": `wg0.conf:2: SpreadPorts: want two ports from 1024 on, such as 61000-61999, got "61002-61001"`,

		"SpreadPorts = 2000-3000\nListenPort = 2500":                    `wg0.conf:2: SpreadPorts: want a range without the ListenPort, 2500, got "2000-3000"`,
		"ListenPort = 2500\nSpreadPorts = 1-2\nSpreadPorts = 2000-2500": "wg0.conf:3: SpreadPorts: want two ports from 1024 on, such as 61000-61999, got \"1-2\"\nwg0.conf:4: SpreadPorts: want a range without the ListenPort, 2500, got \"2000-2500\"",
		"[Peer]\nPublicKey=" + publicKey.Base64() + "\nSpread = on":     `wg0.conf:4: Spread: belongs in [Interface]`,
	} {
		f, err := Parse("wg0.conf", strings.NewReader("[Interface]\n"+in), Quick)
		if err == nil || err.Error() != want || f != nil {
			t.Errorf("%q:\n got %v\nwant %s", in, err, want)
		}
	}
	for _, in := range []string{"ListenPort = 61000", "SpreadPorts = 2000-3000\nListenPort = 0", "SpreadPorts = 2000-3000\nListenPort = 3001"} {
		if _, err := Parse("wg0.conf", strings.NewReader("[Interface]\n"+in), Quick); err != nil {
			t.Errorf("%q: got error %v, want none", in, err)
		}
	}
}

func TestRopewalkKeysAreUnknownInWGDialect(t *testing.T) {
	for _, line := range []string{"Spread = on", "Lanes = 4", "SpreadPorts = 2000-3000", "Underlay = udp", "Metrics = :9820"} {
		if _, err := Parse("f", strings.NewReader("[Interface]\n"+line), WG); err == nil {
			t.Errorf("%q is accepted", line)
		}
	}
}

func TestErrorsNeverQuoteASecret(t *testing.T) {
	secret := "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk" // no padding
	peer := "[Peer]\nPublicKey = " + publicKey.Base64() + "\n"
	for _, in := range []string{
		"[Interface]\nPrivateKey = " + secret, "[Interface]\n" + secret + "=", "[Interface]\nPrivatKey = " + secret,
		secret, peer + "PresharedKey = " + secret, peer + "PrivateKey = " + secret,
		secret + "= x", "[Interface]\n" + secret + " = PrivateKey", "[Interface]\n" + secret[:10] + "=", "[Interface]\n" + secret[:10] + "==",
		"[Interface]\n" + secret[:10], "[Interface]\nPrivateKey" + secret + "=", "[Interface]\nPrivateKey: " + secret + "=",
		"[Interface]\nPrivateKey " + secret[:3] + " = x", "[Interface]\n" + secret[:8] + " = x",
	} {
		if _, err := Parse("f", strings.NewReader(in), Quick); err == nil || strings.Contains(err.Error(), "yAnz") {
			t.Errorf("%.20q: got error %v, want an error", in, err)
		}
	}
}

func TestParseLimitsLineAndFileSize(t *testing.T) {
	for _, end := range []string{"", "\n"} {
		parse(t, strings.Repeat("#", maxLine)+end, WG)
	}
	if _, err := Parse("f", strings.NewReader(strings.Repeat("#", maxLine+1)), WG); err == nil {
		t.Error("an endless line is accepted")
	}
	if testing.Short() { // the race detector, which has nothing to find here, takes minutes
		return
	}
	if _, err := Parse("f", &endless{}, WG); err == nil {
		t.Error("an endless file is accepted")
	}
}

// endless is an infinite comment.
type endless struct{}

func (*endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '#'
	}
	b[len(b)-1] = '\n'
	return len(b), nil
}

func FuzzParse(f *testing.F) {
	f.Add(full)
	f.Add("[Interface]\nFwMark=off\n[Peer]\nPublicKey=" + publicKey.Base64() + "\nAllowedIPs=::1.2.3.4/128,::ffff:1.2.3.4/97\nEndpoint=[fe80::1%lo]:5")
	f.Add("[Interface]\nAddress=::1.2.3.4\nDNS=fe80::1%eth0,x\nPostUp=\xff\xfe\nTable=\xff\n")
	f.Fuzz(func(t *testing.T, in string) {
		file, err := Parse("f", strings.NewReader(in), Quick)
		if err != nil {
			return
		}
		file.Warnings, file.Repeated = nil, nil
		var b bytes.Buffer
		if err := file.Format(&b); err != nil {
			t.Fatal(err)
		}
		again, err := Parse("again", &b, Quick)
		if err != nil {
			t.Fatalf("parsing the output of Format: %v", err)
		}
		if diff := cmp.Diff(file, again, exact); diff != "" {
			t.Error(diff)
		}
	})
}

func TestDaemonDialectHasOnlyKeysOfRunningTunnel(t *testing.T) {
	f, err := Parse("x", strings.NewReader("[Interface]\nListenPort = 5\nUnderlay = udp\nSpreadPorts = 62000-62099\n[Peer]\nPublicKey = "+publicKey.Base64()), Daemon)
	if err != nil || *f.Interface.Underlay != config.UnderlayUDP || f.Interface.SpreadPorts == nil || len(f.Peers) != 1 {
		t.Errorf("got %+v, %v, want the port, the underlay, the spread ports and a peer", f, err)
	}
	for _, line := range []string{"Address = 10.0.0.1/24", "MTU = 1400", "PostUp = reboot", "Lanes = 2", "Metrics = :1"} {
		_, err := Parse("x", strings.NewReader("[Interface]\n"+line), Daemon)
		if err == nil || !strings.Contains(err.Error(), "x:2: ") || !strings.Contains(err.Error(), "unknown key") {
			t.Errorf("%s: got error %v, want an unknown key in line 2", line, err)
		}
	}
}
