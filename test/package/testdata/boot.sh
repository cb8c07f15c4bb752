#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Starts systemd as the first process of namespaces of its own, with a root that is this machine's and a layer over it:
# nothing here changes the machine. boot.sh DIRECTORY, which has the package, the script to run as a service, and gets its
# output. To be called in new mount, PID, network, UTS, IPC and cgroup namespaces.
set -e
work=$1
. "${BASH_SOURCE%/*}/../../docs/testdata/overlay.sh"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t bpf bpf "$root/sys/fs/bpf"

units=$root/etc/systemd/system
rm -rf "$units"/*.wants
mkdir -p "$units" "$root/opt/test" "$root/mnt/host"
for unit in systemd-udevd systemd-networkd systemd-timesyncd systemd-resolved; do ln -sf /dev/null "$units/$unit.service"; done
cp "$work"/*.deb "$work/SHA256SUMS" "$work/script" "$root/opt/test/"
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
mount --make-rshared / # credentials are mounted in a namespace of their own, and come from there
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=test.target
