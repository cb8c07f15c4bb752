# SPDX-License-Identifier: Apache-2.0
# What docs/install.md says about running ropewalk under systemd, done. Runs as a service of a systemd of its own.
set -euo pipefail
trap 'echo "FAILED in line $LINENO"; journalctl --no-pager -o cat -u "ropewalk@*" | tail -60' ERR
say() { echo "ok: $*"; }
prop() { systemctl show --value -p "$1" "$2"; }
until_true() { for _ in $(seq 300); do if "$@"; then return 0; fi; sleep 0.1; done; echo "never: $*"; return 1; }

ip link set lo up
dpkg -i --force-depends /opt/test/*.deb >/dev/null
say the package installs

# wg0 has its key from a credential, wg1 in its file; they are each other's peers.
mkdir -p /etc/credstore
umask 077
ropewalk genkey >/etc/credstore/ropewalk.wg0.private-key
key1=$(ropewalk genkey)
pub0=$(ropewalk pubkey </etc/credstore/ropewalk.wg0.private-key)
pub1=$(ropewalk pubkey <<<"$key1")
cat >/etc/wireguard/wg0.conf <<CONF
[Interface]
Address = 10.99.0.1/32
ListenPort = 51990
[Peer]
PublicKey = $pub1
AllowedIPs = 10.99.0.2/32
Endpoint = 127.0.0.1:51991
PersistentKeepalive = 1
CONF
cat >/etc/wireguard/wg1.conf <<CONF
[Interface]
PrivateKey = $key1
Address = 10.99.0.2/32
ListenPort = 51991
Table = 7777
[Peer]
PublicKey = $pub0
AllowedIPs = 0.0.0.0/0
CONF
echo 'ARGS=--log-format json' >/etc/ropewalk/wg0.env
# Of another interface that a hook brings up, the manager of this one must not hear.
printf '[Interface]\nAddress = 10.99.9.9/32\n' >/etc/wireguard/hooked.conf
sed -i '/ListenPort/a PostUp = ropewalk up hooked\nPreDown = ropewalk down hooked' /etc/wireguard/wg0.conf
systemctl enable --now ropewalk@wg0 ropewalk@wg1 2>/dev/null
[ "$(systemctl is-active ropewalk@wg0)" = active ]
say it is active once it is up
ip -br addr show wg0 | grep -q 10.99.0.1/32
ip route show table 7777 | grep -q 'default dev wg1'
say addresses and routes are there by then
ropewalk show wg0 public-key | grep -qxF "$pub0"
say the private key comes from a credential
pid=$(prop MainPID ropewalk@wg0)
tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q '^ropewalk run .*json.* wg0'
say the daemon is the main process and has the arguments of the environment file
journalctl -o cat -u ropewalk@wg0 | grep -q '"msg":"interface up"'
if journalctl -o cat -u 'ropewalk@*' | grep -E 'level":"(WARN|ERROR)|level=(WARN|ERROR)'; then exit 1; fi
say the daemon logs into the journal, and nothing that confinement would break
grep -q '^NoNewPrivs:.1' "/proc/$pid/status"
grep -q '^Seccomp:.2' "/proc/$pid/status"
[ "$(awk '/^CapBnd/ { print $2 }' "/proc/$pid/status")" = 000000c000803400 ]
if (echo -900 >/proc/self/oom_score_adj) 2>/dev/null; then # not in every container
	[ "$(cat "/proc/$pid/oom_score_adj")" = -900 ]
fi
say it is confined

handshakes() { [ "$(ropewalk show wg0 latest-handshakes | awk '{ print $2 }')" -gt 0 ]; }
until_true handshakes
before=$(ropewalk show wg0 latest-handshakes)
rx() { ropewalk show wg1 transfer | awk '{ print $2 }'; }
pub2=$(ropewalk genkey | ropewalk pubkey)
printf '[Peer]\nPublicKey = %s\nAllowedIPs = 10.99.0.3/32\n' "$pub2" >>/etc/wireguard/wg0.conf
systemctl reload ropewalk@wg0
ropewalk show wg0 peers | grep -qxF "$pub2"
[ "$(ropewalk show wg0 latest-handshakes | grep -F "$pub1")" = "$before" ]
ropewalk show wg0 public-key | grep -qxF "$pub0"
was=$(rx)
more() { [ "$(rx)" -gt "$was" ]; }
until_true more
[ "$(ropewalk show wg0 latest-handshakes | grep -F "$pub1")" = "$before" ]
[ "$(prop MainPID ropewalk@wg0)" = "$pid" ]
say a reload adds a peer and keeps key, session and process
echo Nonsense >>/etc/wireguard/wg0.conf
if systemctl reload ropewalk@wg0 2>/dev/null; then exit 1; fi
sed -i /Nonsense/d /etc/wireguard/wg0.conf
[ "$(systemctl is-active ropewalk@wg0)" = active ]
say a bad file fails the reload and nothing else

# An upgrade: the package unpacks a program over the one that runs, and the daemon is replaced by it.
link() { cat /sys/class/net/wg0/ifindex; }
settled() { [ "$(systemctl is-active ropewalk@wg0)" = active ] && [ "$(prop MainPID ropewalk@wg0)" != "$pid" ] && [ ! -d "/proc/$pid" ]; }
since=$(prop ActiveEnterTimestampMonotonic ropewalk@wg0)
index=$(link)
dpkg -i --force-depends /opt/test/*.deb >/dev/null
[ "$(prop MainPID ropewalk@wg0)" = "$pid" ]
for _ in 1 2; do
	before=$(ropewalk show wg0 latest-handshakes | grep -F "$pub1" | cut -f 2)
	ropewalk upgrade wg0
	until_true settled
	pid=$(prop MainPID ropewalk@wg0)
	readlink "/proc/$pid/exe" | grep -qxF /usr/bin/ropewalk
	grep -qF "ropewalk@wg0.service" "/proc/$pid/cgroup"
	[ "$(awk '/^CapBnd/ { print $2 }' "/proc/$pid/status")" = 000000c000803400 ]
	[ "$(link)" = "$index" ]
	ip -br addr show wg0 | grep -q 10.99.0.1/32
	[ "$(prop ActiveEnterTimestampMonotonic ropewalk@wg0)" = "$since" ]
	[ "$(prop NRestarts ropewalk@wg0)" = 0 ]
	[ "$(ropewalk show wg0 latest-handshakes | grep -F "$pub1" | cut -f 2)" -ge "$before" ]
	ropewalk show wg0 peers | grep -qxF "$pub2"
	was=$(rx)
	until_true more
done
ropewalk upgrade hooked
[ "$(prop MainPID ropewalk@wg0)" = "$pid" ]
systemctl reload ropewalk@wg0
say an upgrade in place keeps the unit, the interface and the peers, names the new process, and can be reloaded
mkdir -m 700 /root/new
cp /usr/bin/ropewalk /root/new/
if /root/new/ropewalk upgrade wg0 2>/tmp/refused; then exit 1; fi
grep -q 'goes on as it is' /tmp/refused
journalctl -o cat -u ropewalk@wg0 | grep -q 'starting the new daemon.*/root/new/ropewalk'
[ "$(prop MainPID ropewalk@wg0)" = "$pid" ]
was=$(rx)
until_true more
say a program that the unit cannot see does not take over, and the daemon goes on

