# SPDX-License-Identifier: Apache-2.0
# Tests ropewalk under systemd as docs/install.md describes it. Runs as a service of a separate systemd.
set -euo pipefail
trap 'echo "FAILED in line $LINENO"; journalctl --no-pager -o cat -u "ropewalk@*" | tail -60' ERR
say() { echo "ok: $*"; }
prop() { systemctl show --value -p "$1" "$2"; }
until_true() { for _ in $(seq 300); do if "$@"; then return 0; fi; sleep 0.1; done; echo "timed out: $*"; return 1; }

ip link set lo up
dpkg -i --force-depends /opt/test/*.deb >/dev/null
say the package installs

# wg0 reads its key from a credential, wg1 from its file. They are peers of each other.
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
# systemd must not receive notifications of another interface that a hook brings up.
printf '[Interface]\nAddress = 10.99.9.9/32\n' >/etc/wireguard/hooked.conf
sed -i '/ListenPort/a PostUp = ropewalk up hooked\nPreDown = ropewalk down hooked' /etc/wireguard/wg0.conf
systemctl enable --now ropewalk@wg0 ropewalk@wg1 2>/dev/null
[ "$(systemctl is-active ropewalk@wg0)" = active ]
say the unit is active once the interface is up
ip -br addr show wg0 | grep -q 10.99.0.1/32
ip route show table 7777 | grep -q 'default dev wg1'
say the interface then has its addresses and routes
ropewalk show wg0 public-key | grep -qxF "$pub0"
say the private key comes from a credential
pid=$(prop MainPID ropewalk@wg0)
tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q '^ropewalk run .*json.* wg0'
say the daemon is the main process and has the arguments of the environment file
journalctl -o cat -u ropewalk@wg0 | grep -q '"msg":"interface up"'
warned() { journalctl -o cat -u 'ropewalk@*' | grep -E 'level":"(WARN|ERROR)|level=(WARN|ERROR)'; }
if warned; then exit 1; fi
say the daemon logs to the journal, without warnings from its sandbox
grep -q '^NoNewPrivs:.1' "/proc/$pid/status"
grep -q '^Seccomp:.2' "/proc/$pid/status"
[ "$(awk '/^CapBnd/ { print $2 }' "/proc/$pid/status")" = 000000c000803400 ]
if (echo -900 >/proc/self/oom_score_adj) 2>/dev/null; then # fails in some containers
	[ "$(cat "/proc/$pid/oom_score_adj")" = -900 ]
fi
say the daemon is sandboxed

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
say a reload adds a peer and keeps the key, the session and the process
echo Nonsense >>/etc/wireguard/wg0.conf
if systemctl reload ropewalk@wg0 2>/dev/null; then exit 1; fi
sed -i /Nonsense/d /etc/wireguard/wg0.conf
[ "$(systemctl is-active ropewalk@wg0)" = active ]
say an invalid file fails the reload and changes nothing

# An upgrade: the package replaces the program of the running daemon, and a new daemon takes over.
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
if warned; then exit 1; fi
say an upgrade keeps the unit, the interface and the peers, sets MAINPID to the new process, allows a reload, and logs no warning
mkdir -m 700 /root/new
cp /usr/bin/ropewalk /root/new/
if /root/new/ropewalk upgrade wg0 2>/tmp/refused; then exit 1; fi
grep -q 'continues.*: starting /root/new/ropewalk: ' /tmp/refused
journalctl -o cat -u ropewalk@wg0 | grep -q 'upgrade requested, starting the new daemon: this daemon runs the tunnel until the new one takes over.*/root/new/ropewalk'
[ "$(prop MainPID ropewalk@wg0)" = "$pid" ]
was=$(rx)
until_true more
say a program outside the sandbox of the unit does not take over, and the old daemon continues

restarted() { local p; p=$(prop MainPID ropewalk@wg0); [ "$(systemctl is-active ropewalk@wg0)" = active ] && [ "$p" != "$pid" ] && [ "$p" != 0 ]; }
kill -KILL "$pid"
until_true restarted
pid=$(prop MainPID ropewalk@wg0)
ip -br addr show wg0 | grep -q 10.99.0.1/32
say a killed daemon is restarted
pid1=$(prop MainPID ropewalk@wg1)
kill -KILL "$pid1"
renewed() { [ "$(prop MainPID ropewalk@wg1)" != "$pid1" ] && ropewalk show wg1 latest-handshakes 2>/dev/null | grep -q '[1-9][0-9]*$'; }
until_true renewed
say the daemon then renews the session with a peer whose endpoint is not configured

