// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Keys for files in tests.
const (
	testPrivateKey = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk="
	testPeerA      = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
	testPeerB      = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0="
)

// parse returns the interface that a file with these lines describes. "KEY", "A" and "B" stand for keys.
func parse(t *testing.T, name, text string) (Interface, config.Device) {
	t.Helper()
	text = strings.NewReplacer("$KEY", testPrivateKey, "$A", testPeerA, "$B", testPeerB).Replace(text)
	file, err := conffile.Parse(name+".conf", strings.NewReader(text), conffile.Quick)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := file.Device(t.Context(), conffile.NewResolver(conffile.ResolverConfig{}))
	if err != nil {
		t.Fatal(err)
	}
	return Interface{Name: name, Path: "/etc/wireguard/" + name + ".conf", File: file}, dev
}

func nftables() map[hostnet.Family]Firewall { return Tools{Nft: "/sbin/nft"}.firewalls() }

// shown returns the commands that steps echo, without comments.
func shown(steps []Step) []string {
	lines := Commands(steps)
	for i := range lines {
		lines[i], _, _ = strings.Cut(lines[i], " #")
	}
	return lines
}

func TestPlanEchoesTheCommandsOfWgQuick(t *testing.T) {
	facts := Facts{EndpointMTUs: []int{1400}, DefaultMTU: 1500, FreeTable: 51820, Firewalls: nftables()}
	with := func(change func(*Facts)) Facts { f := facts; change(&f); return f }
	for _, c := range []struct {
		name, file string
		facts      Facts
		want       string
	}{
		{
			name: "a peer", facts: facts,
			file: "[Interface]\nPrivateKey=$KEY\nAddress=10.9.0.1/24\n[Peer]\nPublicKey=$A\nAllowedIPs=10.9.0.2/32, 10.8.0.0/16\n",
			want: `
ropewalk run wg0
wg setconf wg0 <(ropewalk strip /etc/wireguard/wg0.conf)
ip -4 address add 10.9.0.1/24 dev wg0
ip link set mtu 1320 up dev wg0
ip -4 route add 10.9.0.2/32 dev wg0
ip -4 route add 10.8.0.0/16 dev wg0`,
		},
		{
			name: "ropewalk keys", facts: facts,
			file: "[Interface]\nSpreadPorts=2000-3000\nLanes=4\nUnderlay=udp\nMetrics=:9820\nSpread=OFF\n",
			want: `
ropewalk run --lanes 4 --spread off --spread-ports 2000-3000 --underlay udp --metrics :9820 wg0
wg setconf wg0 <(ropewalk strip /etc/wireguard/wg0.conf)
ip link set mtu 1320 up dev wg0`,
		},
		{
			name: "default routes of both families", facts: facts,
			file: "[Interface]\nAddress=10.9.0.1/32,fd09::1/128\n[Peer]\nPublicKey=$A\nAllowedIPs=0.0.0.0/0,::/0\n",
			want: `
ropewalk run wg0
wg setconf wg0 <(ropewalk strip /etc/wireguard/wg0.conf)
ip -4 address add 10.9.0.1/32 dev wg0
ip -6 address add fd09::1/128 dev wg0
ip link set mtu 1320 up dev wg0
wg set wg0 fwmark 51820
ip -6 route add ::/0 dev wg0 table 51820
ip -6 rule add not fwmark 51820 table 51820
ip -6 rule add table main suppress_prefixlength 0
nft -f -
ip -4 route add 0.0.0.0/0 dev wg0 table 51820
ip -4 rule add not fwmark 51820 table 51820
ip -4 rule add table main suppress_prefixlength 0
sysctl -q net.ipv4.conf.all.src_valid_mark=1
nft -f -`,
		},
		{
			name: "fwmark in the file, src_valid_mark set, iptables", file: "[Interface]\nFwMark=0x2a\n[Peer]\nPublicKey=$A\nAllowedIPs=0.0.0.0/0\n",
			facts: with(func(f *Facts) {
				f.SrcValidMark, f.Firewalls = true, Tools{IptablesRestore: "/sbin/iptables-restore"}.firewalls()
			}),
			want: `
ropewalk run wg0
wg setconf wg0 <(ropewalk strip /etc/wireguard/wg0.conf)
ip link set mtu 1320 up dev wg0
ip -4 route add 0.0.0.0/0 dev wg0 table 42
ip -4 rule add not fwmark 42 table 42
ip -4 rule add table main suppress_prefixlength 0
iptables-restore -n`,
		},
		{
			name: "Table=off", facts: facts,
			file: "[Interface]\nTable=off\n[Peer]\nPublicKey=$A\nAllowedIPs=0.0.0.0/0,10.0.0.0/8\n",
			want: `
ropewalk run wg0
wg setconf wg0 <(ropewalk strip /etc/wireguard/wg0.conf)
ip link set mtu 1320 up dev wg0`,
		},
		{
			name: "table in the file", facts: with(func(f *Facts) { f.Table = 4711 }),
			file: "[Interface]\nAddress=10.9.0.1/24\nTable=vpn\n[Peer]\nPublicKey=$A\nAllowedIPs=0.0.0.0/0,10.9.0.0/24,::/0\n",
			want: `
ropewalk run wg0
wg setconf wg0 <(ropewalk strip /etc/wireguard/wg0.conf)
ip -4 address add 10.9.0.1/24 dev wg0
ip link set mtu 1320 up dev wg0
ip -4 route add 10.9.0.0/24 dev wg0 table vpn
ip -6 route add ::/0 dev wg0 table vpn
ip -4 route add 0.0.0.0/0 dev wg0 table vpn`,
		},
		{
			name: "DNS and hooks", facts: with(func(f *Facts) { f.DNSPrefix = "tun." }),
			file: "[Interface]\nMTU=1280\nDNS=10.9.0.53, corp.example\nPreUp=not here\nPostUp=echo %i %i\nPostUp=true\nPreDown=nor here\n",
			want: `
ropewalk run wg0
wg setconf wg0 <(ropewalk strip /etc/wireguard/wg0.conf)
ip link set mtu 1280 up dev wg0
resolvconf -a tun.wg0 -m 0 -x
echo wg0 wg0
true`,
		},
		{
			name: "search domains without servers", facts: facts,
			file: "[Interface]\nMTU=1280\nDNS=corp.example\n",
			want: `
ropewalk run wg0
wg setconf wg0 <(ropewalk strip /etc/wireguard/wg0.conf)
ip link set mtu 1280 up dev wg0`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			i, dev := parse(t, "wg0", c.file)
			got := shown(Plan(i, dev, c.facts))
			if diff := cmp.Diff(strings.Split(c.want, "\n")[1:], got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTunnelMTUIsFromLargestPathMTU(t *testing.T) {
	for _, c := range []struct {
		file  string
		facts Facts
		want  int
	}{
		{"MTU=1234", Facts{EndpointMTUs: []int{9000}}, 1234},
		{"", Facts{EndpointMTUs: []int{9000, 1400, 1500}, DefaultMTU: 1300}, 8920},
		{"", Facts{DefaultMTU: 9000}, 8920},
		{"", Facts{}, 1420},
		{"Address=10.9.0.1/24", Facts{EndpointMTUs: []int{1280}}, 1200},
		{"Address=fd09::1/64", Facts{EndpointMTUs: []int{1280}}, 1280},
		{"Address=fd09::1/64", Facts{DefaultMTU: 1300}, 1280},
		{"[Peer]\nPublicKey=$A\nAllowedIPs=fd09::/64", Facts{DefaultMTU: 1300}, 1280},
		{"[Peer]\nPublicKey=$A\nAllowedIPs=::/0", Facts{DefaultMTU: 1300}, 1280},
		{"Table=off\n[Peer]\nPublicKey=$A\nAllowedIPs=::/0", Facts{DefaultMTU: 1300}, 1220},
	} {
		i, dev := parse(t, "wg0", "[Interface]\n"+c.file+"\n")
		if got := settingsOf(&i.File.Interface, Plan(i, dev, c.facts)).MTU; got != c.want {
			t.Errorf("%q, %+v: got %d, want %d", c.file, c.facts, got, c.want)
		}
	}
}

func TestPrefixBelongsToLastPeerThatListsIt(t *testing.T) {
	_, dev := parse(t, "wg0", `[Interface]
PrivateKey=$KEY
[Peer]
PublicKey=$A
AllowedIPs=10.0.0.0/8,10.1.0.0/16
[Peer]
PublicKey=$B
AllowedIPs=10.1.0.0/16,fd00::/8
[Peer]
PublicKey=$A
AllowedIPs=10.2.0.0/16
`)
	dev.Peers = append(dev.Peers, config.Peer{
		PublicKey:  dev.PrivateKey.Public(),
		AllowedIPs: []config.AllowedIP{{Prefix: netip.MustParsePrefix("192.168.0.0/16")}},
	})
	want := "[10.2.0.0/16 10.1.0.0/16 fd00::/8]"
	if got := texts(allowedIPs(dev, nil)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	first, second := dev.Peers[0].PublicKey, dev.Peers[1].PublicKey
	dev.Peers = append(dev.Peers,
		config.Peer{PublicKey: first, AllowedIPs: []config.AllowedIP{
			{Prefix: netip.MustParsePrefix("fd00::/8"), Remove: true},
			{Prefix: netip.MustParsePrefix("10.2.0.0/16"), Remove: true},
		}})
	if got, want := texts(allowedIPs(dev, nil)), "[10.1.0.0/16 fd00::/8]"; got != want {
		t.Errorf("after removals: got %s, want %s", got, want)
	}
	dev.Peers = append(dev.Peers, config.Peer{PublicKey: second, Remove: true})
	if got, want := texts(allowedIPs(dev, nil)), "[]"; got != want {
		t.Errorf("after the peer's removal: got %s, want %s", got, want)
	}
}

func texts(prefixes []netip.Prefix) string {
	s := make([]string, len(prefixes))
	for i, p := range prefixes {
		s[i] = p.String()
	}
	return "[" + strings.Join(s, " ") + "]"
}

// TestRoutesAreSortedAsInWgQuick compares with the pipeline that wg-quick sorts prefixes with.
func TestRoutesAreSortedAsInWgQuick(t *testing.T) {
	sort, err := exec.LookPath("sort")
	if err != nil {
		t.Skip("needs sort(1)")
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	var lines []string
	peer := config.Peer{PublicKey: noise.PublicKey{1}}
	for range 300 {
		p := randomPrefix(rnd)
		peer.AllowedIPs = append(peer.AllowedIPs, config.AllowedIP{Prefix: p})
		if !slices.Contains(lines, p.String()) {
			lines = append(lines, p.String())
		}
	}
	want, err := pipe(context.Background(), strings.Join(lines, "\n")+"\n", sort, "-nr", "-k", "2", "-t", "/")
	if err != nil {
		t.Fatal(err)
	}
	got := allowedIPs(config.Device{Peers: []config.Peer{peer}}, nil)
	if diff := cmp.Diff("["+strings.Join(strings.Fields(want), " ")+"]", texts(got)); diff != "" {
		t.Error(diff)
	}
}

func randomPrefix(rnd *rand.Rand) netip.Prefix {
	b := make([]byte, 4+12*rnd.IntN(2))
	for i := range b {
		b[i] = byte(rnd.IntN(3) * rnd.IntN(100))
	}
	addr, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(addr, rnd.IntN(addr.BitLen()+1)).Masked()
}

func TestPlanDownHasTheOrderOfWgQuick(t *testing.T) {
	i, _ := parse(t, "wg0", "[Interface]\nDNS=10.9.0.53\n")
	want := []Step{
		removeRules{2, 51820}, removeRules{10, 51820}, stopDaemon{"wg0"}, unsetDNS{"tun.wg0"}, removeFirewall{"wg0"},
	}
	got := PlanDown(i, 51820, "tun.", false)
	if !slices.Equal(want, got) {
		t.Errorf("got %v, want %v", got, want)
	}
	i.File.Interface.DNS = nil
	if got := PlanDown(i, 0, "", false); !slices.Equal([]Step{stopDaemon{"wg0"}, removeFirewall{"wg0"}}, got) {
		t.Errorf("without routes and DNS: got %v", got)
	}
}
