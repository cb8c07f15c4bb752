// SPDX-License-Identifier: Apache-2.0

// Package tunnel embeds a WireGuard tunnel in a Go program.
//
// A [Tunnel] carries packets between a TUN device and a UDP port. [New] makes one,
// [Tunnel.Configure] gives it keys and peers, and [Tunnel.Start] lets it carry packets until its
// context ends. [Tunnel.Status] reports endpoints, handshakes and traffic, and
// [Tunnel.ServeControl] lets wg(8) and `ropewalk show` use the tunnel. A Tunnel does not notice a
// copy or a suspend of the machine: see [Tunnel.MachineCopied]. Unlike ropewalk's daemon it does
// not look at the host's routes. It sends messages whose route leads into its own interface, where
// they are sealed again. Keep endpoints out of the routes that lead to the tunnel, or set a mark
// and a rule for it. Its sockets permit outer fragments, and it takes no path MTU from ICMP errors.
// The examples show:
//
//   - two tunnels over an in-memory network, in a test without root (packages tuntest and underlaytest below netio)
//   - a tunnel over a TUN interface and UDP sockets of the host ([tun.Open]), which needs CAP_NET_ADMIN
//
// Package ebpf/spreader spreads the packets of a WireGuard that another program runs, such as the kernel's. Package control/conffile
// reads the files of wg(8) and wg-quick(8) as changes for Configure.
//
// The directories below belong to ropewalk's own programs and may change without notice:
//
//   - device: peers, handshakes, timers, staged packets, statistics
//   - autounderlay: chooses between UDP and AF_XDP sockets
//   - daemon: the process of ropewalk run, with control socket and in-place upgrade
//
// Packages here know no observer and no command line. To read the code, begin with Tunnel, then device.Device.
package tunnel
