// SPDX-License-Identifier: Apache-2.0

package host

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/pkg/observe/top"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

const statText = `cpu  300 0 0 0 0 0 0 0 0 0
cpu0 100 2 30 4000 500 6 70 8 9 10
cpu3 1 1 1 1 1 1 1 1
cpux 1 1 1 1 1 1 1 1
cpu4 1 2
intr 12345 0 1
ctxt 99
`

const softirqsText = `                    CPU0       CPU3
          HI:          0          0
      NET_RX:  161287384  157443160
`

const interruptsText = `           CPU0       CPU3
 38:          5    3714465 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0
 39:      31283          0 PCI-MSIX-0000:00:03.0   2-edge      virtio2-output.0
 40:          7          8 PCI-MSIX-0000:00:04.0   0-edge      virtio2-input.1
NMI:          0          0   Non-maskable interrupts
ERR:          0
`

func TestProcFilesAreRead(t *testing.T) {
	wantCores := []top.CoreCounters{
		{CPU: 0, Busy: 100 + 2 + 30 + 6 + 70, SoftIRQ: 70, Total: 208 + 4000 + 500 + 8}, {CPU: 3, Busy: 5, SoftIRQ: 1, Total: 8},
	}
	if diff := cmp.Diff(wantCores, parseStat(statText)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[int]uint64{0: 161287384, 3: 157443160}, parseSoftIRQs(softirqsText, "NET_RX")); diff != "" {
		t.Error(diff)
	}
	got := parseInterrupts(interruptsText)
	if len(got) != 3 || got[38].name != "virtio2-input.0" || !cmp.Equal(got[38].perCPU, map[int]uint64{0: 5, 3: 3714465}) {
		t.Errorf("got %+v, want length 3", got)
	}
}

func TestQueueNumberIsParsedFromIRQName(t *testing.T) {
	for name, want := range map[string]int{
		"virtio2-input.0": 0, "virtio2-input.11": 11, "mlx5_comp3@pci:0000:08:00.0": 3, "i40e-eth0-TxRx-7": 7, "eth0-rx-2": 2,
		"ens5-Tx-Rx-4": 4, "gve-ntfy-blk.5": 5, "eth0-queue-1": 1,
		"virtio2-output.0": -1, "virtio2-config": -1, "mlx5_async0@pci:0000:08:00.0": -1, "ttyS0": -1, "": -1, "rx99999999999999999999": -1, "rx5000": -1,
	} {
		got, ok := queueOf(name)
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%q: got %d, want %d", name, got, want)
		}
	}
}

func TestQueueCountersAreParsedFromDriverStats(t *testing.T) {
	for form, names := range map[string][4]string{
		"virtio_net": {"rx_queue_1_packets", "rx_queue_1_bytes", "tx_queue_1_packets", "tx_queue_1_bytes"},
		"mlx5":       {"rx1_packets", "rx1_bytes", "tx1_packets", "tx1_bytes"},
		"i40e":       {"rx-1.packets", "rx-1.bytes", "tx-1.packets", "tx-1.bytes"},
		"mlx4":       {"rx_1_packets", "rx_1_bytes", "tx_1_packets", "tx_1_bytes"},
		"ena":        {"queue_1_rx_cnt", "queue_1_rx_bytes", "queue_1_tx_cnt", "queue_1_tx_bytes"},
		"gve":        {"rx_packets[1]", "rx_bytes[1]", "tx_packets[1]", "tx_bytes[1]"},
		"bnxt":       {"[1]: rx_ucast_packets", "[1]: rx_ucast_bytes", "[1]: tx_ucast_packets", "[1]: tx_ucast_bytes"},
	} {
		stats := map[string]uint64{"rx_packets": 99, "rx1_drops": 98, "rx1_xdp_packets": 97, "rx_queue_9999_packets": 96, "tx_packets_phy": 95}
		for i, name := range names {
			stats[name] = uint64(i + 1)
		}
		want := map[int]*top.QueueCounters{1: {Rx: top.PacketCounters{Packets: 1, Bytes: 2, Known: true}, Tx: top.PacketCounters{Packets: 3, Bytes: 4, Known: true}}}
		if diff := cmp.Diff(want, queuesIn(stats)); diff != "" {
			t.Errorf("%s: %s", form, diff)
		}
	}
}

