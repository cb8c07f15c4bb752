// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

var equality = cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateComparable(ProbeKeys{}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })}

// bpffs mounts a BPF file system that only the test's thread sees. The thread ends with the test's goroutine.
func bpffs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		runtime.UnlockOSThread()
		t.Skipf("needs root (CAP_SYS_ADMIN) to mount a bpffs: %v", err)
	}
	expect.NoError(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	expect.NoError(t, unix.Mount("bpf", dir, "bpf", 0, ""))
	t.Cleanup(func() { expect.NoError(t, unix.Unmount(dir, 0)) })
	return dir
}

func endpoint(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func TestStateReturnsStoredTunnelsAndPeers(t *testing.T) {
	s := loadSpreadFor(t, SpreadOptions{})
	tunnels := []Tunnel{
		{Port: 1, Lanes: []uint16{2, 60001, 60003}}, // the ports in between belong to another tunnel
		{Port: 51820, Lanes: ports(61000, 61999)},
		{Port: 51821, Lanes: []uint16{60000, 60002, 64000}},
		{Port: 65535, Lanes: ports(65000, 65534)},
	}
	for _, i := range []int{2, 0, 3, 1} {
		expect.NoError(t, s.SetTunnel(tunnels[i]))
	}
	peers := []Peer{
		{Tunnel: 51820, Endpoint: endpoint("192.0.2.1:51820"), Lanes: []uint16{61001, 61000, 61999}, Gather: between(50796, 51819)},
		{Tunnel: 51820, Endpoint: endpoint("192.0.2.1:51821")},
		{Tunnel: 51820, Endpoint: endpoint("[2001:db8::1]:1"), Gather: between(65535, 65535)},
		{Tunnel: 51821, Endpoint: endpoint("192.0.2.1:51820")},
	}
	for _, i := range []int{3, 1, 0, 2} {
		expect.NoError(t, s.SetPeer(peers[i]))
	}
	wantState(t, &s.State, tunnels, peers)

	tunnels[1] = Tunnel{Port: 51820, Lanes: ports(61000, 62999)}
	expect.NoError(t, s.SetTunnel(tunnels[1]))
	tunnels[3].Lanes = ports(65500, 65501)
	expect.NoError(t, s.SetTunnel(tunnels[3]))
	peers[0].Lanes, peers[0].Gather = []uint16{62999}, spread.Ports{}
	expect.NoError(t, s.SetPeer(peers[0]))
	peers[2].Gather = between(2, 3)
	mapped := peers[1]
	mapped.Endpoint, mapped.Lanes = endpoint("[::ffff:192.0.2.1]:51821"), []uint16{61000}
	expect.NoError(t, errors.Join(s.SetPeer(peers[2]), s.SetPeer(mapped)))
	peers[1].Lanes = mapped.Lanes
	wantState(t, &s.State, tunnels, peers)

	expect.NoError(t, errors.Join(s.DeletePeer(51820, peers[1].Endpoint), s.DeletePeer(51820, peers[1].Endpoint)))
	wantState(t, &s.State, tunnels, slices.Delete(slices.Clone(peers), 1, 2))
	expect.NoError(t, errors.Join(s.RemoveTunnel(51820), s.RemoveTunnel(51820), s.RemoveTunnel(0)))
	wantState(t, &s.State, []Tunnel{tunnels[0], tunnels[2], tunnels[3]}, peers[3:])
	expect.NoError(t, errors.Join(s.RemoveTunnel(1), s.RemoveTunnel(51821), s.RemoveTunnel(65535)))
	wantState(t, &s.State, nil, nil)
	if n := entries(t, s.maps.Sources); n != 0 {
		t.Errorf("%d sources left", n)
	}
}

func wantState(t *testing.T, s *State, tunnels []Tunnel, peers []Peer) {
	t.Helper()
	gotTunnels, err := s.Tunnels()
	expect.NoError(t, err)
	gotPeers, err := s.Peers()
	expect.NoError(t, err)
	if diff := cmp.Diff(tunnels, gotTunnels, equality); diff != "" {
		t.Errorf("tunnels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(peers, gotPeers, equality); diff != "" {
		t.Errorf("peers (-want +got):\n%s", diff)
	}
}

func entries(t *testing.T, m *ebpf.Map) (n int) {
	t.Helper()
	var key spreadSourceKey
	var value spreadSource
	for i := m.Iterate(); i.Next(&key, &value); {
		n++
	}
	return n
}

func TestStateRejectsInvalidTunnelsAndPeers(t *testing.T) {
	s := loadSpreadFor(t, SpreadOptions{})
	tunnels := []Tunnel{{Port: 51820, Lanes: ports(61000, 61999)}, {Port: 51821, Lanes: ports(62000, 62999)}}
	peers := []Peer{
		{Tunnel: 51820, Endpoint: endpoint(them4), Lanes: []uint16{61500}, Gather: between(61000, 61999)},
		{Tunnel: 51820, Endpoint: endpoint("203.0.113.2:7"), Lanes: []uint16{61500}},
	}
	expect.NoError(t, errors.Join(s.SetTunnel(tunnels[0]), s.SetTunnel(tunnels[1]), s.SetPeer(peers[0]), s.SetPeer(peers[1])))
	at := func(port uint16) netip.AddrPort { return endpoint(from(them4, port)) }
	for _, tt := range []struct {
		want string
		err  error
	}{
		{"port 0 is invalid", s.SetTunnel(Tunnel{})},
		{"port 0 is invalid", s.SetTunnel(Tunnel{Port: 1, Lanes: []uint16{2, 0}})},
		{"the listen port cannot be a lane port", s.SetTunnel(Tunnel{Port: 5, Lanes: ports(5, 9)})},
		{"UDP port 61999 is already a port of the tunnel with listen port 51820", s.SetTunnel(Tunnel{Port: 1, Lanes: ports(61999, 61999)})},
		{"UDP port 51821 is already a port of the tunnel with listen port 51821", s.SetTunnel(Tunnel{Port: 51820, Lanes: ports(51821, 61999)})},
		{"UDP port 61000 is already a port of the tunnel with listen port 51820", s.SetTunnel(Tunnel{Port: 61000})},
		{"peer 203.0.113.2:7 uses the lane port 61500, which is not among the new ones", s.SetTunnel(Tunnel{Port: 51820, Lanes: ports(61000, 61499)})},
		{"invalid endpoint", s.SetPeer(Peer{Tunnel: 51820})},
		{"invalid endpoint", s.SetPeer(Peer{Tunnel: 51820, Endpoint: at(0)})},
		{"65 lanes exceed the maximum of 64", s.SetPeer(Peer{Tunnel: 51820, Endpoint: at(9), Lanes: make([]uint16, 65)})},
		{"port 51822 does not belong to a tunnel", s.SetPeer(Peer{Tunnel: 51822, Endpoint: at(9)})},
		{"port 0 does not belong to a tunnel", s.SetPeer(Peer{Endpoint: at(9)})},
		{"port 62000 is not a lane port of that tunnel", s.SetPeer(Peer{Tunnel: 51820, Endpoint: at(9), Lanes: []uint16{61000, 62000}})},
		{"the listen port cannot be a lane port", s.SetPeer(Peer{Tunnel: 51820, Endpoint: at(9), Lanes: []uint16{51820}})},
		{"invalid range of lane ports to gather: 9-8", s.SetPeer(Peer{Tunnel: 51820, Endpoint: at(10), Gather: between(9, 8)})},
		{"contain the endpoint port", s.SetPeer(Peer{Tunnel: 51820, Endpoint: at(9), Gather: between(9, 9)})},
		{"already has the lane ports", s.SetPeer(Peer{Tunnel: 51820, Endpoint: at(9), Gather: between(100, 200)})},
		{"in the range of lane ports 61000-61999", s.SetPeer(Peer{Tunnel: 51820, Endpoint: at(61001)})},
		{"contain the endpoint port 7 of another", s.SetPeer(Peer{Tunnel: 51820, Endpoint: at(51821), Gather: between(1, 10)})},
	} {
		if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("error %v, want %q", tt.err, tt.want)
		}
	}
	wantState(t, &s.State, tunnels, []Peer{peers[1], peers[0]})
}

// TestRefusedPeersLeaveOthersSet: a peer chooses its own endpoint, so it must not decide about the others.
func TestRefusedPeersLeaveOthersSet(t *testing.T) {
	s := loadSpreadFor(t, SpreadOptions{})
	expect.NoError(t, s.SetTunnel(Tunnel{Port: 51820, Lanes: ports(61000, 61999)}))
	good := []Peer{{Tunnel: 51820, Endpoint: endpoint("192.0.2.2:51820")}, {Tunnel: 51820, Endpoint: endpoint("192.0.2.3:51820")}}
	bad := []Peer{
		{Tunnel: 51820, Endpoint: endpoint("192.0.2.1:0")}, {Tunnel: 51820, Endpoint: endpoint("192.0.2.9:7"), Lanes: []uint16{7}},
	}
	err := s.SetPeers([]Peer{bad[0], good[0], bad[1], good[1]})
	var refused PeerErrors
	if !errors.As(err, &refused) || len(refused) != 2 || refused[0].Endpoint != bad[0].Endpoint || refused[1].Endpoint != bad[1].Endpoint {
		t.Errorf("got error %v, want one for each of %v", err, bad)
	}
	peers, err := s.Peers()
	expect.NoError(t, err)
	if diff := cmp.Diff(good, peers, equality); diff != "" {
		t.Errorf("peers (-want +got):\n%s", diff)
	}
}

func TestFullPeerMapReturnsErrFull(t *testing.T) {
	s := loadSpreadFor(t, SpreadOptions{})
	expect.NoError(t, s.SetTunnel(Tunnel{Port: 51820}))
	peer := func(i int) Peer {
		address := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		return Peer{Tunnel: 51820, Endpoint: netip.AddrPortFrom(address, 51820), Gather: between(61000, 61010)}
	}
	most := int(s.maps.Peers.MaxEntries())
	var all []Peer
	for i := range most {
		all = append(all, peer(i))
	}
	expect.NoError(t, s.SetPeers(all))
	err := s.SetPeer(peer(most))
	if !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "10.0.64.0:51820") {
		t.Errorf("adding one more: got error %v, want %v", err, ErrFull)
	}
	expect.NoError(t, s.SetPeer(peer(0))) // an update needs no new entry
	expect.NoError(t, s.DeletePeer(51820, peer(1).Endpoint))
	expect.NoError(t, s.SetPeer(peer(most)))
	peers, err := s.Peers()
	expect.NoError(t, err)
	if len(peers) != most {
		t.Errorf("got %d peers, want %d", len(peers), most)
	}
}

