# SPDX-License-Identifier: Apache-2.0
# Fixtures for the commands of the documentation. Each script begins with this file, calls the fixture that its block selects and then
# runs the block.
set -euo pipefail
trap 'echo "FAILED: $BASH_COMMAND" >&2' ERR
exec </dev/null 2>&1

until_true() { for _ in $(seq 600); do if "$@" >/dev/null 2>&1; then return 0; fi; sleep 0.05; done; echo "timed out: $*"; return 1; }

# wait_for_daemon waits until the daemon of an interface answers.
wait_for_daemon() { until_true ropewalk show "$1"; }

# has_handshake sends a datagram to the other host through wg0 and checks that there was a handshake, by ropewalk or the given program.
has_handshake() {
	echo >/dev/udp/10.99.0.2/9
	[ "$("${1:-ropewalk}" show wg0 latest-handshakes | cut -f2)" -gt 0 ]
}

# wg_conf N KEY PEER PEER_KEY prints the configuration of host N with host PEER as its peer. KEY and PEER_KEY are private key files.
wg_conf() {
	cat <<-CONF
		[Interface]
		PrivateKey = $(cat "$2")
		Address = 10.99.0.$1/24
		ListenPort = 51820

		[Peer]
		PublicKey = $(ropewalk pubkey <"$4")
		AllowedIPs = 10.99.0.$3/32
		Endpoint = 192.0.2.$3:51820
	CONF
}

# The fixtures.

# host connects eth0 (192.0.2.1) to another host (192.0.2.2) and creates keys and /etc/wireguard/wg0.conf. eth1 is an unused device
# for commands of doctor.
host() {
	ip link set lo up
	ip netns add other
	ip link add eth0 numrxqueues 2 numtxqueues 2 type veth peer name eth0 netns other
	ip addr add 192.0.2.1/24 dev eth0
	ip -n other addr add 192.0.2.2/24 dev eth0
	ip link add eth1 up type veth peer name eth1 netns other
	ip link set eth0 up
	ip -n other link set eth0 up
	ip -n other link set lo up
	ip route add default via 192.0.2.2
	(
		umask 077
		mkdir /root/other
		ropewalk genkey >/etc/wireguard/wg0.key
		ropewalk genkey >/root/other/wg0.key
		wg_conf 1 /etc/wireguard/wg0.key 2 /root/other/wg0.key >/etc/wireguard/wg0.conf
		wg_conf 2 /root/other/wg0.key 1 /etc/wireguard/wg0.key >/root/other/wg0.conf
	)
	# Both hosts share a file system, so the other host has its own /run for sockets and state files.
	ip netns exec other unshare --mount bash -c 'mount -t tmpfs tmpfs /run; exec ropewalk up /root/other/wg0.conf'
}

tunnel() {
	host
	ropewalk up --metrics 127.0.0.1:9820 wg0
	until_true has_handshake
}

# untidy has a sysctl that doctor fixes, and answers its questions with yes.
untidy() {
	tunnel
	echo "32768 61999" >/proc/sys/net/ipv4/ip_local_port_range
	exec < <(yes)
}

# wg_quick uses the kernel's WireGuard if the kernel has it. `ropewalk show` does not show such an interface, so wg checks the handshake.
wg_quick() {
	host
	WG_QUICK_USERSPACE_IMPLEMENTATION=wireguard-go wg-quick up wg0
	until_true has_handshake wg
}

program() { cp /usr/bin/ropewalk /tmp/ropewalk; }

nothing() { :; }