// host is a Reader of files in a directory of its own.
func host(t *testing.T, files map[string]string) *Reader {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return &Reader{root: root}
}

func TestQueuesWithoutCountersComeFromInterrupts(t *testing.T) {
	r := host(t, map[string]string{
		"proc/stat": statText, "proc/softirqs": softirqsText, "proc/interrupts": interruptsText,
		"sys/devices/pci0/virtio2/net/nic0/ifindex": "7", "sys/devices/pci0/msi_irqs/38": "", "sys/devices/pci0/msi_irqs/39": "", "sys/devices/pci0/msi_irqs/40": "",
	})
	net := filepath.Join(r.root, "sys/class/net/nic0")
	if err := os.MkdirAll(net, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(r.root, "sys/devices/pci0/virtio2"), filepath.Join(net, "device")); err != nil {
		t.Fatal(err)
	}
	want := []top.QueueCounters{
		{Device: "nic0", Queue: 0, Interrupts: map[int]uint64{0: 5, 3: 3714465}},
		{Device: "nic0", Queue: 1, Interrupts: map[int]uint64{0: 7, 3: 8}},
	}
	if diff := cmp.Diff(want, r.queues([]string{"nic0"})); diff != "" {
		t.Error(diff)
	}
	if cores := r.cores(); len(cores) != 2 || cores[1].NetRx != 157443160 {
		t.Errorf("cores: got %+v, want length 2", cores)
	}
}

func TestNICsBelowVLANsAndBondsAreFound(t *testing.T) {
	r := host(t, map[string]string{
		"sys/class/net/bond0.7/lower_bond0/x": "", "sys/class/net/bond0/lower_nic0/x": "", "sys/class/net/bond0/lower_nic1/x": "",
		"sys/class/net/loop/lower_loop/x": "",
	})
	for device, want := range map[string][]string{"bond0.7": {"nic0", "nic1"}, "nic0": {"nic0"}, "loop": {"loop"}} {
		if got := r.below(nil, device, maxDepth); !cmp.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", device, got, want)
		}
	}
}

func TestUnreadableHostHasNoCounters(t *testing.T) {
	r := host(t, nil)
	if got := r.Read("wg0", []config.Endpoint{{AddrPort: netip.MustParseAddrPort("127.0.0.1:0")}}, 0); len(got.Cores) != 0 || len(got.Queues) != 0 {
		t.Errorf("got %+v, want len(Cores) 0, len(Queues) 0", got)
	}
}

func TestLinkLocalPeerLeadsToNICOfItsScope(t *testing.T) {
	here, scopes := netlabtest.LinkLocal(t, "top")
	for nic, scope := range scopes {
		endpoint := config.Endpoint{AddrPort: netip.MustParseAddrPort("[fe80::2]:51820"), Scope: scope}
		r := New()
		err := here.Do(func() error {
			r.Sample(&config.Status{Peers: []config.PeerStatus{{Endpoint: endpoint}}}, device.Stats{})
			return nil
		})
		if err != nil || !cmp.Equal(r.devices, []string{nic}) {
			t.Errorf("got %v, %v, want %s", r.devices, err, nic)
		}
	}
}

func TestLocalHostReportsCores(t *testing.T) {
	if _, err := os.Stat("/proc/stat"); err != nil {
		t.Skip("no /proc/stat here")
	}
	m := New().Read("", nil, 0)
	if len(m.Cores) == 0 || m.Cores[0].Total == 0 || m.Cores[0].Busy > m.Cores[0].Total {
		t.Errorf("got %+v", m.Cores)
	}
}

func FuzzProcFiles(f *testing.F) {
	for _, text := range []string{statText, softirqsText, interruptsText, "", "CPU0 CPU1\n 1: 2", strings.Repeat("9", 100)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, c := range parseStat(text) {
			if c.CPU < 0 || c.CPU >= maxCPU {
				t.Errorf("got cpu %d, want at least 0", c.CPU)
			}
		}
		parseSoftIRQs(text, "NET_RX")
		for _, irq := range parseInterrupts(text) {
			if q, ok := queueOf(irq.name); ok && (q < 0 || q >= maxQueue) {
				t.Errorf("queue %d", q)
			}
		}
		queuesIn(map[string]uint64{text: 1})
	})
}
