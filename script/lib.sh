# shellcheck shell=bash
# Functions that the scripts share. The caller has set "set -euo pipefail".

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PROGRAM=script/$(basename "$0")

# A bare name or a relative path would not survive a change of directory.
PG_CONFIG=${PG_CONFIG:-/usr/lib/postgresql/15/bin/pg_config}
PG_CONFIG=$(command -v "$PG_CONFIG" || printf '%s' "$PG_CONFIG")
PG_CONFIG=$(realpath -ms "$PG_CONFIG")
export PG_CONFIG

# Where rustup puts cargo: a shell that is older than the installation does not
# have it on its PATH.
if ! command -v cargo >/dev/null && [ -x "${HOME:-}/.cargo/bin/cargo" ]; then
	PATH=$HOME/.cargo/bin:$PATH
fi

# The folders that hold the parts of the extension.
read -ra PARTS < <(sed -n 's/^PARTS = //p' "$ROOT/Makefile")

# What script/test can do: by itself, and when it is asked to. See there.
STAGES=(shell fmt clippy build regress isolation tap cargo torture)
# shellcheck disable=SC2034 # for the scripts
ALL_STAGES=("${STAGES[@]}" upstream examples page ha package containers)

# ---- Messages ---------------------------------------------------------------

heading() {
	printf '\n== %s\n' "$*"
}

warn() {
	printf '%s: %s\n' "$PROGRAM" "$*" >&2
}

die() {
	warn "$@"
	exit 1
}

# Print a command as a person would type it.
show() {
	local word line=
	for word in "$@"; do
		case $word in
			'' | *[!A-Za-z0-9_.,:=/@%+-]*) line+=" ${word@Q}" ;;
			*) line+=" $word" ;;
		esac
	done
	printf '+%s\n' "$line"
}

# ---- Running commands -------------------------------------------------------

# Print a command and run it under supervision.
run() {
	show "$@"
	supervise "$@"
}

# The same as root, the only thing that needs sudo. It runs in the foreground,
# as sudo may ask for a password.
as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		show "$@"
		"$@"
	elif command -v sudo >/dev/null; then
		show sudo "$@"
		sudo "$@"
	else
		die "this needs root, and there is no sudo: $*"
	fi
}

# Run a command as the user who owns the test servers: PostgreSQL refuses to
# run as root. setpriv replaces itself by the command, so that signals and the
# exit code are the command's own.
as_server_user() {
	if [ "$(id -u)" -eq 0 ]; then
		setpriv --reuid=postgres --regid=postgres --init-groups \
			env HOME="$WORK" USER=postgres LOGNAME=postgres "$@"
	else
		HOME=$WORK "$@"
	fi
}

# Run a command in a process group of its own and wait for it. A signal thus
# reaches this script first, at once, and the script then ends the whole group.
supervise() {
	local rc=0
	set -m
	"$@" </dev/null &
	CHILD=$!
	set +m
	wait "$CHILD" || rc=$?
	CHILD=
	return "$rc"
}

# ---- Packages ---------------------------------------------------------------

APT_UPDATED=

# Arguments: what is missing, for the message.
apt_update() {
	[ -z "$APT_UPDATED" ] || return 0
	command -v apt-get >/dev/null ||
		die "these are missing, and there is no apt-get to install them: $*"
	as_root apt-get update -q -o Acquire::Retries=3 ||
		warn "apt-get update failed; going on with the package lists there are"
	APT_UPDATED=yes
}

apt_install() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y \
		--no-install-recommends --no-remove -o Acquire::Retries=3 "$@"
}

is_installed() {
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# ---- The environment and the PostgreSQL installation ------------------------

# Variables such as PGHOST or PGOPTIONS would change what the tests do, and
# those of a make that called us would reach the makes that we call.
clean_environment() {
	local name
	for name in $(compgen -e); do
		case $name in
			PG_CONFIG) ;;
			PG* | LC_* | LANGUAGE | MAKE* | MFLAGS) unset "$name" ;;
		esac
	done
	export LANG=C.UTF-8
}

# Set BINDIR, PKGLIBDIR and TESTTOOLS (where pg_regress and its relatives are).
find_postgres() {
	local pgxs
	BINDIR=$("$PG_CONFIG" --bindir)
	PKGLIBDIR=$("$PG_CONFIG" --pkglibdir)
	pgxs=$("$PG_CONFIG" --pgxs)
	TESTTOOLS=${pgxs%/makefiles/pgxs.mk}/test
	export BINDIR PKGLIBDIR TESTTOOLS
}

# What "make install" of this or another version has put into the folder of the extensions.
# Of another version it would be one that cannot be updated.
files_of_versions() {
	find "$("$PG_CONFIG" --sharedir)/extension" -maxdepth 1 -name 'pg_pinpoint*--*'
}

# Make a folder with the files of the checkout, without what was built there.
copy_sources() {
	mkdir -p "$1"
	tar -C "$ROOT" --exclude-vcs --exclude=target --exclude=node_modules --exclude=venv \
		--exclude='*.o' --exclude='*.so' --exclude='*.bc' --exclude=tmp_check \
		--exclude=./bench/queues/river/queue -c . | tar -C "$1" -x --no-same-owner
}

