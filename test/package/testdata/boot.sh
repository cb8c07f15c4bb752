#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Starts systemd as process 1 of a sandbox whose root is an overlay over this machine's files, so that nothing changes the machine.
# Usage: boot.sh DIRECTORY. DIRECTORY has the packages and the script to run as a service, and receives the script's output. The
# caller must create new mount, PID, network, UTS, IPC and cgroup namespaces.
set -e
work=$1
. "${BASH_SOURCE%/*}/../../docs/testdata/overlay.sh"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t bpf bpf "$root/sys/fs/bpf"

units=$root/etc/systemd/system
rm -rf "$units"/*.wants
mkdir -p "$units" "$root/opt/test" "$root/mnt/host"
for unit in systemd-udevd systemd-networkd systemd-timesyncd systemd-resolved; do ln -sf /dev/null "$units/$unit.service"; done
cp "$work"/*.deb "$work"/*.rpm "$work/SHA256SUMS" "$work/script" "$root/opt/test/"
cat >"$units/test.target" <<UNIT
[Unit]
Wants=systemd-journald.socket dbus.socket test.service
UNIT
cat >"$units/test.service" <<UNIT
[Unit]
DefaultDependencies=no
After=systemd-journald.socket dbus.socket
[Service]
Type=oneshot
TimeoutStartSec=400
ExecStart=/bin/bash /opt/test/script
ExecStopPost=/bin/systemctl exit --force
StandardOutput=append:/mnt/host$work/output
StandardError=inherit
UNIT
: >"$root/etc/machine-id"
cd "$root"
pivot_root . mnt/host
mount --make-rshared / # systemd mounts credentials in a separate namespace, from which they propagate
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=test.target