func TestPinnedStateOutlivesProcess(t *testing.T) {
	dir := filepath.Join(bpffs(t), "ropewalk", "eth0")
	if _, err := OpenState(Pins{dir, dir}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing pinned: got error %v, want %v", err, os.ErrNotExist)
	}
	old := newSpread(t, SpreadOptions{L2: true, Pins: Pins{dir, dir}})
	expect.NoError(t, old.SetGap(time.Hour))
	in := data(us4, them4).bytes()
	runTC(t, old.Egress(), in, skb{})
	before := counters(t, old)

	next := loadSpreadFor(t, SpreadOptions{L2: true, Pins: Pins{dir, dir}})
	runTC(t, next.Egress(), in, skb{})
	if got := counted(t, next, before); got[EventSpread] != 1 || got[EventFlowNew] != 0 {
		t.Errorf("the next version counted %v", got)
	}
	if gap, err := next.Gap(); err != nil || gap < time.Hour {
		t.Errorf("the next version has gap %v, error %v, want %v", gap, err, time.Hour)
	}
	state, err := OpenState(Pins{dir, dir})
	expect.NoError(t, err)
	tunnels, _ := next.Tunnels()
	peers, _ := next.Peers()
	if len(tunnels) != 1 || len(peers) != 2 {
		t.Errorf("tunnels %v, peers %v", tunnels, peers)
	}
	wantState(t, state, tunnels, peers)
	expect.NoError(t, state.Close())

	expect.NoError(t, errors.Join(RemoveState(dir), RemoveState(dir)))
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: got error %v, want %v", err, os.ErrNotExist)
	}
	if out, _, _ := runTC(t, next.Egress(), in, skb{}); sourcePort(out) != lane {
		t.Error("loaded programs lost their state")
	}
}

