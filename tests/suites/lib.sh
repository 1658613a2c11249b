# shellcheck shell=bash
# What a suite needs: the tools' helpers, and counting. Sourced.

# shellcheck source=../../tools/lib/common.sh
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../../tools/lib/common.sh"
# shellcheck source=../../tools/lib/product.sh
. "$WD_LIB/product.sh"
# shellcheck source=../../tools/lib/debs.sh
. "$WD_LIB/debs.sh"

cd -- "$WD_TOP"
PASSED=0 FAILED=0 SKIPPED=0
SUITE_OUT=$WD_TOP/out/check

# add PASSED FAILED SKIPPED
add() {
    PASSED=$((PASSED + $1))
    FAILED=$((FAILED + $2))
    SKIPPED=$((SKIPPED + $3))
}

# try NAME COMMAND…: one test; its output is shown when it fails. Exit status 77 skips it.
try() {
    local name=$1 log rc=0
    shift
    log=$(mktemp)
    ("$@") >"$log" 2>&1 </dev/null || rc=$?
    case $rc in
    0)
        echo "ok   $name"
        add 1 0 0
        ;;
    77)
        echo "SKIP $name: $(tail -n1 -- "$log")"
        add 0 0 1
        ;;
    *)
        echo "FAIL $name (status $rc)"
        sed 's/^/     /' -- "$log" | tail -n 200
        add 0 1 0
        ;;
    esac
    rm -f -- "$log"
    return 0
}

# add_results COMMAND…: adds up "N N N" (passed, failed, skipped) as printed by tests/suites/results;
# what it cannot read is a failure.
add_results() {
    local out line
    out=$("$WD_TOP/tests/suites/results" "$@" 2>&1) || true
    line=${out##*$'\n'}
    printf '%s\n' "${out%"$line"}"
    if [[ $line =~ ^([0-9]+)\ ([0-9]+)\ ([0-9]+)$ ]]; then
        add "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "${BASH_REMATCH[3]}"
    else
        echo "FAIL no results from: $* ($line)"
        add 0 1 0
    fi
}

# The last line; the exit status says whether all is well.
finish() {
    printf '%d passed, %d failed, %d skipped\n' "$PASSED" "$FAILED" "$SKIPPED"
    ((FAILED == 0))
}

# A suite that ends before `finish` has crashed; `check` sees that by the missing line.
