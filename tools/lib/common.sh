# shellcheck shell=bash
# Helpers that every tool here shares: messages, paths, locks, hashes, packages.
#
# Sourced, never run. Sets PATH to the system's own directories first, so that a version manager's
# shims, a virtual environment or a vendor's compiler in PATH have no say in what gets built.

set -euo pipefail

PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin
export PATH
export LC_ALL=C.UTF-8
unset CDPATH GREP_OPTIONS PYTHONHOME PYTHONPATH LD_LIBRARY_PATH LD_PRELOAD \
    LIBRARY_PATH CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH PKG_CONFIG_PATH \
    GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
umask 022

# Where things are kept. Both can be moved by the environment.
#   cache: costly things, named by the hash of what they are made of; safe to delete at any time
#   run:   what exists right now; of no value after a reboot
WD_CACHE=${WORKDIR_CACHE:-/var/cache/workdir-dev}
WD_RUN=${WORKDIR_RUN:-/run/workdir-dev}

# Everything is for this release until a second one is supported.
WD_SUITE=bookworm

WD_LIB=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
WD_TOP=$(cd -P -- "$WD_LIB/../.." && pwd)
readonly WD_CACHE WD_RUN WD_SUITE WD_LIB WD_TOP

# ---------------------------------------------------------------- messages (stderr)

