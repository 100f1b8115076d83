# shellcheck shell=bash
# Sourced by the stage "neighbours": extensions that Debian does not have are built from the
# sources in NEIGHBOURS_SOURCES. That is a folder with unpacked releases that support PostgreSQL
# 15, named as in SOURCES.

SOURCES=(timescaledb citus pg_tle)
SOURCES_PACKAGES=(cmake flex libcurl4-openssl-dev libkrb5-dev liblz4-dev libpam0g-dev libselinux1-dev
	libssl-dev libxml2-dev libxslt1-dev libzstd-dev)

# Build an extension in the current folder, and install it below another one.
make_timescaledb() {
	cmake -S . -B build -DAPACHE_ONLY=0 -DREGRESS_CHECKS=OFF -DTAP_CHECKS=OFF -DWARNINGS_AS_ERRORS=OFF \
		-DGENERATE_DOWNGRADE_SCRIPT=OFF -DCMAKE_BUILD_TYPE=Release "-DPG_CONFIG=$PG_CONFIG" &&
		make -C build -j2 && make -C build install "DESTDIR=$1"
}

make_citus() {
	local headers
	headers=$("$PG_CONFIG" --includedir-server)
	# Citus 13.2 defines a function that later minor releases of PostgreSQL 15 declare.
	if grep -q have_createdb_privilege "$headers/commands/dbcommands.h"; then
		perl -0pi -e 's/static inline bool\nhave_createdb_privilege\(void\)\n.*?\n\}\n//s' \
			src/include/pg_version_compat.h
	fi
	./configure "PG_CONFIG=$PG_CONFIG" && make -j2 with_llvm=no &&
		make install with_llvm=no "DESTDIR=$1"
}

make_pg_tle() {
	make with_llvm=no "PG_CONFIG=$PG_CONFIG" &&
		make install with_llvm=no "DESTDIR=$1" "PG_CONFIG=$PG_CONFIG"
}

# Print what a build depends on: the server, the commands, the files of the source.
state_of_source() {
	"$PG_CONFIG" --version
	declare -f "make_$1"
	find "$NEIGHBOURS_SOURCES/$1" -type f -printf '%P %s %T@\n' | sort
}

# Build an extension of SOURCES into the folder "files" of the folder $2. It is kept there until
# one of these changes.
build_source() (
	as_root install -d -o "$(id -u)" "$CACHE/neighbours-sources" "$2" || exit
	exec 8<"$2"
	flock 8 # another run may be building it
	! diff -q "$2/state" <(state_of_source "$1") >/dev/null 2>&1 || exit 0
	renice -n 10 "$BASHPID" >/dev/null
	rm -rf "$2/state" "$2/source" "$2/files" &&
		cp -R --preserve=timestamps "$NEIGHBOURS_SOURCES/$1" "$2/source" && cd "$2/source" && "make_$1" "$2/files" && cd / &&
		rm -rf "$2/source" && state_of_source "$1" >"$2/state"
)

# Build the extensions whose sources are there, and copy them into a folder.
build_sources() {
	local name folder missing=()

	if [ -z "${NEIGHBOURS_SOURCES-}" ]; then
		not_run "neighbours: ${SOURCES[*]}" "NEIGHBOURS_SOURCES is not set"
		return
	fi
	for name in "${SOURCES_PACKAGES[@]}"; do
		is_installed "$name" || missing+=("$name")
	done
	if [ "${#missing[@]}" -gt 0 ]; then
		apt_update "${missing[@]}"
		apt_install "${missing[@]}" || true # a build will fail
	fi
	for name in "${SOURCES[@]}"; do
		folder=$CACHE/neighbours-sources/$name
		if [ ! -d "$NEIGHBOURS_SOURCES/$name" ]; then
			not_run "neighbours: $name" "it is not in $NEIGHBOURS_SOURCES"
		elif count_command "the build of $name" build_source "$name" "$folder"; then
			cp -R "$folder/files/." "$1"
		fi
	done
}
