# shellcheck shell=bash
# How the integration tests get into a target and their results out. Sourced by suites, after
# lib.sh, with TARGET and TARGET_NAME set.

TESTS_IN=/var/tmp/workdir-tests
BAD_AGENTS_IN=/usr/local/lib/workdir-test # workdird opens them, and its /var/tmp is private

# The same packages as a newer version, for the tests of upgrades: repacked, not rebuilt.
newer_packages() {
    local from=$1 to=$2 f tree
    rm -rf -- "$to"
    mkdir -p -- "$to"
    while read -r f; do
        tree=$(mktemp -d)
        dpkg-deb -R "$f" "$tree"
        sed -i -E 's/^(Version: .*)/\1+upgrade1/; s/(workdir-guest \(= [^)]*)\)/\1+upgrade1)/' "$tree/DEBIAN/control"
        dpkg-deb -b --root-owner-group -Zgzip -z1 "$tree" "$to" >/dev/null
        rm -rf -- "$tree"
    done < <(package_files "$from")
}

# Guests with a broken agent, for integration/test_bad_agent.py.
bad_agents() {
    local build=$WD_TOP/build-bad-agents images
    mapfile -t images < <(printf 'tests/integration/%s.cpio\n' garbage oversized silent exit version later)
    [[ -d $build/meson-info ]] || meson setup "$build" --buildtype=release -Dtests=true
    ninja -C "$build" "${images[@]}"
    target_run mkdir -p "$BAD_AGENTS_IN" </dev/null
    target_tool push "${images[@]/#/$build/}" "$BAD_AGENTS_IN"
}

# Up, the packages installed by apt, the image there, the tests and their tools.
prepare_target() {
    # From the cache, unless something has changed: never what an earlier run left in out/.
    install_build_deps
    build_packages "$WD_TOP/out" >"$SUITE_OUT/build.log" 2>&1 || {
        tail -n 30 -- "$SUITE_OUT/build.log"
        exit 1
    }
    target_tool up
    # apt brings the product's dependencies onto a clean server before any test tool is there.
    step "apt install of the packages" install_packages out
    try "workdird starts" start_service
    step "image base" image_ensure base
    target_tool test-tools
    newer_packages out out/check/newer
    target_run rm -rf "$TESTS_IN" </dev/null
    target_run mkdir -p "$TESTS_IN/debs" "$TESTS_IN/newer" </dev/null
    target_tool push tests "$TESTS_IN"
    mapfile -t files < <(package_files out)
    target_tool push "${files[@]}" "$TESTS_IN/debs"
    target_tool push out/check/newer/*.deb "$TESTS_IN/newer"
    [[ $TARGET != devbox ]] || step "initramfs images with broken agents" bad_agents
    # In a systemd that is not ours to configure, tests must not outlive each other's limits.
    [[ $TARGET != devbox ]] || target_tool save-debs
}

no_failed_units() {
    local failed
    failed=$(target_run systemctl --failed --plain --no-legend </dev/null)
    [[ -z $failed ]] || {
        echo "$failed"
        return 1
    }
}

# run_pytest NAME ARGUMENT…: runs tests in the target, adds up the results. Everything the tests
# print goes through; a report that does not come back is a failure.
run_pytest() {
    local name=$1 rc=0 report=$TESTS_IN/report.xml here=$SUITE_OUT/$TARGET-$1.xml
    shift
    rm -f -- "$here"
    target_run rm -f "$report" </dev/null
    target_run --cwd "$TESTS_IN/tests" env PYTHONDONTWRITEBYTECODE=1 WD_TEST_TARGET="$TARGET" \
        WD_TEST_DEBS="$TESTS_IN/debs" WD_TEST_DEBS_UPGRADE="$TESTS_IN/newer" \
        WD_TEST_BAD_AGENT="$BAD_AGENTS_IN" \
        python3 -m pytest -p no:cacheprovider --color=no --junitxml="$report" "${@/#tests\//}" </dev/null || rc=$?
    target_run cat "$report" </dev/null >"$here" || true
    add_results pytest "$here"
    # 0 and 1: all passed, some failed. Anything else ended the run early, whatever it reported.
    ((rc <= 1)) || try "pytest ($name) ends by itself" exit "$rc"
}
