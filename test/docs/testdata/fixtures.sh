# SPDX-License-Identifier: Apache-2.0
# What the pages of the documentation take for granted. A script begins with this, calls the fixture that its block names, and
# goes on with the block.
set -euo pipefail
trap 'echo "FAILED: $BASH_COMMAND" >&2' ERR
exec </dev/null 2>&1

until_true() { for _ in $(seq 600); do if "$@" >/dev/null 2>&1; then return 0; fi; sleep 0.05; done; echo "never: $*"; return 1; }

# served waits as a reader would who looks before he goes on.
served() { until_true ropewalk show "$1"; }

# answers says something to the other host through wg0, and looks whether there is a session by then.
answers() {
	echo >/dev/udp/10.99.0.2/9
	[ "$(ropewalk show wg0 latest-handshakes | cut -f2)" -gt 0 ]
}

# two_hosts: eth0 of this one leads to the other's, 192.0.2.1 to 192.0.2.2; keys and /etc/wireguard/wg0.conf are there.
two_hosts() {
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
		cat >/etc/wireguard/wg0.conf <<-CONF
			[Interface]
			PrivateKey = $(cat /etc/wireguard/wg0.key)
			Address = 10.99.0.1/24
			ListenPort = 51820

			[Peer]
			PublicKey = $(ropewalk pubkey </root/other/wg0.key)
			AllowedIPs = 10.99.0.2/32
			Endpoint = 192.0.2.2:51820
		CONF
		cat >/root/other/wg0.conf <<-CONF
			[Interface]
			PrivateKey = $(cat /root/other/wg0.key)
			Address = 10.99.0.2/24
			ListenPort = 51820

			[Peer]
			PublicKey = $(ropewalk pubkey </etc/wireguard/wg0.key)
			AllowedIPs = 10.99.0.1/32
			Endpoint = 192.0.2.1:51820
		CONF
	)
	peer=$(ropewalk pubkey </root/other/wg0.key)
	# Its sockets and records are in directories of its own: both hosts share a file system.
	ip netns exec other unshare --mount bash -c 'mount -t tmpfs tmpfs /run; exec ropewalk up /root/other/wg0.conf' 9>&-
}

# The fixtures.

host() { two_hosts; }

tunnel() {
	two_hosts
	ropewalk up --metrics 127.0.0.1:9820 wg0
	until_true answers
}

# untidy has something that doctor mends, and says yes.
untidy() {
	tunnel
	echo "32768 61999" >/proc/sys/net/ipv4/ip_local_port_range
	exec < <(yes)
}

wg_quick() {
	two_hosts
	WG_QUICK_USERSPACE_IMPLEMENTATION=wireguard-go wg-quick up wg0
	until_true answers
}

program() { cp /usr/bin/ropewalk /tmp/ropewalk; }

nothing() { :; }
