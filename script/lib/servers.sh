# shellcheck shell=bash
# Installs a given major version of PostgreSQL. The caller has sourced common.sh.
#
#     15, 17, 18  releases of Debian
#     16          a release of Ubuntu
#     19          Debian's experimental suite
#
# If the release that runs on this machine has packages of the version, they are installed on
# the machine. Otherwise a release with this version is installed into a directory of the
# cache, and the tests run in it, in separate namespaces. No server of the machine is used. With ARCH=arm64,
# the release is that for this processor, which qemu emulates.

CACHE=${PINPOINT_CACHE:-/var/cache/pg_pinpoint}
ARCH=
MACHINE= # not empty: on an emulated machine

release_of() {
	is_supported "$1" ||
		die "PostgreSQL \"$1\" is not known here, only 15 to 19; PG_CONFIG in the" \
			"environment names any other server"
	echo "${RELEASES[$1]}"
}

# Replace this process with script/test on a version. If the server cannot be installed, the
# stages are not run, and this is not a failure. Arguments: the major version, then what script/test
# gets. It also gets NAMES: each test that was chosen, after its stage.
run_on_version() {
	local version=$1 release server inside=()
	server=(env "PG_CONFIG=/usr/lib/postgresql/$version/bin/pg_config")
	release=$(release_of "$version")
	if [ -n "$ARCH" ] || ! has_package "$version"; then
		make_folder "$release" ||
			end_without_server "$version" "its release could not be installed into a folder"
		inside=(run_in_folder "$(folder_of "$release")")
	fi
	run "${inside[@]}" "${server[@]}" "$ROOT/script/bootstrap" "${@:2}" ||
		end_without_server "$version" "its packages could not be installed"
	rm -f "$RESULTS"
	[ -z "$MACHINE" ] || run_on_machine "$(folder_of "$release")" "${server[@]:1}" \
		"$ROOT/script/test" "${@:2}" "${NAMES[@]}"
	IN_PLACE=yes
	show "${inside[@]}" "${server[@]}" "$ROOT/script/test" "${@:2}" "${NAMES[@]}"
	"${inside[@]:-exec}" "${server[@]}" "$ROOT/script/test" "${@:2}" "${NAMES[@]}"
}

end_without_server() {
	not_run "PostgreSQL $1" "$2"
	at_end 0
	exit
}

has_package() {
	[ ! -x "/usr/lib/postgresql/$1/bin/postgres" ] || return 0
	command -v apt-get >/dev/null || return 1
	apt_candidate "postgresql-$1" >/dev/null || {
		apt_update "postgresql-$1"
		apt_candidate "postgresql-$1" >/dev/null
	}
}

# Where apt gets this machine's Debian from; nothing on another distribution.
mirror() {
	# shellcheck disable=SC2016 # apt's placeholders
	apt-get indextargets --format '$(REPO_URI) $(LABEL) $(COMPONENT)' |
		sed -n 's/^\([^ ]*\) Debian main$/\1/p' | sort -u | head -n 1
}

# Where apt gets a release from if it is this machine's, with its updates, as lines of a
# sources.list. Ubuntu's updates differ from the release only in the suite.
own_sources() {
	# shellcheck disable=SC2016 # apt's placeholders
	apt-get indextargets --format '$(CREATED_BY) $(LABEL) $(REPO_URI) $(CODENAME) $(SUITE) $(COMPONENT)' | sed -nE \
		-e "s/^Packages Debian(-Security)? ([^ ]+ $1(-[^ ]+)?) [^ ]+ main$/deb \2 main/p" \
		-e "s/^Packages Ubuntu ([^ ]+) $1 ($1(-[^ ]+)?) (main|universe)$/deb \1 \2 \4/p" | sort -u
}

# Print the folder of a release.
folder_of() {
	echo "$CACHE/$1${ARCH:+-$ARCH}"
}

# Install a release into its folder of the cache, with apt and little else.
make_folder() {
	local folder
	folder=$(folder_of "$1")

	[ -z "$ARCH" ] || emulate || return
	as_root mkdir -p "$folder.lock" || return
	{
		flock 8 # another run may be installing it
		[ ! -e "$folder/etc/debian_version" ] || return 0
		as_root rm -rf "$folder.new" && install_release "$1" "$folder.new" ${ARCH:+"--arch=$ARCH"} &&
			as_root mv "$folder.new" "$folder"
	} 8<"$folder.lock"
}

# Let this machine run programs for ARCH.
emulate() {
	local formats=/proc/sys/fs/binfmt_misc
	[ "$(dpkg --print-architecture)" != "$ARCH" ] || return 0
	is_installed qemu-user-static && is_installed binfmt-support && is_installed arch-test || {
		apt_update qemu-user-static binfmt-support arch-test
		apt_install qemu-user-static binfmt-support arch-test
	} || return
	# In a container, it is not mounted.
	[ -e "$formats/register" ] || as_root mount -t binfmt_misc binfmt_misc "$formats" || return
	[ -e "$formats/qemu-aarch64" ] || as_root update-binfmts --enable qemu-aarch64
}

