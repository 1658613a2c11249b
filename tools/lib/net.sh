# shellcheck shell=bash
# A network for a box: one veth pair, a /30 of its own, one nftables table with one masquerade
# rule. All names derive from the box's key, so what an interrupted run left can be found.
#
# Needs common.sh. State: $WD_RUN/net/KEY holds the box's /30; $WD_RUN/net/.ip_forward the
# machine's own setting, put back when the last box leaves. Locking: with_lock net.

net_dir() { printf '%s/net' "$WD_RUN"; }
net_link() { printf 'wd%sh' "$(printf '%s' "$1" | hash_stdin | cut -c1-10)"; }
net_peer() { printf 'wd%sb' "$(printf '%s' "$1" | hash_stdin | cut -c1-10)"; }
net_table() { printf 'workdir_%s' "${1//-/_}"; }

# State of an earlier boot of this machine means nothing.
net_forget_old_boot() {
    local boot
    boot=$(</proc/sys/kernel/random/boot_id)
    if [[ ! -e $(net_dir)/.boot || $(<"$(net_dir)/.boot") != "$boot" ]]; then
        rm -rf -- "$(net_dir)"
        mkdir -p -- "$(net_dir)"
        printf '%s' "$boot" >"$(net_dir)/.boot"
    fi
}

# True when no route but a default one touches the network $1.
net_is_free() {
    [[ -z $(ip -4 route show table all root "$1") ]] || return 1
    [[ -z $(ip -4 route show table all match "$1" | grep -v '^default\|^0\.0\.0\.0/0' || true) ]]
}

# net_pick: prints the first three octets and the base of a free /30, as "A.B.C BASE".
net_pick() {
    local prefix third base
    for prefix in 10.219 172.29 192.168 100.101; do
        for third in $(seq 64 127); do
            for base in 0 32 64 96 128 160 192 224; do
                grep -qsx "$prefix.$third $base" "$(net_dir)"/* && continue
                net_is_free "$prefix.$third.$base/30" || continue
                printf '%s.%s %s' "$prefix" "$third" "$base"
                return
            done
        done
    done
    die "no free private network found for the box"
}

net_uplink_mtu() {
    local dev
    dev=$(ip -4 route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -n1)
    [[ -n $dev ]] && cat "/sys/class/net/$dev/mtu" || echo 1500
}

# net_up KEY PID: gives the network namespace of PID its link and address.
net_up() { with_lock net net_up_locked "$@"; }
net_up_locked() {
    local key=$1 pid=$2 net base link peer mtu
    net_forget_old_boot
    net_down_locked "$key"
    read -r net base < <(net_pick; echo)
    [[ -n $net ]] || return 1
    printf '%s %s\n' "$net" "$base" >"$(net_dir)/$key"
    link=$(net_link "$key") peer=$(net_peer "$key") mtu=$(net_uplink_mtu)

    ip link add "$link" mtu "$mtu" type veth peer name "$peer" mtu "$mtu"
    ip link set "$peer" netns "$pid"
    ip addr add "$net.$((base + 1))/30" dev "$link"
    ip link set "$link" up
    nsenter -t "$pid" -n ip link set lo up
    nsenter -t "$pid" -n ip link set "$peer" name eth0
    nsenter -t "$pid" -n ip addr add "$net.$((base + 2))/30" dev eth0
    nsenter -t "$pid" -n ip link set eth0 up
    nsenter -t "$pid" -n ip route add default via "$net.$((base + 1))"
    nft -f - <<RULES
table ip $(net_table "$key") {
    chain postrouting {
        type nat hook postrouting priority srcnat;
        ip saddr $net.$base/30 oifname != "$link" masquerade
    }
}
RULES
    [[ -e $(net_dir)/.ip_forward ]] || cat /proc/sys/net/ipv4/ip_forward >"$(net_dir)/.ip_forward"
    echo 1 >/proc/sys/net/ipv4/ip_forward
}

# net_down KEY: removes all of it; fine when there is nothing.
net_down() { with_lock net net_down_both "$1"; }
net_down_both() {
    net_forget_old_boot
    net_down_locked "$1"
}
net_down_locked() {
    local link
    link=$(net_link "$1")
    [[ ! -e /sys/class/net/$link ]] || ip link del "$link" 2>/dev/null || true
    nft delete table ip "$(net_table "$1")" 2>/dev/null || true
    [[ -e $(net_dir)/$1 ]] || return 0
    rm -f -- "$(net_dir)/$1"
    if [[ -z $(ls -- "$(net_dir)") && -e $(net_dir)/.ip_forward ]]; then
        cat "$(net_dir)/.ip_forward" >/proc/sys/net/ipv4/ip_forward
        rm -f -- "$(net_dir)/.ip_forward"
    fi
}

# A resolv.conf that is of use outside of this machine's own loopback.
net_resolv_conf() {
    local f
    for f in /etc/resolv.conf /run/systemd/resolve/resolv.conf; do
        if [[ -r $f ]] && grep -qsE '^nameserver' "$f" &&
            ! grep -qsE '^nameserver[[:space:]]+(127\.|::1)' "$f"; then
            cat "$f"
            return
        fi
    done
    cat /etc/resolv.conf 2>/dev/null || true
}
