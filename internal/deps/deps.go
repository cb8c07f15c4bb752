//go:build tools

package deps

import (
	_ "github.com/cilium/ebpf"
	_ "github.com/cilium/ebpf/cmd/bpf2go"
	_ "github.com/cilium/ebpf/asm"
	_ "github.com/flynn/noise"
	_ "github.com/gaissmai/bart"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "github.com/vishvananda/netlink"
	_ "github.com/vishvananda/netns"
	_ "golang.org/x/crypto/blake2s"
	_ "golang.org/x/crypto/chacha20poly1305"
	_ "golang.org/x/crypto/curve25519"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/term"
	_ "golang.zx2c4.com/wireguard/device"
	_ "golang.zx2c4.com/wireguard/conn/bindtest"
	_ "golang.zx2c4.com/wireguard/tun/tuntest"
	_ "golang.zx2c4.com/wireguard/wgctrl"
)