# Compile in a copy, so that everything is compiled each time and the objects
# in the checkout stay as they are, and install. Arguments are given to make.
build_extension() {
	local extdir install stale=()
	extdir=$("$PG_CONFIG" --sharedir)/extension

	mkdir "$WORK/build"
	cp -R "$ROOT/Makefile" "$ROOT/VERSION" "${PARTS[@]/#/$ROOT/}" "$WORK/build"
	supervise make -s -C "$WORK/build" clean
	run make -s -C "$WORK/build" "PG_CONFIG=$PG_CONFIG" "$@"

	mapfile -t stale < <(files_of_versions)
	install=(make -s -C "$WORK/build" install "PG_CONFIG=$PG_CONFIG")
	if [ -w "$PKGLIBDIR" ] && [ -w "$extdir" ]; then
		rm -f "${stale[@]}"
		run "${install[@]}"
	else
		[ "${#stale[@]}" -eq 0 ] || as_root rm -f "${stale[@]}"
		as_root "${install[@]}"
	fi
}

# ---- The temporary folder, and leaving nothing behind -----------------------

WORK=    # the temporary folder
CHILD=   # the process group that is running
STOPPED= # not empty if a signal ends the run

# Everything that a run makes is below $WORK, which belongs to the user of the
# servers. The name is short: the path of a Unix socket may have 107 bytes.
make_work_dir() {
	trap 'on_exit' EXIT
	trap 'on_signal INT 130' INT
	trap 'on_signal TERM 143' TERM
	trap 'on_signal HUP 129' HUP
	trap 'on_signal PIPE 141' PIPE

	WORK=$(mktemp -d /tmp/pinpoint.XXXXXX)
	export TMPDIR=$WORK/tmp
	mkdir "$TMPDIR"
	# Without that user there is no server, and nobody to have the folder.
	if [ "$(id -u)" -eq 0 ] && id postgres >/dev/null 2>&1; then
		chown postgres: "$WORK" "$TMPDIR"
	fi
}

on_signal() {
	STOPPED=yes
	warn "stopped by SIG$1"
	exit "$2"
}

on_exit() {
	local rc=$?
	trap '' INT TERM HUP PIPE
	set +e
	clean_up
	undo
	if [ -z "$STOPPED" ]; then
		at_end "$rc"
		rc=$?
	fi
	exit "$rc"
}

# Take back what was done outside of the temporary folder. A script that does
# such things defines it anew.
undo() {
	:
}

# The last word of a run that was not stopped, and its exit code. A script that
# has one defines it anew.
at_end() {
	return "$1"
}

clean_up() {
	local file pid

	if [ -n "$CHILD" ]; then
		kill -TERM -- "-$CHILD" 2>/dev/null
		wait_until_not 10 group_is_alive "$CHILD" ||
			kill -KILL -- "-$CHILD" 2>/dev/null
		CHILD=
	fi

	[ -n "$WORK" ] || return

	# This shell is not to be one of those that are below it.
	cd /

	# The servers are not in that group: pg_ctl gives each a session of its own.
	find "$WORK" -name postmaster.pid 2>/dev/null | while IFS= read -r file; do
		pid=$(head -n 1 "$file") && stop_server "$pid" "$(dirname "$file")"
	done

	# What is still there now was left behind by a test.
	for pid in $(processes_below "$WORK"); do
		kill -KILL "$pid" 2>/dev/null
	done
	wait_until_not 5 any_process_below "$WORK"

	rm -rf "$WORK"
	WORK=
}

# Stop a server: fast, then immediately, then by force. A postmaster works in
# its data directory, so that the pid in a file that is out of date, which may
# be another process by now, is left alone.
stop_server() {
	local pid=$1 datadir=$2 signal
	for signal in INT QUIT KILL; do
		works_in "$pid" "$datadir" || return 0
		kill "-$signal" "$pid" 2>/dev/null
		wait_until_not 15 works_in "$pid" "$datadir"
	done
}

# Run a command until it fails, for at most this many seconds.
wait_until_not() {
	local deadline=$((SECONDS + $1))
	shift
	while "$@"; do
		[ "$SECONDS" -lt "$deadline" ] || return 1
		sleep 0.1
	done
	return 0
}

# These look at /proc and not at "kill -0", which takes a zombie for alive: in
# a container nobody may collect them.

works_in() {
	[ "/proc/$1/cwd" -ef "$2" ]
}

processes_below() {
	local proc
	for proc in /proc/[0-9]*; do
		case $(readlink "$proc/cwd" 2>/dev/null) in
			"$1" | "$1"/*) printf '%s\n' "${proc#/proc/}" ;;
		esac
	done
}

any_process_below() {
	[ -n "$(processes_below "$1")" ]
}

group_is_alive() {
	local file stat state group
	for file in /proc/[0-9]*/stat; do
		# pid (name) state parent group ...; the name may hold anything
		read -r stat 2>/dev/null <"$file" || continue
		read -r state _ group _ <<<"${stat##*) }"
		[ "$group" != "$1" ] || [ "$state" = Z ] || return 0
	done
	return 1
}
