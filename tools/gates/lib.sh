# Shared by the gates: where the sources are, and how a build directory of a gate is made.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
jobs=${JOBS:-$(nproc)}

fail() {
    printf '%s\n' "$*" >&2
    failed=1
}
failed=0

c_files() { find src tests bench -name '*.[ch]' 2>/dev/null | LC_ALL=C sort; }

need() { # COMMAND
    command -v "$1" >/dev/null || {
        echo "$1 is missing: as root, tools/setup/packages build test" >&2
        exit 1
    }
}

# llvm TOOL: what the sources are written for is 14, Debian 12's; other releases have another.
llvm() { command -v "$1-14" || command -v "$1" || echo "$1-14"; }

# need_14 TOOL: for what judges text, and judges it differently in each version. The gate ends as skipped.
need_14() {
    command -v "$1-14" >/dev/null && return 0
    echo "needs $1 14, which this release does not have"
    exit 77
}

# gate_build DIR SETUP_ARGUMENTS...: configured once, then only compiled.
gate_build() {
    local dir=$1
    shift
    if [ ! -e "$dir/build.ninja" ]; then
        rm -rf "$dir"
        meson setup "$dir" "$@" >/dev/null || {
            tail -n 20 "$dir/meson-logs/meson-log.txt" >&2
            return 1
        }
    fi
    ninja -C "$dir" build.ninja >"$dir/ninja.log" 2>&1 || {
        tail -n 20 "$dir/ninja.log" >&2
        return 1
    }
    ninja -C "$dir" -j "$jobs" -k 20 >"$dir/ninja.log" 2>&1 || {
        grep -vE '^\[[0-9]+/[0-9]+\]|^ninja: (Entering|build stopped)' "$dir/ninja.log" | head -n 120 >&2
        return 1
    }
}

# gate_skips LOG: names the tests of a meson log that were skipped and are not in tests/skips.allow, as PROGRAM:TEST; fails when
# there is one.
gate_skips() {
    local skipped
    skipped=$(awk '
        /^=+ [0-9]+\/[0-9]+ =+$/ { program = "" }
        $1 == "test:" { program = $NF }
        $1 == "result:" && /exit status 77/ { print program ":(all)" }
        /^\[  SKIPPED \] [A-Za-z_0-9]+$/ { print program ":" $NF }' "$1" | sort -u |
        grep -vxFf <(sed 's/[ \t]*#.*//; /^$/d' tests/skips.allow) || true)
    [ -z "$skipped" ] || printf 'skipped, and not in tests/skips.allow:\n%s\n' "$skipped" >&2
    [ -z "$skipped" ]
}

# count_files PATTERN: how many sources of that name there are.
count_files() { find src tests bench -name "$1" | wc -l; }

# gate_test DIR COUNT [ARGUMENTS OF MESON TEST...]: runs the unit tests or corpora, COUNT programs and no fewer; prints the counts for
# the summary. Many wait most of their time, so that a gate that has one core runs as many as there are cores.
gate_test() {
    local dir=$1 count=$2 status=0 ok bad ran
    shift 2
    meson test -C "$dir" --no-rebuild --print-errorlogs --num-processes "$(nproc)" "$@" >"$dir/test.log" 2>&1 || status=$?
    ok=$(sed -n 's/^Ok: *\([0-9]*\).*/\1/p' "$dir/test.log" | tail -n 1)
    bad=$(awk '/^(Fail|Timeout|Unexpected Pass): / { n += $NF } END { print n + 0 }' "$dir/test.log")
    if [ "$status" -ne 0 ]; then
        tail -n 150 "$dir/test.log" >&2
    fi
    ran=$(awk '/^(Ok|Expected Fail|Fail|Unexpected Pass|Skipped|Timeout): / { n += $NF } END { print n + 0 }' "$dir/test.log")
    if [ "$ran" -ne "$count" ]; then
        echo "$ran programs were run, of $count" >&2
        status=1
        bad=$((bad + 1))
    fi
    # As root nothing has to be skipped, and what is was not tested.
    if [ "$(id -u)" -eq 0 ] && ! gate_skips "$dir/meson-logs/testlog.txt"; then
        status=1
        bad=$((bad + 1))
    fi
    echo "@tests ${ok:-0} $bad"
    return "$status"
}
