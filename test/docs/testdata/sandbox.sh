#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a script that cannot change the machine: its root is an overlay over this machine's files, and its namespaces end with it.
# Usage: sandbox.sh DIRECTORY REPOSITORY. DIRECTORY has the script and, in bin/, the programs that it may call. The caller must create
# new mount, network, PID, UTS and IPC namespaces.
set -eu
work=$1 repository=$2
. "${BASH_SOURCE%/*}/overlay.sh"
mount --bind "$root/sys/devices/virtual/net" "$root/sys/devices/virtual/net"
mount -o remount,bind,ro "$root/sys" # the devices of this namespace stay writable
for dir in "$root"/sys/devices/system/cpu/cpufreq "$root"/sys/devices/system/cpu/cpu*/cpufreq; do # hidden, or doctor would set a governor
	if [ -d "$dir" ]; then mount -t tmpfs -o ro tmpfs "$dir"; fi
done
mount -t bpf -o mode=700 bpf "$root/sys/fs/bpf"
mkdir "$root/run/netns" "$root/src"
ln -s /proc/self/fd "$root/dev/fd" && ln -s /proc/self/fd/0 "$root/dev/stdin" && ln -s /proc/self/fd/1 "$root/dev/stdout"
# Of the sysctls, only net.* belongs to this network namespace. The others are mounted read-only.
mount --bind "$root/proc/sys/net" "$root/proc/sys/net"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount --bind "$root/proc/sys/net" "$root/proc/sys/net"
mount -o remount,bind,ro "$root/proc/sys"
mkdir "$work"/layer/{srcup,srcwork}
mount -t overlay overlay -o "lowerdir=$repository,upperdir=$work/layer/srcup,workdir=$work/layer/srcwork" "$root/src"
mkdir -p "$root/src/bin"
cp "$work"/bin/* "$root/src/bin/"
cp "$work"/bin/* "$root/usr/bin/"
cp "$work/script" "$root/tmp/script"
rm -rf "$root"/etc/wireguard "$root"/etc/ropewalk "$root"/var/lib/ropewalk
mkdir -p "$root/etc/wireguard" && chmod 700 "$root/etc/wireguard"
mkdir "$root/tmp/old"
cd "$root"
pivot_root . tmp/old
umount -l /tmp/old
cd /src
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LC_ALL=C.UTF-8 bash /tmp/script