WD_SELF=${WD_SELF:-${0##*/}}

if [[ -t 2 && -z ${NO_COLOR:-} ]]; then
    WD_BOLD=$'\e[1m' WD_RED=$'\e[31m' WD_YELLOW=$'\e[33m' WD_DIM=$'\e[2m' WD_OFF=$'\e[0m'
else
    WD_BOLD='' WD_RED='' WD_YELLOW='' WD_DIM='' WD_OFF=''
fi
readonly WD_BOLD WD_RED WD_YELLOW WD_DIM WD_OFF

say() { printf '%s\n' "$*" >&2; }
info() { printf '%s%s: %s%s\n' "$WD_DIM" "$WD_SELF" "$*" "$WD_OFF" >&2; }
warn() { printf '%s%s: %s%s\n' "$WD_YELLOW" "$WD_SELF" "$*" "$WD_OFF" >&2; }
die() {
    printf '%s%s: %s%s\n' "$WD_RED" "$WD_SELF" "$*" "$WD_OFF" >&2
    exit 1
}

# Seconds since $1 (a value of EPOCHREALTIME), with one decimal.
since() {
    local us=$((${EPOCHREALTIME/./} - ${1/./}))
    printf '%d.%d' $((us / 1000000)) $((us % 1000000 / 100000))
}

# Prints the header comment of the calling script, which doubles as its help.
usage_from_header() { sed -n '2,/^[^#]/{/^#/!d;s/^# \{0,1\}//;p}' "$0"; }

# ---------------------------------------------------------------- conditions

need_root() { ((EUID == 0)) || die "must run as root (try: sudo $0)"; }

# True where systemd is pid 1 (sd_booted(3)).
systemd_is_pid1() { [[ -d /run/systemd/system ]]; }

os_release() { sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p" /etc/os-release 2>/dev/null || true; }

need_debian() {
    command -v apt-get >/dev/null && command -v dpkg-query >/dev/null && return
    die "this needs Debian 12 or a relative with apt; here is: $(os_release PRETTY_NAME)"
}

# wait_until SECONDS COMMAND…: polls until the command succeeds; false when time is up. For
# conditions of the kernel that can only be polled.
wait_until() {
    local deadline=$((${EPOCHREALTIME/./} + $1 * 1000000))
    shift
    until "$@"; do
        ((${EPOCHREALTIME/./} < deadline)) || return 1
        sleep 0.05
    done
}

# ---------------------------------------------------------------- hashes

# First 16 hex digits of the SHA-256 of stdin.
hash_stdin() {
    local sum
    sum=$(sha256sum)
    printf '%s' "${sum:0:16}"
}

# hash_tree PATH…: one hash over names, executable bits and contents of all files below the
# given paths of the checkout (those that git would track, so build results do not count).
hash_tree() { (
    cd -- "$WD_TOP"
    git -c safe.directory='*' ls-files -z --cached --others --exclude-standard -- "$@" |
        sort -zu |
        while IFS= read -r -d '' f; do
            if [[ -L $f ]]; then
                printf 'l %s %s\n' "$f" "$(readlink -- "$f")"
            elif [[ -f $f ]]; then
                [[ -x $f ]] && printf 'x %s\n' "$f" || printf 'f %s\n' "$f"
                sha256sum <"$f"
            fi
        done
) | hash_stdin; }

# ---------------------------------------------------------------- locks

# with_lock NAME COMMAND…: runs a function under an exclusive lock. A lock that we hold already is
# not taken again, so clean-up code may use what the code that failed was using.
declare -A WD_HELD=()
with_lock() {
    local name=$1 fd rc
    shift
    if [[ -n ${WD_HELD[$name]:-} ]]; then
        "$@"
        return
    fi
    mkdir -p -- "$WD_RUN"
    exec {fd}>>"$WD_RUN/$name.lock"
    if ! flock -n "$fd"; then
        info "waiting for another one that holds '$name'"
        flock "$fd"
    fi
    WD_HELD[$name]=$fd
    # Not "|| rc=": that would switch errexit off inside. Where the caller tests us it is off anyway.
    "$@"
    rc=$?
    unset "WD_HELD[$name]"
    exec {fd}>&-
    return $rc
}

# close_other_fds [KEEP]: closes every fd above 2 (but KEEP) in this (sub)shell: for a process that
# shall outlive its maker.
close_other_fds() {
    local fd keep=${1:-0}
    for fd in /proc/self/fd/*; do
        fd=${fd##*/}
        # 255 is bash's own handle on its script.
        ((fd <= 2 || fd == 255 || fd == keep)) || eval "exec $fd>&-"
    done
}

# ---------------------------------------------------------------- processes

# An identity for a process that survives re-use of its number: "PID STARTTIME BOOT_ID".
proc_identity() {
    local stat
    stat=$(<"/proc/$1/stat") || return 1
    stat=${stat##*) }
    # shellcheck disable=SC2086
    set -- "$1" $stat
    printf '%s %s %s' "$1" "${21}" "$(</proc/sys/kernel/random/boot_id)"
}

# proc_is "IDENTITY": true while that very process exists and is no zombie.
proc_is() {
    local pid=${1%% *} now
    [[ $pid =~ ^[0-9]+$ && -r /proc/$pid/stat ]] || return 1
    now=$(proc_identity "$pid" 2>/dev/null) || return 1
    [[ $now == "$1" ]] || return 1
    ! grep -qs '^State:[[:space:]]*[ZX]' "/proc/$pid/status"
}

proc_is_gone() { ! proc_is "$1"; }

# ---------------------------------------------------------------- host packages

apt_log() { printf '%s/log/apt-%s.log' "$WD_CACHE" "$WD_SELF"; }

# quiet COMMAND…: runs it with its output in the log; shows the log's end if it fails.
quiet() {
    local log rc=0
    log=$(apt_log)
    mkdir -p -- "${log%/*}"
    "$@" >"$log" 2>&1 </dev/null || rc=$?
    ((rc == 0)) && return 0
    tail -n 25 -- "$log" >&2
    return $rc
}

apt_host() { DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=300 "$@"; }

pkg_installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# Package lists: fetched when there are none or they are older than a day.
refresh_host_lists() {
    if [[ -n $(find /var/lib/apt/lists -maxdepth 1 -name '*Packages*' -print -quit 2>/dev/null) &&
        -n $(find /var/lib/apt/lists "$WD_CACHE/host-lists" -maxdepth 0 -mmin -1440 2>/dev/null) ]]; then
        return 0
    fi
    # apt-get update exits 0 on a failed fetch unless told otherwise.
    quiet apt_host update -o APT::Update::Error-Mode=any ||
        die "apt-get update failed: is there a network, and are the sources in /etc/apt right?"
    mkdir -p -- "$WD_CACHE"
    touch -- "$WD_CACHE/host-lists"
}

# need_pkgs PACKAGE…: installs on this machine what is missing.
need_pkgs() {
    local p missing=()
    need_debian
    # One question for all is much faster, and mostly all that is needed.
    [[ $(dpkg-query -W -f='${db:Status-Status}\n' "$@" 2>/dev/null | grep -cx installed) != "$#" ]] || return 0
    for p in "$@"; do pkg_installed "$p" || missing+=("$p"); done
    ((${#missing[@]})) || return 0
    need_root
    info "installing on this machine: ${missing[*]}"
    refresh_host_lists
    quiet apt_host install --no-install-recommends "${missing[@]}" ||
        die "apt-get could not install: ${missing[*]}"
}
