# shellcheck shell=bash
# Clean Debian roots from mmdebstrap, cached by the hash of what they are made of.
#
# Needs common.sh. Leaves $WD_CACHE/roots/NAME-HASH/ (a directory tree that nobody changes), or
# whatever else a caller builds under the same scheme.

# The machine's Debian sources, as one-line entries for the suite we want. apt itself is asked,
# so any format and place of the sources will do; the answer is kept as long as they stay the same.
apt_sources() {
    local kept
    kept=$WD_CACHE/apt-sources-$({
        echo "$WD_SUITE"
        find /etc/apt/sources.list /etc/apt/sources.list.d -type f -printf '%p %T@\n' 2>/dev/null | sort
        declare -f ask_apt_for_sources
    } | hash_stdin)
    if [[ ! -s $kept ]]; then
        refresh_host_lists
        mkdir -p -- "$WD_CACHE"
        ask_apt_for_sources >"$kept.$$"
        mv -- "$kept.$$" "$kept"
    fi
    cat -- "$kept"
}

ask_apt_for_sources() {
    # shellcheck disable=SC2016  # the dollars are apt's
    apt-get indextargets --format '$(CREATED_BY)|$(LABEL)|$(CODENAME)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)' |
        awk -F'|' -v suite="$WD_SUITE" '
            $1 != "Packages" || ($2 != "Debian" && $2 != "Debian-Security") { next }
            { if ($3 ~ "^" suite) line = "deb " $4 " " $5
              else line = "deb " $4 " " suite ($2 == "Debian-Security" ? "-security" : "")
              if ($6 == "main" && !seen[line]++) print line, "main" }'
}

# Settings without which the machine's apt would not reach its sources.
apt_settings() {
    apt-config dump | grep -E '^Acquire::(https?::Proxy|https?::Proxy::.*|Check-Valid-Until|Check-Date|https?::Timeout) "' |
        grep -v ' "";$' || true
}

# cached NAME HASH BUILDER ARGS…: prints the path of $WD_CACHE/roots/NAME-HASH, made by
# `BUILDER ARGS… PATH` if it is not there. Made aside and renamed, so it is whole or absent.
cached() {
    local name=$1 hash=$2 dest
    shift 2
    dest=$WD_CACHE/roots/$name-$hash
    mkdir -p -- "$WD_CACHE/roots"
    [[ -e $dest ]] || with_lock "root-$name" cached_build "$dest" "$@" >&2
    [[ -e $dest ]] || die "could not make $dest"
    touch -- "$dest"
    printf '%s' "$dest"
}

cached_build() {
    local dest=$1 tmp start=$EPOCHREALTIME
    shift
    [[ ! -e $dest ]] || return 0
    # What an interrupted build left; nobody else works here while we hold the lock.
    rm -rf --one-file-system -- "${dest%-*}".making.*
    tmp=${dest%-*}.making.$$
    info "making ${dest##*/} (kept in $WD_CACHE for the next time)"
    "$@" "$tmp"
    mv -T -- "$tmp" "$dest"
    info "made ${dest##*/} in $(since "$start") s"
}

# debootstrap_root PACKAGES(comma-separated) HOOK DEST: minbase and the packages, as a directory. HOOK
# is a function, called with the path at the end; HOOK_early, if there is one, before the packages
# are installed. The package lists stay in it.
debootstrap_root() {
    local packages=$1 hook=$2 dest=$3 early=true sources settings log
    need_pkgs mmdebstrap
    sources=$(apt_sources)
    [[ -n $sources ]] || die "found no Debian source in /etc/apt (need one that has $WD_SUITE)"
    settings=$dest.settings log=$dest.log
    # Downloads are kept, so that they can be shared with the next root or box.
    {
        apt_settings
        echo 'APT::Keep-Downloaded-Packages "true";'
        echo 'Acquire::Languages "none";'
    } >"$settings"
    # mmdebstrap's hooks run in a shell of their own.
    if declare -F "${hook}_early" >/dev/null; then
        early="bash -c '$(declare -f "${hook}_early"); ${hook}_early \"\$1\"' early \"\$1\""
    fi
    # Downloads go in and out of our own cache, much as the mmdebstrap manual has it.
    env -i PATH="$PATH" LC_ALL=C.UTF-8 HOME=/root TMPDIR="${TMPDIR:-/tmp}" \
        ${http_proxy:+http_proxy="$http_proxy"} \
        mmdebstrap --mode=root --variant=minbase --include="$packages" \
        --aptopt="$settings" --dpkgopt=force-unsafe-io \
        --skip=essential/unlink --skip=cleanup/apt/lists \
        --setup-hook=". '$WD_LIB/debs.sh'; debs_out '$WD_CACHE/debs' \"\$1/var/cache/apt/archives\"" \
        --essential-hook="$early" \
        --customize-hook=". '$WD_LIB/debs.sh'; debs_in '$WD_CACHE/debs' \"\$1/var/cache/apt/archives\"" \
        "$WD_SUITE" "$dest" - <<<"$sources" >"$log" 2>&1 || {
        tail -n 25 -- "$log" >&2
        die "mmdebstrap failed"
    }
    rm -f -- "$settings" "$log"
    rm -f -- "$dest"/var/cache/apt/archives/*.deb "$dest/etc/hostname" "$dest/etc/resolv.conf"
    : >"$dest/etc/machine-id"
    "$hook" "$dest"
}

# What a clean server has and minbase has not. Nothing that workdir's own packages must bring.
server_packages=systemd-sysv,dbus,libpam-systemd,ca-certificates,iproute2,procps,less,kmod,netbase

server_hook() {
    local r=$1 u
    printf '127.0.0.1 localhost\n' >"$r/etc/hosts"
    # Units that make no sense in namespaces of a shared kernel, or that would touch its devices.
    for u in systemd-udevd.service systemd-udev-trigger.service systemd-udev-settle.service \
        systemd-udevd-control.socket systemd-udevd-kernel.socket \
        systemd-modules-load.service systemd-remount-fs.service systemd-sysctl.service \
        systemd-binfmt.service proc-sys-fs-binfmt_misc.automount proc-sys-fs-binfmt_misc.mount \
        sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount \
        sys-fs-fuse-connections.mount dev-hugepages.mount modprobe@.service \
        console-getty.service getty@.service serial-getty@.service container-getty@.service \
        systemd-networkd-wait-online.service systemd-timesyncd.service \
        apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer \
        systemd-firstboot.service systemd-pstore.service; do
        ln -sfn /dev/null "$r/etc/systemd/system/$u"
    done
    mkdir -p "$r/etc/systemd/journald.conf.d"
    printf '[Journal]\nStorage=persistent\nSystemMaxUse=200M\nReadKMsg=no\n' \
        >"$r/etc/systemd/journald.conf.d/box.conf"
    # A box lives for hours: speed of dpkg over safety against power cuts.
    echo force-unsafe-io >"$r/etc/dpkg/dpkg.cfg.d/box"
}

# server_root: prints the path of the cached root for a box.
server_root() {
    local hash
    hash=$({
        declare -f debootstrap_root server_hook apt_settings
        echo "$server_packages" "$WD_SUITE"
        apt_sources
    } | hash_stdin)
    cached server "$hash" debootstrap_root "$server_packages" server_hook
}