mkdir -p /run/systemd/system/ropewalk@wg0.service.d
printf '[Service]\nWatchdogSec=6s\n' >/run/systemd/system/ropewalk@wg0.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart ropewalk@wg0
pid=$(prop MainPID ropewalk@wg0)
last=$(prop WatchdogTimestampMonotonic ropewalk@wg0)
watchdog_notified() { [ "$(prop WatchdogTimestampMonotonic ropewalk@wg0)" != "$last" ]; }
until_true watchdog_notified
[ "$(prop MainPID ropewalk@wg0)" = "$pid" ]
say the daemon notifies the watchdog
ropewalk upgrade wg0
until_true settled
pid=$(prop MainPID ropewalk@wg0)
for _ in 1 2 3 4; do # longer than the watchdog timeout
	last=$(prop WatchdogTimestampMonotonic ropewalk@wg0)
	until_true watchdog_notified
done
[ "$(prop MainPID ropewalk@wg0)" = "$pid" ]
say the new daemon notifies the watchdog after an upgrade
kill -STOP "$pid"
until_true restarted
journalctl -u ropewalk@wg0 | grep -q 'Watchdog timeout'
say a stuck daemon is restarted
journalctl -o cat -u ropewalk@wg0 | grep -q 'SIGABRT: abort'
if journalctl -o cat | grep -F -e "$key1" -f /etc/credstore/ropewalk.wg0.private-key; then exit 1; fi
say the journal has the goroutine stacks of the stuck daemon, and no key

systemctl start wg-quick@wg0 2>/dev/null || true
gone() { [ "$(systemctl is-active ropewalk@wg0)" != active ]; }
until_true gone
say wg-quick and ropewalk do not run both for one interface
systemctl stop wg-quick@wg0 2>/dev/null || true
systemctl stop ropewalk@wg1 ropewalk@wg0
if ip link show wg0 2>/dev/null || ip link show wg1 2>/dev/null; then exit 1; fi
[ -z "$(ls /run/wireguard)" ]
say stopping removes the interface and the socket
systemctl start ropewalk@wg1

# ropewalk-spread@, on an unused device. The socket of wg1 stands in for the kernel's WireGuard.
ip link add rwp0 type veth peer name rwp1
ip link set rwp0 up
printf 'PORT=51991\nARGS=--any-socket --peer 192.0.2.1\n' >/etc/ropewalk/spread-rwp0.conf
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
ropewalk spread detach
if spreads; then exit 1; fi
systemctl start ropewalk-spread@rwp0
say ropewalk-spread@ spreads on a device, whose programs stay attached when the unit stops

# ropewalk-engine@ waits for the file that an agent writes.
trap 'echo "FAILED in line $LINENO"; journalctl --no-pager -o cat -u "ropewalk-engine@*" | tail -60' ERR
echo 'ARGS=--lanes 1' >/etc/ropewalk/engine-rwe0.env
systemctl enable --now ropewalk-engine@rwe0 2>/dev/null
waits() { journalctl -o cat -u ropewalk-engine@rwe0 | grep -q 'configuration file does not exist, waiting'; }
until_true waits
(umask 077 && mkdir -p /var/lib/ropewalk/engine && printf '[Interface]\nPrivateKey = %s\nListenPort = 51992\n' "$key1" >/var/lib/ropewalk/engine/tunnel.conf)
engine_serves() { [ "$(ropewalk show rwe0 listen-port)" = 51992 ]; }
until_true engine_serves
if journalctl -o cat -u ropewalk-engine@rwe0 | grep -E 'level=(WARN|ERROR)'; then exit 1; fi
systemctl restart ropewalk-engine@rwe0
until_true engine_serves
systemctl stop ropewalk-engine@rwe0
ip link show rwe0 >/dev/null
systemctl start ropewalk-engine@rwe0
until_true engine_serves
say ropewalk-engine@ serves a tunnel once an agent has configured it, and keeps its interface when it stops
dpkg -r ropewalk >/dev/null
if ip link show wg1 2>/dev/null; then exit 1; fi
[ "$(systemctl is-active ropewalk-spread@rwp0)" != active ]
[ "$(systemctl is-active ropewalk-engine@rwe0)" != active ]
say removing the package stops all units

# The same with rpm, whose scripts have other arguments. Debian's rpm warns unless it is forced.
rpm() { command rpm --force-debian --nodeps "$@"; }
rpm -i /opt/test/*.rpm
systemctl start ropewalk@wg1
pid=$(prop MainPID ropewalk@wg1)
[ "$pid" != 0 ]
rpm -U --replacepkgs --replacefiles /opt/test/*.rpm
[ "$(prop MainPID ropewalk@wg1)" = "$pid" ]
[ "$(prop NeedDaemonReload ropewalk@wg1)" = no ]
say an upgrade with rpm leaves a tunnel alone
echo ARGS=--log-format json >/etc/default/ropewalk
rpm -e ropewalk
if ip link show wg1 2>/dev/null; then exit 1; fi
[ ! -e /usr/bin/ropewalk ]
grep -q json /etc/default/ropewalk.rpmsave
[ -s /etc/wireguard/wg1.conf ]
say removing with rpm stops the tunnels and keeps the configuration
echo done