func TestStateOfOtherLayoutIsKept(t *testing.T) {
	dir := filepath.Join(bpffs(t), "eth0")
	other := filepath.Join(dir, layoutPrefix+"0")
	expect.NoError(t, os.MkdirAll(other, 0o700))
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	expect.NoError(t, err)
	defer m.Close()
	expect.NoError(t, m.Pin(filepath.Join(other, spreadMapFlows)))
	loadSpreadFor(t, SpreadOptions{Pins: Pins{dir, dir}})
	if _, err := os.Stat(filepath.Join(other, spreadMapFlows)); err != nil {
		t.Error(err)
	}

	expect.NoError(t, os.Remove(filepath.Join(layoutDir(dir), spreadMapFlows)))
	expect.NoError(t, m.Pin(filepath.Join(layoutDir(dir), spreadMapFlows)))
	if _, err := LoadSpread(SpreadOptions{Pins: Pins{dir, dir}}); !errors.Is(err, ebpf.ErrMapIncompatible) {
		t.Errorf("loading over a map of another kind: got error %v, want %v", err, ebpf.ErrMapIncompatible)
	}
	if _, err := OpenState(Pins{dir, dir}); !errors.Is(err, ebpf.ErrMapIncompatible) {
		t.Errorf("opening a map of another kind: got error %v, want %v", err, ebpf.ErrMapIncompatible)
	}
	expect.NoError(t, RemoveState(dir))
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: got error %v, want %v", err, os.ErrNotExist)
	}
}

