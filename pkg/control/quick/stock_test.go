// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// stockFiles are brought up by wg-quick and by ropewalk. The host state must be the same.
func stockFiles() map[string]string {
	return map[string]string{
		"everything": everything,
		"split": `[Interface]
PrivateKey = $KEY
Address = 10.9.0.1/24, 10.7.0.1/32, fd09::1/64, fd07::1/128
[Peer]
PublicKey = $A
AllowedIPs = 10.9.0.2/32, 10.7.0.0/24, 10.0.0.0/8, fd09::2/128, fd07::/64
Endpoint = 192.0.2.9:51820
[Peer]
PublicKey = $B
AllowedIPs = 192.168.0.0/16, 192.168.7.0/24, fd00::/8, 10.7.0.0/24
`,
		"fwmark":      "[Interface]\nFwMark = 0x2a\nAddress = 10.9.0.1/32\n[Peer]\nPublicKey = $A\nAllowedIPs = 0.0.0.0/0\n",
		"IPv6 only":   "[Interface]\nAddress = fd09::1/64\nMTU = 1333\n[Peer]\nPublicKey = $A\nAllowedIPs = ::/0\n",
		"table":       "[Interface]\nAddress = 10.9.0.1/24\nTable = 4711\n[Peer]\nPublicKey = $A\nAllowedIPs = 0.0.0.0/0, ::/0, 10.9.0.0/24\n",
		"table main":  "[Interface]\nAddress = 10.9.0.1/24\nTable = main\n[Peer]\nPublicKey = $A\nAllowedIPs = 10.8.0.0/16\n",
		"table off":   "[Interface]\nAddress = 10.9.0.1/24\nTable = off\n[Peer]\nPublicKey = $A\nAllowedIPs = 0.0.0.0/0\n",
		"no address":  "[Interface]\nPrivateKey = $KEY\n",
		"DNS":         "[Interface]\nAddress = 10.9.0.1\nDNS = 10.9.0.53, 10.9.0.54, fd09::53, a.example, b.example\n",
		"no endpoint": "[Interface]\nAddress = 10.9.0.1\n[Peer]\nPublicKey = $A\nAllowedIPs = 10.9.0.2/32\n",
	}
}

// TestUpLeavesTheHostStateOfWgQuick compares with the installed wg-quick and wireguard-go.
func TestUpLeavesTheHostStateOfWgQuick(t *testing.T) {
	for name, text := range stockFiles() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			stock := h.stock()
			i := h.open("wq"+strconv.Itoa(int(h.namespace()%1e9)), text) // wg(8) has a fixed directory of sockets
			before := h.snapshot()
			stock("up", i.Path)
			want := h.snapshot()
			stock("down", i.Path)
			expect.NoError(t, hostnet.SetSrcValidMark(false))
			if diff := cmp.Diff(before, h.snapshot()); diff != "" {
				t.Fatalf("leftovers of wg-quick: %s", diff)
			}
			h.up(i)
			if diff := cmp.Diff(want, h.withoutOwnFiles()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// stock returns a function that calls wg-quick, or skips.
func (h *testHost) stock() func(verb, path string) {
	h.t.Helper()
	path, err := lookPath("wg-quick")
	if err != nil {
		h.t.Skip("needs wg-quick")
	}
	impl, err := lookPath("wireguard-go")
	if err != nil {
		h.t.Skip("needs wireguard-go in PATH")
	}
	h.Sockets = uapi.DefaultDir
	h.Daemon = fakeCommand(fakeWorks, h.Sockets)
	return func(verb, file string) {
		h.t.Helper()
		cmd := exec.CommandContext(context.Background(), path, verb, file)
		cmd.Env = append(cmd.Environ(),
			"WG_QUICK_USERSPACE_IMPLEMENTATION="+impl, "PATH="+filepath.Dir(h.Tools.Resolvconf)+":/usr/sbin:/usr/bin:/sbin:/bin")
		if out, err := cmd.CombinedOutput(); err != nil {
			h.t.Fatalf("wg-quick %s: %v\n%s", verb, err, out)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".conf")
		for verb == "down" && h.served(name) { // wg-quick does not wait for the daemon
			runtime.Gosched()
		}
	}
}

func (h *testHost) served(name string) bool {
	c, err := h.Sockets.Dial(name)
	if err == nil {
		c.Close()
	}
	return err == nil
}

func (h *testHost) namespace() hostnet.Namespace {
	n, err := hostnet.CurrentNamespace()
	expect.NoError(h.t, err)
	return n
}

// withoutOwnFiles returns a snapshot without the state files of ropewalk, which wg-quick does not have.
func (h *testHost) withoutOwnFiles() []string {
	var lines []string
	for _, line := range h.snapshot() {
		if !strings.HasSuffix(line, ".json") {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestEitherToolTakesDownTheOthersInterface(t *testing.T) {
	h := newHost(t)
	stock := h.stock()
	i := h.open("wx"+strconv.Itoa(int(h.namespace()%1e9)), everything)
	before := h.snapshot()
	stock("up", i.Path)
	expect.NoError(t, h.Down(t.Context(), i))
	expect.NoError(t, hostnet.SetSrcValidMark(false))
	if diff := cmp.Diff(before, h.snapshot()); diff != "" {
		t.Errorf("ropewalk down after wg-quick up: %s", diff)
	}
	h.up(i)
	stock("down", i.Path)
	expect.NoError(t, hostnet.SetSrcValidMark(false))
	if diff := cmp.Diff(before, h.withoutOwnFiles()); diff != "" {
		t.Errorf("wg-quick down after ropewalk up: %s", diff)
	}
	expect.NoError(t, h.Up(t.Context(), i))
}
