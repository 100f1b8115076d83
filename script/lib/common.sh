# shellcheck shell=bash
# Functions that the scripts share. The caller has set "set -euo pipefail".

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PROGRAM=$(realpath -m --relative-to="$ROOT" "$0")

# A script prints its head when it is asked for help.
case ${1-} in
	-h | --help)
		sed -n '3,/^$/s/^# \{0,1\}//p' "$0"
		exit
		;;
esac

# Where rustup puts cargo: a shell that is older than the installation does not
# have it on its PATH.
if ! command -v cargo >/dev/null && [ -x "${HOME:-}/.cargo/bin/cargo" ]; then
	PATH=$HOME/.cargo/bin:$PATH
fi

# Ubuntu has packages of newer versions beside its package cargo, each in a folder of its own.
RUST_VERSION=$(sed -n 's/^rust-version *= *"\(.*\)"$/\1/p' "$ROOT/bench/Cargo.toml")

is_new_enough() {
	printf '%s\n' "$RUST_VERSION" "$1" | sort -VC
}

use_newer_rust() {
	local folder
	hash -r
	for folder in /usr/lib/rust-*/bin; do
		if [ -x "$folder/cargo" ] && is_new_enough "$(basename "${folder%/bin}" | sed 's/^rust-//')" &&
			! is_new_enough "$(cargo --version 2>/dev/null | cut -d ' ' -f 2)"; then
			PATH=$folder:$PATH
		fi
	done
}
use_newer_rust

# The folders that hold the parts of the extension.
# shellcheck disable=SC2034 # for the scripts
read -ra PARTS < <(sed -n 's/^PARTS = //p' "$ROOT/Makefile")

# What script/test can do, in this order, and what it does by itself. See there.
# shellcheck disable=SC2034 # for the scripts
ALL_STAGES=(shell models fmt clippy build regress isolation quick-tap tap sanitizers quick-cargo cargo
	torture upstream examples clients managed page ha neighbours package containers)
# shellcheck disable=SC2034 # for the scripts
QUICK_STAGES=(shell fmt build regress isolation quick-tap quick-cargo)

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
	printf '+%s\n' "$(printf ' %q' "$@")"
}

# Under "set -e", a command that fails ends a script. Say which one. A subshell leaves this to the
# script, or to who handles it there.
set -E
trap 'on_error "$?" "${BASH_SOURCE[0]}" "$LINENO" "$BASH_COMMAND"' ERR

on_error() {
	[ "$BASH_SUBSHELL" -gt 0 ] ||
		warn "$(realpath -m --relative-to="$ROOT" "$2"), line $3: exit code $1 of: ${4%%$'\n'*}"
}

# Does the list, a word and then others, have the word?
contains() {
	[[ " ${*:2} " == *" $1 "* ]]
}

# ---- Running commands -------------------------------------------------------

# Print a command and run it under supervision.
run() {
	show "$@"
	supervise "$@"
}

# The same, and keep what it prints: out of sight, or shown too. Arguments: a file, the command.
# The redirections are in what is supervised, for the scripts' own messages must not get into
# the file.
run_quietly() {
	show "${@:2}"
	supervise quietly "$@"
}

run_logged() {
	show "${@:2}"
	supervise logged "$@"
}

quietly() {
	"${@:2}" >"$1" 2>&1
}

logged() {
	"${@:2}" 2>&1 | tee "$1"
}

# Run a command as root, the only thing that needs sudo. It runs in the foreground,
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
ADDED=()

# Run apt-get as root. Several runs of script/test may need it, and wait for each other.
apt_get() {
	as_root env DEBIAN_FRONTEND=noninteractive flock /var/lib/apt/lists apt-get "$@"
}

# Arguments: what is missing, for the message.
apt_update() {
	[ -z "$APT_UPDATED" ] || return 0
	command -v apt-get >/dev/null ||
		die "these are missing, and there is no apt-get to install them: $*"
	apt_get update -q -o Acquire::Retries=3 ||
		warn "apt-get update failed; going on with the package lists there are"
	APT_UPDATED=yes
}