# Install a release. Arguments: its name, a folder or the name of an archive (.tar), options of
# mmdebstrap.
install_release() {
	local release=$1 target=$2 keys uri sources=() options=()
	shift 2

	command -v mmdebstrap >/dev/null || {
		apt_update mmdebstrap
		apt_install mmdebstrap debian-archive-keyring
	} || return
	uri=$(mirror)
	mapfile -t sources < <(own_sources "$release")
	case $release in
		noble)
			# mmdebstrap knows Ubuntu's mirror. Not every Debian has Ubuntu's keys.
			options=("--components=main,universe")
			[ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ] || {
				keys=$(folder_of trixie)
				make_folder trixie &&
					run_in_folder "$keys" apt-get update -q &&
					run_in_folder "$keys" apt-get install -q -y ubuntu-archive-keyring || return
				options+=("--keyring=$keys/usr/share/keyrings/ubuntu-archive-keyring.gpg")
			}
			;;
		experimental)
			# It holds only what differs from sid. apt takes nothing from it unasked.
			[ -n "$uri" ] || return
			sources=("deb $uri sid main" "deb $uri experimental main")
			# shellcheck disable=SC2016 # mmdebstrap's variables
			options=(--setup-hook='mkdir -p "$1/etc/apt/preferences.d"'
				--setup-hook='printf "Package: src:postgresql-19\nPin: release a=experimental\nPin-Priority: 990\n" >"$1/etc/apt/preferences.d/postgresql-19"')
			release=sid
			;;
		*)
			[ "${#sources[@]}" -gt 0 ] || sources=(${uri:+"$uri"})
			;;
	esac
	# A release that is still in the making, or that a mirror has not brought up to
	# date, may be older than it says it may be.
	# As in images for containers, no package starts a service.
	# shellcheck disable=SC2016 # mmdebstrap's variables
	as_root mmdebstrap --quiet --variant=apt --mode=root \
		--aptopt='Acquire::Check-Valid-Until "false"' \
		--aptopt='Acquire::Check-Date "false"' \
		--aptopt='Acquire::Retries "3"' \
		--dpkgopt=force-unsafe-io \
		--essential-hook='mkdir -p "$1/etc/postgresql-common/createcluster.d"' \
		--essential-hook='echo "create_main_cluster = false" >"$1/etc/postgresql-common/createcluster.d/none.conf"' \
		--essential-hook='printf "#!/bin/sh\nexit 101\n" >"$1/usr/sbin/policy-rc.d"' \
		--essential-hook='chmod 755 "$1/usr/sbin/policy-rc.d"' \
		"${options[@]}" "$@" "$release" "$target" "${sources[@]}"
}

# Run a command in a root file system, as root. No mount and no process outlives the command.
# If IN_PLACE is set, it takes the place of this process. Arguments: the folder; another folder,
# and commands of the shell with both, $folder and $other, that come first; what env gets.
in_namespaces() {
	local become=()
	[ "$(id -u)" -eq 0 ] || become=(sudo)
	# shellcheck disable=SC2016 # variables of the shell inside
	${IN_PLACE:+exec} "${become[@]}" unshare --mount --propagation private --pid --fork \
		--kill-child=TERM bash -euc '
		folder=$1 other=$2
		mount --bind "$folder" "$folder" # for commands to which / must be a mount
		eval "$3"
		shift 3
		mount -t proc proc "$folder/proc"
		mount --rbind /dev "$folder/dev"
		mount -t tmpfs -o mode=1777 tmpfs "$folder/dev/shm"
		exec chroot "$folder" /usr/bin/env -i HOME=/root LANG=C.UTF-8 \
			PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
	' bash "$@"
}

# Run a command in a folder with a release, as root, in the checkout: it is there under
# its own path, and cannot be written to. PINPOINT_IN_FOLDER is set there. A folder is used
# by one run at a time, since a build and its installation are of one checkout.
run_in_folder() {
	local tests
	mapfile -t tests < <(env | grep '^PINPOINT_TEST_')
	# shellcheck disable=SC2016 # variables of the shell inside
	in_namespaces "$1" "$ROOT" '
		exec 9>"$folder/.lock" # for as long as the command runs
		flock 9
		rm -rf "$folder"/tmp/pinpoint.*
		mkdir -p "$folder/$other"
		mount --bind "$other" "$folder/$other"
		mount -o remount,bind,ro "$folder/$other"
	' env -C "$ROOT" "TERM=${TERM:-dumb}" CARGO_TARGET_DIR=/var/cache/pg_pinpoint/target \
		PINPOINT_IN_FOLDER=yes "${tests[@]}" "${@:2}"
}
