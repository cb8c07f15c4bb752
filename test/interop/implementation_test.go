// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"errors"
	"flag"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/program"
)

// implementation is one WireGuard implementation.
type implementation struct {
	name string
	// need skips or fails the test if the implementation is not available.
	need func(t *testing.T)
	// start creates an interface in the host. stop removes it with its sessions.
	start func(t *testing.T, h *host, ifname string) (stop func() error)
}

var (
	ropewalk    = implementation{name: "ropewalk", need: needRopewalk, start: startRopewalk}
	unspread    = implementation{name: "ropewalk", need: needRopewalk, start: startUnspread}
	wireguardGo = implementation{name: "wireguard-go", need: needWireGuardGo, start: startWireGuardGo}
	inKernel    = implementation{name: "kernel", need: needInKernel, start: startInKernel}
)

// pairing is two implementations that are tested against each other.
type pairing struct{ left, right implementation }

// withoutSpread returns p with ropewalks that send nothing but WireGuard's own messages.
func (p pairing) withoutSpread() pairing {
	for _, i := range []*implementation{&p.left, &p.right} {
		if i.name == ropewalk.name {
			*i = unspread
		}
	}
	return p
}

func (p pairing) String() string { return p.left.name + " and " + p.right.name }

// sides returns the values of `right` in a scenario with two roles. One is enough if both sides run the same implementation.
func (p pairing) sides() []bool {
	if p.left.name == p.right.name {
		return []bool{false}
	}
	return []bool{false, true}
}

// pairings returns the pairings to test, with the implementation under test on the left. Virtual machines test only against
// their kernel: two userspace processes behave the same on the host.
func pairings() []pairing {
	list := []pairing{{ropewalk, inKernel}}
	if !inMachine() {
		list = append(list, pairing{ropewalk, wireguardGo}, pairing{ropewalk, ropewalk})
	}
	if os.Getenv("ROPEWALK_INTEROP_CONTROL") != "" {
		list = append(list, pairing{inKernel, wireguardGo})
	}
	return list
}

// inMachine reports whether the tests run in a virtual machine of test/kernels.
func inMachine() bool { return os.Getenv("ROPEWALK_INTEROP_STRICT") != "" }

// forEachPairing runs a scenario once for each pairing, in parallel.
func forEachPairing(t *testing.T, scenario func(t *testing.T, p pairing)) {
	t.Helper()
	forPairings(t, pairings(), scenario)
}

func forPairings(t *testing.T, list []pairing, scenario func(t *testing.T, p pairing)) {
	t.Helper()
	requireTUN(t)
	t.Parallel()
	for _, p := range list {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			p.left.need(t)
			p.right.need(t)
			scenario(t, p)
		})
	}
}

// ---- in-kernel WireGuard

// probeInKernel checks once whether the kernel supports the link type "wireguard".
var probeInKernel = sync.OnceValue(func() error {
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return netlink.LinkAdd(wireguardLink("probe"))
	})
})

func wireguardLink(name string) netlink.Link {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return &netlink.Wireguard{LinkAttrs: attrs}
}

func needInKernel(t *testing.T) {
	t.Helper()
	err := probeInKernel()
	switch {
	case err == nil:
	case inMachine():
		t.Fatalf("this kernel must have WireGuard: %v", err)
	case errors.Is(err, unix.EOPNOTSUPP):
		t.Skip("this kernel has no WireGuard (make test-kernels runs kernels that have it)")
	default:
		t.Fatalf("probing the kernel for WireGuard: %v", err)
	}
}

func startInKernel(t *testing.T, h *host, ifname string) func() error {
	t.Helper()
	expect.NoError(t, h.nl.LinkAdd(wireguardLink(ifname)))
	return func() error {
		l, err := h.nl.LinkByName(ifname)
		if err != nil {
			return err
		}
		return h.nl.LinkDel(l)
	}
}

// ---- userspace WireGuard

var (
	ropewalkBinary    = program.Ropewalk()
	wireguardGoBinary = &program.Program{Env: "WIREGUARD_GO_BIN", Package: "golang.zx2c4.com/wireguard"}
)

// TestMain runs more tests in parallel than there are cores, because most of them wait for WireGuard timers.
func TestMain(m *testing.M) {
	flag.Parse()
	if p := flag.Lookup("test.parallel"); p.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = p.Value.Set("8")
	}
	os.Exit(program.Main(m, ropewalkBinary, wireguardGoBinary))
}

func needRopewalk(t *testing.T)    { t.Helper(); ropewalkBinary.Need(t) }
func needWireGuardGo(t *testing.T) { t.Helper(); wireguardGoBinary.Need(t) }

func startRopewalk(t *testing.T, h *host, ifname string) func() error {
	t.Helper()
	return startDaemon(t, h, ropewalkBinary.Need(t), "run", ifname)
}

func startUnspread(t *testing.T, h *host, ifname string) func() error {
	t.Helper()
	return startDaemon(t, h, ropewalkBinary.Need(t), "run", "--spread", "off", ifname)
}

func startWireGuardGo(t *testing.T, h *host, ifname string) func() error {
	t.Helper()
	return startDaemon(t, h, wireguardGoBinary.Need(t), "-f", ifname)
}