restarted() { local p; p=$(prop MainPID ropewalk@wg0); [ "$(systemctl is-active ropewalk@wg0)" = active ] && [ "$p" != "$pid" ] && [ "$p" != 0 ]; }
kill -KILL "$pid"
until_true restarted
pid=$(prop MainPID ropewalk@wg0)
ip -br addr show wg0 | grep -q 10.99.0.1/32
say a daemon that is killed is started again

mkdir -p /run/systemd/system/ropewalk@wg0.service.d
printf '[Service]\nWatchdogSec=6s\n' >/run/systemd/system/ropewalk@wg0.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart ropewalk@wg0
pid=$(prop MainPID ropewalk@wg0)
fed=$(prop WatchdogTimestampMonotonic ropewalk@wg0)
feeds() { [ "$(prop WatchdogTimestampMonotonic ropewalk@wg0)" != "$fed" ]; }
until_true feeds
[ "$(prop MainPID ropewalk@wg0)" = "$pid" ]
say the watchdog is fed
ropewalk upgrade wg0
until_true settled
pid=$(prop MainPID ropewalk@wg0)
for _ in 1 2 3 4; do # longer than the watchdog's time
	fed=$(prop WatchdogTimestampMonotonic ropewalk@wg0)
	until_true feeds
done
[ "$(prop MainPID ropewalk@wg0)" = "$pid" ]
say the watchdog is fed by the new daemon after an upgrade
kill -STOP "$pid"
until_true restarted
journalctl -u ropewalk@wg0 | grep -q 'Watchdog timeout'
say a daemon that is stuck is started again
journalctl -o cat -u ropewalk@wg0 | grep -q 'SIGABRT: abort'
if journalctl -o cat | grep -F -e "$key1" -f /etc/credstore/ropewalk.wg0.private-key; then exit 1; fi
say the journal has what it did, and no key

systemctl start wg-quick@wg0 2>/dev/null || true
gone() { [ "$(systemctl is-active ropewalk@wg0)" != active ]; }
until_true gone
say wg-quick and ropewalk are not both run for one interface
systemctl stop wg-quick@wg0 2>/dev/null || true
systemctl stop ropewalk@wg1 ropewalk@wg0
if ip link show wg0 2>/dev/null || ip link show wg1 2>/dev/null; then exit 1; fi
[ -z "$(ls /run/wireguard)" ]
say stopping takes interface and socket away
systemctl start ropewalk@wg1

# The other unit, on a device that is none's; a tunnel whose packets have their flow in the mark is like the kernel's to it.
ip link add rwp0 type veth peer name rwp1
ip link set rwp0 up
printf 'PORT=51991\nARGS=--mark 0xff00 --peer 192.0.2.1\n' >/etc/ropewalk/spread-rwp0.conf
trap 'echo "FAILED in line $LINENO"; journalctl --no-pager -o cat -u "ropewalk-spread@*" | tail -60' ERR
systemctl enable --now ropewalk-spread@rwp0 2>/dev/null
spreads() { ropewalk spread status rwp0 | grep -q 51991; }
until_true spreads
[ "$(systemctl is-active ropewalk-spread@rwp0)" = active ]
if journalctl -o cat -u 'ropewalk-spread@*' | grep -E 'level=(WARN|ERROR)'; then exit 1; fi
systemctl restart ropewalk-spread@rwp0
spreads
systemctl stop ropewalk-spread@rwp0
spreads
ropewalk spread detach rwp0
if spreads; then exit 1; fi
systemctl start ropewalk-spread@rwp0
say the other unit spreads on a device, whose programs stay when it stops
dpkg -r ropewalk >/dev/null
if ip link show wg1 2>/dev/null; then exit 1; fi
[ "$(systemctl is-active ropewalk-spread@rwp0)" != active ]
say removing the package stops what runs
echo done
