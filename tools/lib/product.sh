# shellcheck shell=bash
# Builds the packages, installs them in a target, brings an image there. What ./quickstart and
# ./check share.
#
# Needs common.sh. A target is TARGET=host|devbox|testvm and, for the last two, TARGET_NAME.
# Leaves beside what packaging/build and the tools keep:
#   $WD_CACHE/images/NAME-HASH/      finished sandbox images, by hash of recipe and builder
#   $(target_notes)/                 what is installed in a target, by hash

# ---------------------------------------------------------------- targets

target_tool() {
    case $TARGET in
    devbox | testvm) "$WD_TOP/tools/$TARGET" --name "$TARGET_NAME" "$@" ;;
    *) die "internal: target '$TARGET' has no tool" ;;
    esac
}

# target_run COMMAND…: as root in the target.
target_run() {
    if [[ $TARGET == host ]]; then "$@"; else target_tool run "$@"; fi
}

# Facts about the target that are kept out here, and that are gone when it is.
target_notes() {
    local dir=$WD_CACHE/instances/$TARGET-${TARGET_NAME:-}
    [[ $TARGET != host ]] || dir=$WD_CACHE/host
    mkdir -p -- "$dir"
    printf '%s' "$dir"
}

noted() { [[ $(cat -- "$(target_notes)/note-$1" 2>/dev/null) == "$2" ]]; }
note() { printf '%s\n' "$2" >"$(target_notes)/note-$1"; }

# ---------------------------------------------------------------- packages

install_build_deps() {
    # dpkg-checkbuilddeps says in a moment whether apt has anything to do.
    if pkg_installed dpkg-dev && pkg_installed ccache &&
        (cd -- "$WD_TOP/packaging" && dpkg-checkbuilddeps 2>/dev/null); then
        return
    fi
    refresh_host_lists
    quiet apt_host install --no-install-recommends dpkg-dev ccache
    quiet "$WD_TOP/packaging/build" --install-deps
}

# build_packages DIR [OPTION…]: leaves the packages in DIR; from packaging/build's cache if possible.
build_packages() {
    local out=$1
    shift
    # The unit tests have a suite of their own, with the sanitizers.
    "$WD_TOP/packaging/build" --no-check --out "$out" "$@"
}

# The installable ones in DIR.
package_files() { find "$1" -maxdepth 1 -name '*.deb' ! -name '*-dbgsym_*' | sort; }