func TestPinningRequiresBPFFS(t *testing.T) {
	loadSpreadFor(t, SpreadOptions{})
	_, err := LoadSpread(SpreadOptions{Pins: Pins{Shared: filepath.Join(t.TempDir(), "x")}})
	if err == nil || !strings.Contains(err.Error(), "not a BPF file system") {
		t.Errorf("unexpected error: %v", err)
	}
}

// Other versions read the pinned maps: a difference here needs a new layout number.
func TestMapLayoutMatchesItsNumber(t *testing.T) {
	spec, err := loadSpread()
	expect.NoError(t, err)
	var got []string
	for name, m := range stateSpecs(spec) {
		got = append(got, fmt.Sprintf("%s %v key %d %v value %d %v max %d flags %d", name, m.Type, m.KeySize, m.Key, m.ValueSize, m.Value, m.MaxEntries, m.Flags))
	}
	slices.Sort(got)
	want := []string{
		`addresses Hash key 16 Struct:"address"[fields=1 fieldNames=[words]] value 1 Typedef:"u8"[Int:"unsigned char"] max 65536 flags 1`,
		`counters PerCPUArray key 4 Typedef:"u32"[Int:"unsigned int"] value 1544 Struct:"counters"[fields=3 fieldNames=[events local recent]] max 1 flags 0`,
		`flows Array key 4 Typedef:"u32"[Int:"unsigned int"] value 8 Typedef:"u64"[Int:"unsigned long long"] max 65536 flags 0`,
		`local_ports Array key 4 Typedef:"u32"[Int:"unsigned int"] value 2 Struct:"local_port"[fields=1 fieldNames=[listen_port]] max 65536 flags 0`,
		`peers Hash key 20 Struct:"peer_key"[fields=3 fieldNames=[address port listen_port]] value 2168 Struct:"peer"[fields=21 fieldNames=[lanes first paused number keyed ...]] max 16384 flags 1`,
		`queues PerCPUArray key 4 Typedef:"u32"[Int:"unsigned int"] value 8 Typedef:"u64"[Int:"unsigned long long"] max 256 flags 0`,
		`settings Array key 4 Typedef:"u32"[Int:"unsigned int"] value 32 Struct:"settings"[fields=4 fieldNames=[flowlet_gap paused unused tunnels]] max 1 flags 0`,
		`sources Hash key 20 Struct:"source_key"[fields=3 fieldNames=[address listen_port unused]] value 144 Struct:"source"[fields=6 fieldNames=[endpoint_port first last proved heard_at ...]] max 16384 flags 1`,
	}
	if diff := cmp.Diff(want, got); diff != "" || layout != 8 {
		t.Errorf("layout %d (-want +got):\n%s", layout, diff)
	}
}

