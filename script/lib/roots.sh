# shellcheck shell=bash
# Temporary root file systems, and commands that run in them. The caller has sourced common.sh
# and servers.sh.
#
# A root is a minimal installation of a release of a distribution. It is installed from a
# mirror once, and kept as an archive in the cache. It contains no files of this machine, and
# commands in it do not change this machine.

# Set ARCHIVE to a release with some packages. Arguments: the release, packages.
make_archive() {
	local release=$1 name options=()
	name=$(IFS=+ && echo "$*")
	shift
	ARCHIVE=$CACHE/$name.tar
	[ ! -s "$ARCHIVE" ] || return 0
	[ "$#" -eq 0 ] || options=("--include=$(IFS=, && echo "$*")")
	as_root mkdir -p "$CACHE" || return
	# As in images for containers, no package starts a service.
	# shellcheck disable=SC2016 # mmdebstrap's variables
	install_release "$release" "$ARCHIVE.$$.tar" "${options[@]}" \
		--essential-hook='mkdir -p "$1/etc/postgresql-common/createcluster.d"' \
		--essential-hook='echo "create_main_cluster = false" >"$1/etc/postgresql-common/createcluster.d/none.conf"' \
		--customize-hook='printf "#!/bin/sh\nexit 101\n" >"$1/usr/sbin/policy-rc.d"' \
		--customize-hook='chmod 755 "$1/usr/sbin/policy-rc.d"' &&
		as_root mv "$ARCHIVE.$$.tar" "$ARCHIVE"
}

# Unpack an archive. Arguments: the archive, a new folder.
make_root() {
	as_root mkdir "$2" && as_root tar -C "$2" --numeric-owner -xf "$1"
}

# Make the folder of the cache for what apt downloads in a root. It is for one apt at a
# time, the one with the lock.
make_debs() {
	as_root mkdir -p "$CACHE/debs/partial"
	as_root touch "$CACHE/debs/.lock"
}

# Run a command in a root, as its user root.
in_root() {
	# shellcheck disable=SC2016 # variables of the shell inside
	in_namespaces "$1" "$CACHE/debs" '
		exec 9<"$other/.lock"
		if flock -n 9; then
			mount --bind "$other" "$folder/var/cache/apt/archives"
		fi
		cp -L /etc/resolv.conf "$folder/etc/resolv.conf"
	' DEBIAN_FRONTEND=noninteractive "${@:2}"
}
