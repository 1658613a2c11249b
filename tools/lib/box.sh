# shellcheck shell=bash
# Boxes: a tree of processes in pid, mount, network, cgroup, uts and ipc namespaces of its own,
# with a root of its own. tools/devbox runs a systemd in one, tools/freshroot a command.
#
# Needs common.sh, cgroup.sh, net.sh. A box has a key (a short string fit for any name). Leaves:
#   $WD_RUN/box/KEY/       anchor, init (identities of the two processes), cgroups, log
#   cgroups, a network     see cgroup.sh, net.sh
# Everything else lives in the namespaces and goes with them.

box_dir() { printf '%s/box/%s' "$WD_RUN" "$1"; }

# Prints the pid of the box's pid 1, as the host sees it; false when the box is not running.
box_pid() {
    local id
    [[ -r $(box_dir "$1")/init ]] || return 1
    id=$(<"$(box_dir "$1")/init")
    proc_is "$id" || return 1
    printf '%s' "${id%% *}"
}

# box_start KEY PROGRAM-ARGS…: makes a box. What is in it is told by BOX_* variables, see
# box-init.sh. The arguments are what its pid 1 executes in there. stdin, stdout and stderr of
# the box are the caller's when BOX_ATTACHED=1, else null and the log.
box_start() {
    local key=$1 dir anchor init both gate_in gate_out box_in box_out box_err
    shift
    dir=$(box_dir "$key")
    rm -rf -- "$dir"
    mkdir -p -- "$dir"
    cgroup_create "workdir-$key"
    cgroup_paths "workdir-$key" >"$dir/cgroups"
    mapfile -t BOX_CGROUPS <"$dir/cgroups"
    # The gate: box-init goes on when a line arrives, and gives up if we die before that.
    mkfifo -- "$dir/gate"
    # shellcheck disable=SC2094
    exec {both}<>"$dir/gate" {gate_out}<"$dir/gate" {gate_in}>"$dir/gate" {both}>&-
    rm -f -- "$dir/gate"
    cgroup_hierarchies >"$dir/hierarchies"

    if [[ ${BOX_ATTACHED:-} == 1 ]]; then
        exec {box_in}<&0 {box_out}>&1 {box_err}>&2
    else
        exec {box_in}</dev/null {box_out}>"$dir/log" {box_err}>&"$box_out"
    fi
    (
        exec <&"$box_in" >&"$box_out" 2>&"$box_err"
        close_other_fds "$gate_out"
        cgroup_join "$BASHPID" "${BOX_CGROUPS[@]}"
        export BOX_DIR=$dir BOX_GATE=$gate_out BOX_ROOT BOX_OVERLAY BOX_BINDS BOX_HOSTNAME BOX_DEVICES
        [[ ${BOX_ATTACHED:-} == 1 ]] || exec setsid unshare --pid --fork --kill-child --mount \
            --net --cgroup --uts --ipc -- /bin/bash "$WD_LIB/box-init.sh" "$@"
        exec unshare --pid --fork --kill-child --mount \
            --net --cgroup --uts --ipc -- /bin/bash "$WD_LIB/box-init.sh" "$@"
    ) &
    anchor=$!
    exec {box_in}<&- {box_out}>&- {box_err}>&-
    proc_identity "$anchor" >"$dir/anchor"

    # The child exists once all namespaces do.
    init=''
    # shellcheck disable=SC2317  # called through wait_until
    box_has_child() {
        read -r init _ <"/proc/$anchor/task/$anchor/children" || true
        [[ -n $init || ! -d /proc/$anchor ]]
    } 2>/dev/null
    wait_until 30 box_has_child || true
    [[ -n $init ]] || {
        tail -n 5 -- "$dir/log" >&2 2>/dev/null || true
        die "could not make namespaces"
    }
    proc_identity "$init" >"$dir/init"
    net_up "$key" "$init"
    echo go >&"$gate_in"
    exec {gate_in}>&- {gate_out}<&-
    # For the caller: what to wait for.
    # shellcheck disable=SC2034
    BOX_ANCHOR=$anchor BOX_INIT=$init
}

# box_stop KEY: ends the box and removes what it left; fine when there is nothing or half of it.
box_stop() {
    local key=$1 dir id groups=()
    dir=$(box_dir "$key")
    for id in init anchor; do
        [[ -r $dir/$id ]] || continue
        id=$(<"$dir/$id")
        # pid 1 of a pid namespace takes everything in it along, and SIGKILL is all it heeds.
        if proc_is "$id"; then kill -KILL "${id%% *}" 2>/dev/null || true; fi
        wait_until 60 proc_is_gone "$id" || die "process ${id%% *} of box $key does not end"
    done
    # Those recorded, and those that a machine reset or another session may have left behind.
    [[ ! -r $dir/cgroups ]] || mapfile -t groups <"$dir/cgroups"
    mapfile -t groups < <({ printf '%s\n' "${groups[@]}"; cgroup_paths "workdir-$key"; } | sort -u | grep .)
    wait_until 30 cgroup_remove "${groups[@]}" ||
        die "cgroups of box $key are still in use: ${groups[0]}"
    net_down "$key"
    rm -rf -- "$dir"
}

# box_exec KEY DIRECTORY COMMAND…: becomes the command, inside the box. stdin, stdout, stderr,
# the exit status and every argument pass through as they are.
box_exec() {
    local key=$1 cwd=$2 pid groups tty=0 v keep=()
    shift 2
    pid=$(box_pid "$key") || die "the box is not running"
    mapfile -t groups <"$(box_dir "$key")/cgroups"
    [[ ! -t 0 || ! -t 1 || ! -t 2 ]] || tty=1
    for v in TERM COLORTERM NO_COLOR CI http_proxy https_proxy no_proxy; do
        [[ -z ${!v:-} ]] || keep+=("$v=${!v}")
    done
    cgroup_guest_join $$ "${groups[@]}"
    # The visitor gets a TERM when this process, its parent, dies: nothing is left running that
    # nobody waits for. (What it put into the background stays.)
    exec nsenter -t "$pid" -m -u -i -n -p -C -r -w -- \
        /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        HOME=/root USER=root LOGNAME=root SHELL=/bin/bash LANG=C.UTF-8 "${keep[@]}" \
        /usr/bin/setpriv --pdeathsig TERM \
        /bin/bash --norc --noprofile -c "$BOX_VISIT" devbox "$tty" "$cwd" "$@"
}

# What the visitor's shell does: go there, and become the command. With a terminal on all three
# it runs it in a new one of the box's own, since ours has no name and no job control in there.
# shellcheck disable=SC2016
readonly BOX_VISIT='
tty=$1
cd -- "$2" || exit 125
shift 2
if [[ $tty == 1 ]]; then
    printf -v command "%q " "$@"
    exec script -qec "exec $command" /dev/null
fi
exec -- "$@"'
