# Shared by the set-up scripts: progress, errors, configuration values, apt sources.
# Sourced, never run. The sourcing script sets `set -euo pipefail` and calls `setup_begin NAME`.
# shellcheck shell=bash

setup_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

now_ms() {
    local t=${EPOCHREALTIME/[.,]/}
    echo $((t / 1000))
}

elapsed() { # START_MS
    local d=$(($(now_ms) - $1))
    printf '%d.%d s' $((d / 1000)) $((d % 1000 / 100))
}

say() { printf '    %s\n' "$*"; }
warn() { printf '    warning: %s\n' "$*" >&2; }

# die MESSAGE REMEDY: what went wrong, and what the user can do about it.
die() {
    printf '%s: error: %s\n' "${setup_name:-setup}" "$1" >&2
    [ $# -lt 2 ] || printf '%s: remedy: %s\n' "${setup_name:-setup}" "$2" >&2
    exit 99
}

setup_begin() {
    setup_name=$1
    setup_start=$(now_ms)
    setup_tmp=
    setup_failed=
    trap setup_exit EXIT
    trap 'setup_failed="line $LINENO: $BASH_COMMAND"' ERR
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

# setup_head TEXT: the line that says a step has begun; setup_end TEXT closes it.
setup_head() { printf '==> %s: %s\n' "$setup_name" "$*"; }
setup_end() { printf '    %s: %s (%s)\n' "$setup_name" "${1:-done}" "$(elapsed "$setup_start")"; }

setup_exit() {
    local status=$?
    trap - EXIT ERR
    if [ "$status" -eq 99 ]; then
        status=1 # die has said why, here or in a subshell
    elif [ "$status" -ne 0 ] && [ "$status" -lt 128 ]; then
        printf '%s: error: failed (%s)\n' "$setup_name" "${setup_failed:-see above}" >&2
    fi
    if declare -F setup_cleanup >/dev/null; then
        setup_cleanup || true
    fi
    [ -z "$setup_tmp" ] || remove_tmp
    exit "$status"
}

# remove_tmp: a root filesystem takes a while on a slow disk; then it is said, every ten seconds.
remove_tmp() {
    local start pid waited=0
    start=$(now_ms)
    rm -rf --one-file-system -- "$setup_tmp" &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.1
        waited=$((waited + 1))
        [ $((waited % 100)) -ne 20 ] || say "  … removing temporary files: $(elapsed "$start")"
    done
    wait "$pid" || true
    [ "$waited" -lt 20 ] || say "temporary files removed ($(elapsed "$start"))"
}

# setup_tmpdir PARENT: a private directory beside the target, removed at exit. It is locked by what runs; what a killed run
# left behind is not, and is removed first.
setup_tmpdir() {
    local parent left
    mkdir -p "$1"
    # Until ours is locked too. In a file of its own: a directory that others can open, they can lock.
    [ -e "$1/.tmp-lock" ] || (umask 077 && : >>"$1/.tmp-lock")
    exec {parent}<"$1/.tmp-lock"
    flock -n "$parent" || {
        say "another run removes what a killed one has left; waiting for it"
        flock -w 600 "$parent" || die "another run holds $1/.tmp-lock for ten minutes" "end it, then again"
    }
    for left in "$1"/.tmp-"$setup_name".*; do
        [ ! -d "$left" ] || flock -n "$left" rm -rf --one-file-system -- "$left" || true
    done
    setup_tmp=$(mktemp -d "$1/.tmp-$setup_name.XXXXXX")
    exec {setup_tmp_fd}<"$setup_tmp"
    flock "$setup_tmp_fd"
    exec {parent}<&-
}

# setup_lock FILE: one run at a time; the lock ends with the process, however it ends.
setup_lock() {
    exec {setup_lock_fd}>"$1"
    if ! flock -n "$setup_lock_fd"; then
        say "waiting for another run (lock $1)"
        flock -w 600 "$setup_lock_fd" || die "another run holds $1" "wait for it, or end it"
    fi
}

# run_logged WHAT COMMAND...: output goes to a log, a line appears at least every ten seconds, and
# a failure shows the log's end.
run_logged() {
    local what=$1 log start pid status=0 waited=0
    shift
    log=$(mktemp)
    start=$(now_ms)
    say "$what"
    "$@" >"$log" 2>&1 </dev/null &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.2
        waited=$((waited + 1))
        if [ $((waited % 50)) -eq 0 ]; then
            say "  … $what: $(elapsed "$start"), $(tail -n 1 "$log" | tr -dc '[:print:]' | cut -c1-60)"
        fi
    done
    wait "$pid" || status=$?
    if [ "$status" -ne 0 ]; then
        sed 's/^/      | /' <(tail -n 30 "$log") >&2
        rm -f "$log"
        return "$status"
    fi
    rm -f "$log"
}

need_root() {
    [ "$(id -u)" -eq 0 ] || die "must run as root" "run it with sudo, or as root"
}

# need_tool COMMAND PACKAGE
need_tool() {
    command -v "$1" >/dev/null || die "$1 is missing" "apt-get install $2"
}

# --- configuration -------------------------------------------------------------------------

setup_config=${SPACE_CONFIG:-/etc/space/space.conf}

# conf_get KEY DEFAULT: a value of the configuration file ("key = value", # comments).
conf_get() {
    local value=
    if [ -r "$setup_config" ]; then
        value=$(awk -v key="$1" '
            /^[ \t]*#/ { next }
            {
                i = index($0, "=")
                if (!i) next
                k = substr($0, 1, i - 1); v = substr($0, i + 1)
                gsub(/^[ \t]+|[ \t]+$/, "", k); gsub(/^[ \t]+|[ \t]+$/, "", v)
                if (k == key) out = v
            }
            END { print out }' "$setup_config")
    fi
    printf '%s\n' "${value:-$2}"
}

# build_prefix BUILD: the prefix which meson has configured there, that the programs have in them.
build_prefix() {
    python3 -c '
import json, sys
print(next(o["value"] for o in json.load(sys.stdin) if o["name"] == "prefix"))' \
        <"$1/meson-info/intro-buildoptions.json"
}

# --- data directory ------------------------------------------------------------------------

data_format=1

# data_dir_open DIR: makes the directory, or refuses one of another format version.
data_dir_open() {
    local have
    mkdir -p "$1"
    chmod 0755 "$1"
    if [ -e "$1/format" ]; then
        have=$(tr -dc '0-9' <"$1/format")
        [ "$have" = "$data_format" ] ||
            die "$1 has data format '$have', this version reads $data_format" \
                "use the matching version of SPACE, or another data_dir"
    else
        echo "$data_format" >"$1/.format.new"
        sync -f "$1/.format.new"
        mv -f "$1/.format.new" "$1/format"
    fi
}

# json_get FILE KEY: the value of a top-level string or number of a JSON file that we wrote.
json_get() {
    sed -n "s/^ *\"$2\": *\"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$1" | head -n 1
}

# --- apt -----------------------------------------------------------------------------------

export DEBIAN_FRONTEND=noninteractive
apt_get() { apt-get -o DPkg::Lock::Timeout=300 "$@"; }

have_apt_lists() {
    local lists
    lists=$(find /var/lib/apt/lists -maxdepth 1 -name '*_Packages*' -print -quit 2>/dev/null)
    [ -n "$lists" ]
}

apt_update() {
    run_logged "apt-get update" apt_get update -q ||
        die "apt-get update failed" "check /etc/apt/sources.list* and the network"
}

# debian_entries: "URI SUITE KEYRING" for each binary source of this machine that is one of
# Debian's own suites, in the order in which apt has them.
debian_entries() {
    # apt tells of a source only when it has its lists.
    have_apt_lists || apt_update >&2
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(SOURCESENTRY)' \
        'Created-By: Packages' 'Identifier: Packages' | sort -u -k1,3 |
        while read -r uri suite component entry; do
            [ "$component" = main ] || continue
            case $suite in
            stable | oldstable | bookworm | trixie) ;;
            stable-* | oldstable-* | bookworm-* | trixie-*) ;;
            *) continue ;;
            esac
            echo "$uri $suite $(signed_by "${entry%:*}" "$uri" "$suite")"
        done
}

