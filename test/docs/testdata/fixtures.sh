# SPDX-License-Identifier: Apache-2.0
# What the pages of the documentation take for granted. A script begins with this, calls the fixture that its block names, and
# goes on with the block.
set -euo pipefail
trap 'echo "FAILED: $BASH_COMMAND" >&2' ERR
exec </dev/null 2>&1

until_true() { for _ in $(seq 600); do if "$@" >/dev/null 2>&1; then return 0; fi; sleep 0.05; done; echo "never: $*"; return 1; }

# served waits as a reader would who looks before he goes on.
served() { until_true ropewalk show "$1"; }

# answers says something to the other host through wg0, and looks whether there is a session by then: by ropewalk, or the program named.
answers() {
	echo >/dev/udp/10.99.0.2/9
	[ "$("${1:-ropewalk}" show wg0 latest-handshakes | cut -f2)" -gt 0 ]
}

# wg_conf N KEY PEER PEER'S-KEY writes the configuration of host N, whose peer is host PEER; the keys are files.
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

# host: eth0 leads to the other host's, 192.0.2.1 to 192.0.2.2; keys and /etc/wireguard/wg0.conf are there. eth1 is a device that
# nothing goes by, which doctor is asked about.
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
	# Its sockets and records are in directories of its own: both hosts share a file system.
	ip netns exec other unshare --mount bash -c 'mount -t tmpfs tmpfs /run; exec ropewalk up /root/other/wg0.conf'
}

tunnel() {
	host
	ropewalk up --metrics 127.0.0.1:9820 wg0
	until_true answers
}

# untidy has something that doctor mends, and says yes.
untidy() {
	tunnel
	echo "32768 61999" >/proc/sys/net/ipv4/ip_local_port_range
	exec < <(yes)
}

# wg_quick makes wg0 the kernel's where that has WireGuard, and ropewalk does not show such a one.
wg_quick() {
	host
	WG_QUICK_USERSPACE_IMPLEMENTATION=wireguard-go wg-quick up wg0
	until_true answers wg
}

program() { cp /usr/bin/ropewalk /tmp/ropewalk; }

nothing() { :; }
