#!/bin/bash
# First program in a box's new namespaces: lays out the file systems, waits until the network is
# there, becomes pid 1's program (the arguments). Run by box_start only.
#
#   BOX_DIR       state directory of the box, host side
#   BOX_ROOT      directory to use as root; with BOX_OVERLAY only its read-only lower layer
#   BOX_OVERLAY   directory with upper/ and work/ (empty: BOX_ROOT itself is written to)
#   BOX_BINDS     lines MODE, SOURCE, TARGET with tabs between, MODE ro or rw: bound into the root
#   BOX_HOSTNAME  host name
#   BOX_GATE      fd to wait on
#   BOX_DEVICES   host device nodes that it gets too, if they exist
#
# /dev is a small tmpfs of our own: the host's devtmpfs is shared, and a chmod in there would
# reach the host. /sys and /proc/sys (but its net/) are read-only for the same reason.

set -euo pipefail

mount --make-rprivate /
R=$BOX_DIR/root
mkdir -p -- "$R"
if [[ -n $BOX_OVERLAY ]]; then
    mount -t overlay -o "lowerdir=$BOX_ROOT,upperdir=$BOX_OVERLAY/upper,workdir=$BOX_OVERLAY/work" \
        overlay "$R"
else
    mount --bind "$BOX_ROOT" "$R"
fi

mount -t proc -o nosuid,nodev,noexec proc "$R/proc"
mount --bind "$R/proc/sys" "$R/proc/sys"
mount --bind "$R/proc/sys/net" "$R/proc/sys/net"
mount -o remount,bind,ro "$R/proc/sys"
if [[ -e $R/proc/sysrq-trigger ]]; then
    mount --bind "$R/proc/sysrq-trigger" "$R/proc/sysrq-trigger"
    mount -o remount,bind,ro "$R/proc/sysrq-trigger"
fi
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$R/sys"
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs "$R/run"

mount -t tmpfs -o mode=755,nosuid,noexec,size=4m tmpfs "$R/dev"
mkdir -p "$R"/dev/{pts,shm,net}
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5,nosuid,noexec devpts "$R/dev/pts"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$R/dev/shm"
mknod -m 666 "$R/dev/null" c 1 3
mknod -m 666 "$R/dev/zero" c 1 5
mknod -m 666 "$R/dev/full" c 1 7
mknod -m 666 "$R/dev/random" c 1 8
mknod -m 666 "$R/dev/urandom" c 1 9
mknod -m 666 "$R/dev/tty" c 5 0
mknod -m 600 "$R/dev/console" c 1 3
ln -s pts/ptmx "$R/dev/ptmx"
ln -s /proc/self/fd "$R/dev/fd"
ln -s /proc/self/fd/0 "$R/dev/stdin"
ln -s /proc/self/fd/1 "$R/dev/stdout"
ln -s /proc/self/fd/2 "$R/dev/stderr"
for dev in $BOX_DEVICES; do
    [[ -e $dev ]] || continue
    type=c
    [[ ! -b $dev ]] || type=b
    # %t and %T: major and minor, in hexadecimal. Modes as udev's rules on Debian set them.
    read -r major minor < <(stat -c '%t %T' "$dev")
    mode=660
    [[ $dev != /dev/net/tun && $dev != /dev/fuse ]] || mode=666
    mknod -m "$mode" "$R$dev" "$type" "$((16#$major))" "$((16#$minor))"
done
if [[ -e $R/dev/kvm ]]; then
    gid=$(awk -F: '$1 == "kvm" { print $3 }' "$R/etc/group")
    chgrp "${gid:-0}" "$R/dev/kvm"
fi

# The hierarchies as the host has them; the cgroup namespace makes our groups their roots.
v2_only=1
while read -r type _ _; do [[ $type == cgroup2 ]] || v2_only=0; done <"$BOX_DIR/hierarchies"
if ((v2_only)); then
    mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$R/sys/fs/cgroup"
else
    mount -t tmpfs -o mode=755,nosuid,nodev,noexec tmpfs "$R/sys/fs/cgroup"
    while read -r type where controllers; do
        where=$R/sys/fs/cgroup/${where##*/}
        mkdir -p -- "$where"
        if [[ $type == cgroup2 ]]; then
            mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$where"
        elif [[ $controllers == name=* ]]; then
            mount -t cgroup -o "nosuid,nodev,noexec,none,$controllers" cgroup "$where"
        else
            mount -t cgroup -o "nosuid,nodev,noexec,$controllers" cgroup "$where"
        fi
    done <"$BOX_DIR/hierarchies"
    mount -o remount,ro,nosuid,nodev,noexec,mode=755 "$R/sys/fs/cgroup"
fi

while IFS=$'\t' read -r mode from to; do
    [[ -n $mode ]] || continue
    if [[ -d $from ]]; then
        mkdir -p -- "$R$to"
    elif [[ ! -e $R$to ]]; then
        mkdir -p -- "$R${to%/*}"
        : >"$R$to"
    fi
    mount --bind "$from" "$R$to"
    [[ $mode != ro ]] || mount -o remount,bind,ro "$R$to"
done <<<"$BOX_BINDS"

hostname "$BOX_HOSTNAME"
printf '%s\n' "$BOX_HOSTNAME" >"$R/etc/hostname"

# A line arrives when the network is up, end of file if the maker died.
read -r -u "$BOX_GATE" _
exec {BOX_GATE}<&-

# pivot_root, not chroot: nothing of the host's mounts may be held or seen in here.
cd -- "$R"
mkdir -p .old-root
pivot_root . .old-root
exec env -i container=workdir-box PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/root TERM="${TERM:-dumb}" LANG=C.UTF-8 \
    /bin/bash -c 'umount -l /.old-root && rmdir /.old-root && exec "$@"' box "$@"
