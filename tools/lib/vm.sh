# shellcheck shell=bash
# The disk of a test VM: a Debian 12 with its kernel, as a raw ext4 image beside vmlinuz and initrd.
#
# Needs common.sh, root.sh. Leaves $WD_CACHE/roots/vm-HASH/{disk.raw,vmlinuz,initrd,host_key.pub}.

vm_packages=systemd-sysv,dbus,libpam-systemd,udev,kmod,linux-image-amd64,initramfs-tools,openssh-server,ca-certificates,iproute2,procps,less,netbase
vm_disk_size=24G

# Before the kernel is installed: an initrd with just what finds the disk boots in half the time.
vm_hook_early() {
    mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"
    printf "MODULES=list\nCOMPRESS=lz4\n" >"$1/etc/initramfs-tools/conf.d/testvm"
    printf "virtio_pci\nvirtio_blk\next4\ncrc32c_generic\n" >"$1/usr/share/initramfs-tools/modules.d/testvm"
}

vm_hook() {
    local r=$1
    printf '127.0.0.1 localhost testvm\n' >"$r/etc/hosts"
    echo testvm >"$r/etc/hostname"
    echo '/dev/vda / ext4 defaults,discard 0 1' >"$r/etc/fstab"
    # QEMU's user network.
    printf 'nameserver 10.0.2.3\n' >"$r/etc/resolv.conf"
    mkdir -p "$r/etc/systemd/network" "$r/etc/ssh/sshd_config.d" "$r/etc/systemd/journald.conf.d"
    cat >"$r/etc/systemd/network/eth.network" <<'NET'
[Match]
Name=en* eth*
[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
LinkLocalAddressing=no
IPv6AcceptRA=no
NET
    chroot "$r" systemctl -q enable systemd-networkd.service
    chroot "$r" systemctl -q mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer \
        e2scrub_reap.service fstrim.timer systemd-networkd-wait-online.service getty@tty1.service \
        serial-getty@ttyS0.service systemd-timesyncd.service
    # Many runs share one connection.
    printf 'MaxSessions 200\nUseDNS no\n' >"$r/etc/ssh/sshd_config.d/testvm.conf"
    printf '[Journal]\nStorage=persistent\n' >"$r/etc/systemd/journald.conf.d/testvm.conf"
}

vm_build() {
    local dest=$1 k
    mkdir -p -- "$dest"
    debootstrap_root "$vm_packages" vm_hook "$dest/root"
    k=$(echo "$dest"/root/boot/vmlinuz-*)
    cp -- "$k" "$dest/vmlinuz"
    cp -- "${k/vmlinuz/initrd.img}" "$dest/initrd"
    cp -- "$dest/root/etc/ssh/ssh_host_ed25519_key.pub" "$dest/host_key.pub"
    truncate -s "$vm_disk_size" "$dest/disk.raw"
    mkfs.ext4 -q -F -E lazy_itable_init=1,lazy_journal_init=1 -L root -d "$dest/root" "$dest/disk.raw"
    rm -rf --one-file-system -- "$dest/root"
}

vm_root() {
    local hash
    hash=$({
        declare -f debootstrap_root vm_hook vm_hook_early vm_build apt_settings
        echo "$vm_packages" "$vm_disk_size" "$WD_SUITE"
        apt_sources
    } | hash_stdin)
    cached vm "$hash" vm_build
}
