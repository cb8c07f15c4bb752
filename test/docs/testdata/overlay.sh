# SPDX-License-Identifier: Apache-2.0
# Creates $root: an overlay over this machine's files, with new /proc, /sys and /dev. sandbox.sh beside it and boot.sh of test/package
# source it in a new mount namespace. $work is their work directory.
mount --make-rprivate /
mount -t tmpfs tmpfs "$work/layer"
mkdir "$work"/layer/{up,work,root}
root=$work/layer/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/layer/up,workdir=$work/layer/work" "$root"
# A separate file system, such as /usr on some machines, is not part of the overlay over /. It gets its own overlay.
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
