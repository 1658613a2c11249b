# shellcheck shell=bash
# Control groups for a box: one of its own in every hierarchy of this machine, below the one we
# are in, so that whatever accounts for us accounts for the box too. Works with v1, with the
# hybrid of both, and with v2 alone.
#
# Needs common.sh.

# Prints "TYPE MOUNTPOINT CONTROLLERS" for every cgroup hierarchy that is mounted here.
# CONTROLLERS is what mount -o wants: "cpu,cpuacct", "name=systemd", or "-" for v2.
cgroup_hierarchies() {
    awk '{
        for (i = 7; $i != "-"; i++);
        type = $(i + 1); options = $(i + 3)
        if (type == "cgroup2") { print "cgroup2", $5, "-"; next }
        if (type != "cgroup") next
        n = split(options, o, ","); c = ""
        for (k = 1; k <= n; k++)
            if (o[k] !~ /^(rw|ro|xattr|clone_children|noprefix|release_agent=.*|cpuset_v2_mode)$/)
                c = c (c == "" ? "" : ",") o[k]
        print "cgroup", $5, c
    }' /proc/self/mountinfo | sort -u -k2,2
}

# cgroup_own TYPE CONTROLLERS: the path, inside the hierarchy, of the group this shell is in.
cgroup_own() {
    local id controllers path
    while IFS=: read -r id controllers path; do
        if [[ $1 == cgroup2 ]]; then
            [[ $id == 0 ]] || continue
        else
            [[ $controllers == "$2" ]] || continue
        fi
        # A group outside of our namespace's root shows as "/..": start from the root then.
        [[ $path == /..* ]] && path=/
        printf '%s' "${path%/}"
        return
    done </proc/self/cgroup
}

# cgroup_paths NAME: the directories that make up the box's groups, one a line.
cgroup_paths() {
    local type mnt controllers
    while read -r type mnt controllers; do
        printf '%s%s/%s\n' "$mnt" "$(cgroup_own "$type" "$controllers")" "$1"
    done < <(cgroup_hierarchies)
}

# v1 cpuset groups start without processors or memory nodes: inherit them from above.
cgroup_fill_cpuset() {
    local f
    for f in cpuset.cpus cpuset.mems; do
        if [[ -e $1/$f && -e ${1%/*}/$f && -z $(<"$1/$f") ]]; then
            cat "${1%/*}/$f" >"$1/$f"
        fi
    done
}

# v2: a group has only the controllers that its parent hands down.
cgroup_hand_down() {
    local c
    [[ -e $1/cgroup.subtree_control ]] || return 0
    for c in $(<"$1/cgroup.controllers"); do
        echo "+$c" >"$1/cgroup.subtree_control" 2>/dev/null || true
    done
}

# cgroup_create NAME: makes the groups (those that exist are kept).
cgroup_create() {
    local d
    while read -r d; do
        cgroup_hand_down "${d%/*}"
        mkdir -p -- "$d"
        cgroup_fill_cpuset "$d"
    done < <(cgroup_paths "$1")
}

# cgroup_join PID DIRECTORY…: moves a process into the groups.
cgroup_join() {
    local pid=$1 d
    shift
    for d in "$@"; do
        echo "$pid" >"$d/cgroup.procs" || die "cannot put a process into the cgroup $d"
    done
}

# cgroup_guest_join PID DIRECTORY…: like cgroup_join for a process that visits a running box.
# Where the box's systemd looks at the tree (v2 and its own named hierarchy) the visitor gets a
# group beside systemd's, as v2 allows none in an inner node.
cgroup_guest_join() {
    local pid=$1 d
    shift
    for d in "$@"; do
        if [[ -e $d/cgroup.controllers || -d $d/init.scope ]]; then
            d=$d/devbox-run
            mkdir -p -- "$d"
            cgroup_fill_cpuset "$d"
        fi
        echo "$pid" >"$d/cgroup.procs" || die "cannot put a process into the cgroup $d"
    done
}

# cgroup_remove DIRECTORY…: removes empty groups with all below them; true when none is left.
cgroup_remove() {
    local d
    for d in "$@"; do
        [[ -d $d ]] || continue
        find "$d" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    for d in "$@"; do [[ ! -d $d ]] || return 1; done
}