func TestSpreadLoadsInEveryConfiguration(t *testing.T) {
	for _, l2 := range []bool{false, true} {
		loadSpreadFor(t, SpreadOptions{L2: l2})
	}
}

// TestSettingsKeepTheirValues reads and writes them without CAP_SYS_ADMIN, which reading a program's variables would need.
func TestSettingsKeepTheirValues(t *testing.T) {
	s := loadSpreadFor(t, SpreadOptions{})
	if gap, err := s.Gap(); err != nil || gap>>tickShift != spread.DefaultGap>>tickShift {
		t.Errorf("new: got %v, error %v, want %v", gap, err, spread.DefaultGap)
	}
	for _, gap := range []time.Duration{time.Nanosecond, time.Millisecond, 300 * time.Millisecond, time.Minute, time.Hour, 1<<63 - 1} {
		expect.NoError(t, s.SetGap(gap))
		got, err := s.Gap()
		if err != nil || got < gap || got>>tickShift != gap>>tickShift {
			t.Errorf("got %v, error %v, want %v", got, err, gap)
		}
	}
	if err := s.SetGap(0); err == nil || !strings.Contains(err.Error(), "invalid duration 0s") {
		t.Errorf("no gap: got error %v, want an error", err)
	}
	expect.NoError(t, s.SetPaused(true))
	expect.NoError(t, s.SetGap(time.Minute))
	if paused, err := s.Paused(); !paused || err != nil {
		t.Errorf("got paused %v, error %v, want true", paused, err)
	}
}

// TestFailedLoadSpreadLeaksNoDescriptor lets loading fail at a pinned map of another kind, when other maps are open.
func TestFailedLoadSpreadLeaksNoDescriptor(t *testing.T) {
	dir := filepath.Join(bpffs(t), "eth0")
	loadSpreadFor(t, SpreadOptions{Pins: Pins{dir, dir}}) // the first load may open descriptors that stay open
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	expect.NoError(t, err)
	defer m.Close()
	expect.NoError(t, os.Remove(filepath.Join(layoutDir(dir), spreadMapFlows)))
	expect.NoError(t, m.Pin(filepath.Join(layoutDir(dir), spreadMapFlows)))
	before := descriptors(t)
	for range 10 { // maps are loaded in random order
		if _, err = LoadSpread(SpreadOptions{Pins: Pins{dir, dir}}); !errors.Is(err, ebpf.ErrMapIncompatible) {
			t.Fatal(err)
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestEventsHaveNamesAndHelp(t *testing.T) {
	seen := map[string]bool{}
	for e := range Event(EventCount) {
		if e.String() == "" || seen[e.String()] || e.Help() == "" {
			t.Errorf("event %d: got %q, %q, want text", e, e, e.Help())
		}
		seen[e.String()] = true
	}
	if e := Event(EventCount); e.String() != "unknown" || e.Help() != "" {
		t.Errorf("got %q, %q, want %q", e, e.Help(), "")
	}
	if n := len(spreadCounters{}.Events); n != EventCount {
		t.Errorf("C counts %d events, Go knows %d", n, EventCount)
	}
}