packages_hash() {
    local files
    mapfile -t files < <(package_files "$1")
    ((${#files[@]})) || die "no packages in $1"
    sha256sum -- "${files[@]}" | cut -d' ' -f1 | hash_stdin
}

# install_packages DIR: has apt install them, dependencies and all, unless they are there already.
install_packages() {
    local hash files dir=/var/tmp/workdir-packages
    hash=$(packages_hash "$1")
    mapfile -t files < <(package_files "$1")
    if noted packages "$hash" && target_run dpkg -s workdir workdir-guest </dev/null 2>/dev/null |
        grep -c '^Status: install ok installed' | grep -qx 2; then
        echo "these packages are installed already"
        return
    fi
    if [[ $TARGET == host ]]; then
        dir=$(mktemp -d /var/tmp/workdir-packages.XXXXXX)
        # apt's own user reads them.
        chmod 755 "$dir"
        cp -- "${files[@]}" "$dir/"
        refresh_host_lists
    else
        target_run rm -rf "$dir" </dev/null
        target_run mkdir -p "$dir" </dev/null
        target_tool push "${files[@]}" "$dir"
    fi
    # Same version, other content: a rebuilt checkout. Hence --reinstall.
    target_run env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o DPkg::Lock::Timeout=300 \
        -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confnew \
        --reinstall --allow-downgrades --no-install-recommends install \
        "${files[@]/#*\//$dir/}" </dev/null
    target_run rm -rf "$dir" </dev/null
    note packages "$hash"
    [[ $TARGET != devbox ]] || target_tool save-debs
}

start_service() {
    target_run systemctl start workdird.service </dev/null || {
        target_run journalctl -u workdird -n 20 --no-pager </dev/null >&2 || true
        die "workdird does not start; the end of its journal is above"
    }
}

# ---------------------------------------------------------------- images

image_hash() { { hash_tree "images/$1" images/image_build.py; echo "$WD_SUITE"; } | hash_stdin; }

image_is_current() {
    noted "image-$1" "$(image_hash "$1")" && target_run wd image inspect "$1" </dev/null >/dev/null 2>&1
}

# image_seed NAME: puts an image that was built from this very recipe on this machine into the
# target; false where there is none. It appears there as the builder's do, by one rename.
image_seed() {
    local name=$1 hash kept version images=/var/lib/workdir/images
    hash=$(image_hash "$name")
    kept=$WD_CACHE/images/$name-$hash
    [[ -d $kept ]] || return 1
    version=$(ls -- "$kept")
    if [[ $TARGET == testvm ]]; then
        target_tool push "$kept/$version" "$images/.build-seed"
        # shellcheck disable=SC2016  # for the shell in there
        target_run bash -euc 'mkdir -p "$0/$1"; mv -T "$0/.build-seed/$2" "$0/$1/$2"
            rmdir "$0/.build-seed"' "$images" "$name" "$version" </dev/null
        note "image-$name" "$hash"
        return
    fi
    # shellcheck disable=SC2016  # for the shell in there
    tar -C "$kept" -Scf - -- "$version" |
        target_run bash -euc 'mkdir -p "$0/$1"; rm -rf "$0/.build-seed"; mkdir "$0/.build-seed"
            tar -C "$0/.build-seed" -xpf -; rm -rf "$0/$1/$2"; mv -T "$0/.build-seed/$2" "$0/$1/$2"
            rmdir "$0/.build-seed"' "$images" "$name" "$version"
    touch -- "$kept"
    note "image-$name" "$hash"
}

# image_keep NAME: the newest version in the target, for image_seed.
image_keep() {
    local name=$1 hash kept version images=/var/lib/workdir/images
    hash=$(image_hash "$name")
    note "image-$name" "$hash"
    kept=$WD_CACHE/images/$name-$hash
    [[ ! -d $kept ]] || return 0
    version=$(target_run ls -tr -- "$images/$name" </dev/null | tail -n1)
    rm -rf -- "$kept.new"
    mkdir -p -- "$kept.new"
    target_run tar -C "$images/$name" -Scf - -- "$version" </dev/null | tar -C "$kept.new" -xpf -
    mv -T -- "$kept.new" "$kept"
}

image_build() {
    target_run wd image build "$1" </dev/null
    image_keep "$1"
}

# image_ensure NAME: there already, or from the cache, or built.
image_ensure() {
    if image_is_current "$1"; then
        echo "the image is there already"
    elif image_seed "$1"; then
        echo "the image was built on this machine before"
    else
        image_build "$1"
    fi
}

# ---------------------------------------------------------------- steps

STEP_LOGS=$WD_CACHE/log/$WD_SELF

# step TITLE COMMAND…: runs it with its output in a log, shows that it is under way and how long
# it took; on failure the end of the log, and the end of us. The command has no stdin.
step() {
    local title=$1 start=$EPOCHREALTIME log ticker='' rc=0
    shift
    mkdir -p -- "$STEP_LOGS"
    log=$STEP_LOGS/$(printf '%s' "$title" | tr -cs 'A-Za-z0-9' '-').log
    STEP_LOG=$log
    if [[ -t 2 ]]; then
        step_ticker "$title" "$start" "$log" &
        ticker=$!
    else
        say "==> $title"
    fi
    # In a subshell of its own, so that errexit works in there and our own clean-up runs after.
    set +e
    (
        set -e
        "$@"
    ) >"$log" 2>&1 </dev/null
    rc=$?
    set -e
    if [[ -n $ticker ]]; then
        kill "$ticker" 2>/dev/null || true
        wait "$ticker" 2>/dev/null || true
        printf '\r\e[K' >&2
    fi
    if ((rc)); then
        say "${WD_RED}==> $title: failed after $(since "$start") s${WD_OFF}"
        say "    the end of $log:"
        tail -n 25 -- "$log" | sed 's/^/    | /' >&2
        exit 1
    fi
    if [[ -n $ticker ]]; then
        say "==> $title ${WD_DIM}($(since "$start") s)${WD_OFF}"
    else
        say "    done in $(since "$start") s"
    fi
}

# One line that is drawn again each second: the title, the time, the last line of the log.
step_ticker() {
    local last room
    room=$((${COLUMNS:-$(tput cols 2>/dev/null || echo 80)} - ${#1} - 16))
    while :; do
        last=$(tail -n 1 -- "$3" 2>/dev/null | tr -cd '[:print:]' | cut -c1-"$((room > 0 ? room : 1))")
        printf '\r\e[K==> %s %s%s s  %s%s' "$1" "$WD_DIM" "$(since "$2")" "$last" "$WD_OFF" >&2
        sleep 1
    done
}