# Those of the packages that were not installed before are in ADDED.
apt_install() {
	local package new=()
	for package in "$@"; do
		is_installed "$package" || new+=("$package")
	done
	apt_get install -q -y --no-install-recommends --no-remove -o Acquire::Retries=3 "$@" || return
	ADDED+=("${new[@]}")
}

# Run script/bootstrap, and keep the packages that it installs for tell_added().
bootstrap() {
	local list
	list=$(mktemp)
	PINPOINT_ADDED=$list "$ROOT/script/bootstrap" "$@" || {
		rm -f "$list"
		return 1
	}
	mapfile -t ADDED <"$list"
	rm -f "$list"
	use_newer_rust # it may have been installed now
}

# Say how to remove what was installed.
tell_added() {
	[ "${#ADDED[@]}" -eq 0 ] || printf '%s\n' '' 'Packages were installed. This removes them, and what only they need:' '' \
		"    sudo apt-get autoremove --purge ${ADDED[*]}"
}

# Print the version of a package that apt would install; fail if there is none.
apt_candidate() {
	apt-cache policy "$1" | sed -n 's/^  Candidate: //p' | grep '^[0-9]'
}

is_installed() {
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# ---- The server -------------------------------------------------------------

# The releases of distributions with the versions of PostgreSQL that pg_pinpoint supports.
# Of 19 there is a release candidate, so any other version comes first.
declare -A RELEASES=([15]=bookworm [16]=noble [17]=trixie [18]=forky [19]=experimental)
NEWEST_FIRST=(18 17 16 15 19)

# The major version in the output of pg_config, such as "PostgreSQL 16.10 (Ubuntu 16.10-1.pgdg24.04+1)".
# Argument: a pg_config.
major_version() {
	"$1" --version 2>/dev/null | sed -nE 's/^PostgreSQL ([0-9]+).*/\1/p'
}

is_supported() {
	contains "$1" "${NEWEST_FIRST[@]}"
}

# Print the pg_config of the server to build for. This is an installed server: that of pg_config
# on the PATH, otherwise the newest one, if possible one with a pg_config of its own. Packages of
# Debian, Ubuntu and the PostgreSQL project have the same folders. If no server is installed, it
# is that of the distribution. Fails if there is none.
default_pg_config() {
	local folder file version codename
	if folder=$(pg_config --bindir 2>/dev/null) && [ -x "$folder/postgres" ] &&
		is_supported "$(major_version pg_config)"; then
		if [ -x "$folder/pg_config" ]; then echo "$folder/pg_config"; else command -v pg_config; fi
		return
	fi
	for file in pg_config postgres; do
		for version in "${NEWEST_FIRST[@]}"; do
			for folder in "/usr/lib/postgresql/$version/bin" "/usr/pgsql-$version/bin"; do
				if [ -x "$folder/postgres" ] && [ -x "$folder/$file" ]; then
					echo "$folder/pg_config"
					return
				fi
			done
		done
	done
	codename=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
	for version in "${NEWEST_FIRST[@]}"; do
		[ "${RELEASES[$version]}" != "$codename" ] || break
		version=
	done
	[ -n "$version" ] || version=$(apt_candidate postgresql | sed 's/[^0-9].*//')
	is_supported "$version" && echo "/usr/lib/postgresql/$version/bin/pg_config"
} 2>/dev/null

# A bare name or a relative path would not survive a change of directory. A script that needs no
# server can run without one.
PG_CONFIG=${PG_CONFIG:-$(default_pg_config || echo pg_config)}
PG_CONFIG=$(command -v "$PG_CONFIG" || printf '%s' "$PG_CONFIG")
[[ $PG_CONFIG != */* ]] || PG_CONFIG=$(realpath -ms "$PG_CONFIG")
export PG_CONFIG

# ---- The environment --------------------------------------------------------

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
	# For pg_ctl and pg_regress: a machine may be slow.
	export LANG=C.UTF-8 PGCTLTIMEOUT=180
}

# Set BINDIR, PKGLIBDIR and TESTTOOLS (where pg_regress and its relatives are).
find_postgres() {
	BINDIR=$("$PG_CONFIG" --bindir)
	PKGLIBDIR=$("$PG_CONFIG" --pkglibdir)
	TESTTOOLS=$(realpath -m "$("$PG_CONFIG" --pgxs)/../../test")
	export BINDIR PKGLIBDIR TESTTOOLS
}

# Make a folder with the files of the checkout, without what was built there.
copy_sources() {
	mkdir -p "$1"
	tar -C "$ROOT" --exclude-vcs --exclude=target --exclude=node_modules --exclude=venv \
		--exclude='*.o' --exclude='*.so' --exclude='*.bc' --exclude=tmp_check \
		--exclude=./bench/queues/river/queue --exclude=./demo -c . | tar -C "$1" -x --no-same-owner
}

# Compile in a copy, so that everything is compiled each time and the objects
# in the checkout stay as they are, and install. What another "make install" has put there goes:
# an extension of another version could not be updated, and the bitcode is of other functions.
# Arguments are given to make.
build_extension() {
	local extdir install stale
	extdir=$("$PG_CONFIG" --sharedir)/extension

	copy_sources "$WORK/build"
	run make -s "-j$(nproc)" -C "$WORK/build" "PG_CONFIG=$PG_CONFIG" "$@"

	mapfile -t stale < <(
		find "$extdir" -maxdepth 1 -name 'pg_pinpoint*--*'
		find "$PKGLIBDIR/bitcode" -maxdepth 1 -name 'pg_pinpoint*' 2>/dev/null
	)
	install=(make -s -C "$WORK/build" install "PG_CONFIG=$PG_CONFIG" "$@")
	if [ -w "$PKGLIBDIR" ] && [ -w "$extdir" ]; then
		rm -rf "${stale[@]}"
		run "${install[@]}"
	else
		[ "${#stale[@]}" -eq 0 ] || as_root rm -rf "${stale[@]}"
		as_root "${install[@]}"
	fi
}

# ---- The temporary folder, and leaving nothing behind -----------------------

WORK=            # the temporary folder
WORK_PARENT=/tmp # where it is made
CHILD=           # the process group that is running
STOPPED=         # not empty if a signal ends the run

# Everything that a run makes is below $WORK, which belongs to the user of the
# servers. The name is short: the path of a Unix socket may have 107 bytes.
make_work_dir() {
	local signal
	trap on_exit EXIT
	for signal in INT TERM HUP PIPE; do
		# shellcheck disable=SC2064 # this signal
		trap "on_signal $signal" "$signal"
	done

	WORK=$(mktemp -d "$WORK_PARENT/pinpoint.XXXXXX")
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
	exit $((128 + $(kill -l "$1")))
}

on_exit() {
	local rc=$?
	trap '' INT TERM HUP PIPE
	trap - ERR
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

# A process group, then whatever works below $WORK: servers are not in that group, as pg_ctl
# gives each a session of its own. A server stops at SIGINT, or else at SIGQUIT.
clean_up() {
	local signal pids

	if [ -n "$CHILD" ]; then
		kill -TERM -- "-$CHILD" 2>/dev/null
		wait_until_not 10 group_is_alive || kill -KILL -- "-$CHILD" 2>/dev/null
		CHILD=
	fi

	[ -n "$WORK" ] || return
	cd / # or this shell would be one of them
	for signal in INT QUIT KILL; do
		mapfile -t pids < <(processes_below "$WORK")
		[ "${#pids[@]}" -gt 0 ] || break
		kill "-$signal" "${pids[@]}" 2>/dev/null
		wait_until_not 10 any_process_below "$WORK"
	done
	rm -rf "$WORK"
	WORK=
}

# Run a command until it fails, for at most this many seconds.
wait_until_not() {
	local deadline=$((SECONDS + $1))
	shift
	while "$@"; do
		[ "$SECONDS" -lt "$deadline" ] || return 1
		sleep 0.1
	done
}

group_is_alive() {
	kill -0 -- "-$CHILD" 2>/dev/null
}

# The processes that work in a folder or below it.
processes_below() {
	find /proc -maxdepth 2 -path '/proc/[0-9]*/cwd' \( -lname "$1" -o -lname "$1/*" \) 2>/dev/null | cut -d / -f 3
}

any_process_below() {
	[ -n "$(processes_below "$1")" ]
}