# signed_by FILE URI SUITE: the keyring file which that entry names, else Debian's archive keyring.
signed_by() {
    local key
    key=$(awk -v uri="${2%/}" -v suite="$3" '
        function done_stanza() {
            if (has_uri && has_suite && key != "") { print key; found = 1; exit }
            has_uri = has_suite = 0; key = ""
        }
        function word_in(list, word,   n, i, w) {
            n = split(list, w, /[ \t]+/)
            for (i = 1; i <= n; i++) { sub(/\/$/, "", w[i]); if (w[i] == word) return 1 }
            return 0
        }
        /^[ \t]*#/ { next }
        /^[ \t]*$/ { done_stanza(); next }
        /^deb[ \t]/ {
            if (word_in($0, uri) && word_in($0, suite) && match($0, /signed-by=[^] \t]+/)) {
                print substr($0, RSTART + 10, RLENGTH - 10); found = 1; exit
            }
            next
        }
        tolower($1) == "uris:" { has_uri = word_in($0, uri) }
        tolower($1) == "suites:" { has_suite = word_in($0, suite) }
        tolower($1) == "signed-by:" { key = $2 }
        END { if (!found) done_stanza() }' "$1" 2>/dev/null)
    case $key in
    /*) echo "$key" ;;
    *) echo /usr/share/keyrings/debian-archive-keyring.gpg ;;
    esac
}

# debian_sources SUITE: one-line apt sources for that Debian release with its updates and security
# suites, from the mirrors this machine itself uses.
debian_sources() {
    local want=$1 uri suite key main='' security=''
    while read -r uri suite key; do
        case $suite in
        *-security) [ -n "$security" ] || security="$uri $key" ;;
        *-*) ;;
        *) [ -n "$main" ] || main="$uri $key" ;;
        esac
    done < <(debian_entries)
    [ -n "$main" ] || die "no Debian suite among this machine's apt sources" \
        "add one to /etc/apt/sources.list.d (Debian's main suite)"
    read -r uri key <<<"$main"
    printf 'deb [signed-by=%s] %s %s main\n' "$key" "$uri" "$want"
    printf 'deb [signed-by=%s] %s %s-updates main\n' "$key" "$uri" "$want"
    if [ -n "$security" ]; then
        read -r uri key <<<"$security"
        printf 'deb [signed-by=%s] %s %s-security main\n' "$key" "$uri" "$want"
    fi
}

# apt_transport_options: how this machine reaches its mirrors (proxies, CA files, date checks), as
# configuration lines for another apt.
apt_transport_options() {
    apt-config dump --format '%F "%v";%n' Acquire |
        grep -E '^Acquire::(https?|ftp)::[^"]*(Proxy|CAInfo|CaInfo|Verify-Peer|Verify-Host)|^Acquire::(Check-Valid-Until|Check-Date|Retries) ' |
        grep -v ' "";$' || true
}
