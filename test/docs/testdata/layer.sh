# SPDX-License-Identifier: Apache-2.0
# Makes $root of this machine's files under a layer of its own, and /proc, /sys and /dev. For room.sh beside it and test/package's boot.sh,
# which source it in a new mount namespace, with their directory as $work.
mount --make-rprivate /
mount -t tmpfs tmpfs "$work/layer"
mkdir "$work"/layer/{up,work,root}
root=$work/layer/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/layer/up,workdir=$work/layer/work" "$root"
# What is mounted apart, such as /usr on some machines, is not in the layer below, and gets one of its own.
for dir in /usr /usr/local /etc /var /var/lib /opt /srv /home /root; do
	mountpoint -q "$dir" || continue
	apart="$work/layer/apart${dir//\//-}"
	mkdir "$apart" "$apart/up" "$apart/work"
	mount -t overlay overlay -o "lowerdir=$dir,upperdir=$apart/up,workdir=$apart/work" "$root$dir"
done
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
for dir in run tmp dev; do mount -t tmpfs tmpfs "$root/$dir"; done
mkdir "$root"/dev/{net,pts,shm}
for node in null zero full random urandom tty net/tun; do cp -a "/dev/$node" "$root/dev/$node"; done
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts" && ln -s pts/ptmx "$root/dev/ptmx"
