# shellcheck shell=bash
# The source of PostgreSQL. The caller has sourced common.sh and created the temporary directory.

# Put the source of the server of PG_CONFIG into $WORK/source. The argument is a directory with
# the source, or "apt". With "apt", Debian's source package of the same release is downloaded;
# if there is none, that of another minor release. More arguments are options of dpkg-source.
get_postgres_source() {
	local name own version
	if [ "$1" != apt ]; then
		cp -R "$(realpath -e "$1")" "$WORK/source"
		return
	fi
	name=postgresql-$("$PG_CONFIG" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/')
	own=$(dpkg-query -W -f '${source:Version}' "$name") || {
		warn "name the folder with the source of $PG_CONFIG"
		return 1
	}

	# apt with lists of its own: a machine's sources seldom name source packages.
	mkdir -p "$WORK"/apt/{lists/partial,cache/archives/partial,download}
	apt_update
	# shellcheck disable=SC2016 # apt's placeholders
	apt-get indextargets --format '$(LABEL) deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' \
		'Created-By: Packages' | sed -nE 's/^(Debian|Ubuntu)[^ ]* //p' | sort -u >"$WORK/apt/sources.list"
	source_apt apt-get update || return
	cd "$WORK/apt/download" || return
	for version in "$own" $(source_apt apt-cache showsrc "$name" |
		sed -n 's/^Version: //p' | sort -rV -u); do
		rm -f ./*
		source_apt apt-get source --download-only "$name=$version" || continue
		[ "$version" = "$own" ] ||
			warn "the server is of $own, and its source of $version: apt has no other"
		dpkg-source --no-check "${@:2}" -x ./*.dsc "$WORK/source" >/dev/null
		return
	done
	return 1
}

source_apt() {
	"$@" -q -o "Dir::Etc::SourceList=$WORK/apt/sources.list" -o Dir::Etc::SourceParts=- \
		-o "Dir::State::Lists=$WORK/apt/lists" -o "Dir::Cache=$WORK/apt/cache" \
		-o APT::Sandbox::User=root -o Acquire::Retries=3
}

# Set PG_CONFIG to a server of the same major version that is built from PostgreSQL's source, without
# the patches of the distribution. It is kept in the cache, for this release of the package and this
# way to build it. The argument is its kind: with "assertions"; or for "sanitizers", with assertions
# and separate_chunks; or with assertions and the C library "musl". The caller has sourced servers.sh.
# Fails if there is no source.
use_built_server() {
	local name release folder way

	name=postgresql-$(major_version "$PG_CONFIG")
	release=$(dpkg-query -W -f '${source:Version}' "$name") || return
	folder=$CACHE/$name-$1/$release
	way=$(declare -f build_server build_indent separate_chunks install_musl)
	if [ "$1" = musl ]; then
		install_musl || return
		way+=$(cat "$ROOT"/script/lib/{musl-cc,dl_find_object.c})
	fi
	if [ "$(cat "$folder/way" 2>/dev/null)" != "$way" ]; then
		heading "build $name $release with $1"
		get_postgres_source apt --skip-patches || return
		cd "$WORK/source" || return
		[ "$1" != sanitizers ] || separate_chunks
		as_root install -d -o "$(id -u)" "$CACHE/ccache"
		run_quietly "$WORK/$1.log" build_server "$1" "$folder" "$WORK/installed" || {
			tail -n 40 "$WORK/$1.log"
			die "$name does not compile with $1"
		}
		echo "$way" >"$WORK/installed$folder/way"
		as_root mkdir -p "${folder%/*}"
		as_root rm -rf "$folder" "$folder.new"
		as_root cp -R "$WORK/installed$folder" "$folder.new"
		as_root mv "$folder.new" "$folder"
		cd /
		rm -rf "$WORK/source" "$WORK/apt" "$WORK/installed"
	fi
	PG_CONFIG=$folder/bin/pg_config
}

# Build the source in the current folder. Arguments: the kind, the folder that the server will have, and
# another one, below which it is installed.
build_server() {
	local cc=cc options=(--with-openssl --with-lz4 --with-zstd) make
	# These libraries are there for glibc only.
	[ "$1" != musl ] || cc=$CACHE/musl/bin/musl-cc options=("CC=$CACHE/musl/bin/musl-cc" --without-zlib)
	make=(make -s "CC=ccache $cc" "DESTDIR=$3")
	export CCACHE_DIR=$CACHE/ccache
	./configure "--prefix=$2" --enable-cassert --enable-tap-tests --without-icu --without-readline \
		"${options[@]}" CFLAGS=-O1 &&
		# These two targets depend on each other in an incomplete way.
		"${make[@]}" "-j$(nproc)" world-bin && "${make[@]}" install-world-bin &&
		build_indent "$3$2/lib/pgxs" "${make[@]}"
}

# Install script/lib/musl-cc into the cache, where the server's makefiles name it, with the kernel's headers,
# which musl does not have: the machine's are beside those of glibc.
install_musl() {
	local folder=$CACHE/musl name
	as_root mkdir -p "$folder/kernel" "$folder/lib" "$folder/bin" || return
	for name in linux asm-generic; do
		as_root ln -sfn "/usr/include/$name" "$folder/kernel/$name"
	done
	as_root ln -sfn "/usr/include/$(gcc -dumpmachine)/asm" "$folder/kernel/asm"
	musl-gcc -O2 -Wall -Werror -fPIC -c -o "$WORK/dl_find_object.o" "$ROOT/script/lib/dl_find_object.c" &&
		rm -f "$WORK/libdl_find_object.a" && ar rcs "$WORK/libdl_find_object.a" "$WORK/dl_find_object.o" &&
		as_root install -m 644 "$WORK/libdl_find_object.a" "$folder/lib" &&
		as_root install "$ROOT/script/lib/musl-cc" "$folder/bin"
}

# PostgreSQL 16 and later have the program that pgindent needs. pgindent and its list of types are
# beside what PGXS keeps of the source. Arguments: the folder of PGXS, make with its options.
build_indent() {
	[ -d src/tools/pg_bsd_indent ] || return 0
	"${@:2}" -C src/tools/pg_bsd_indent install &&
		install -D -t "$1/src/tools/pgindent" src/tools/pgindent/{pgindent,typedefs.list}
}

# Change the source in the current folder: memory contexts allocate each chunk with malloc(). Then
# AddressSanitizer knows where each chunk ends, and which are freed.
separate_chunks() {
	local file=src/backend/utils/mmgr/aset.c
	sed -i -e 's/^\tset->allocChunkLimit = ALLOC_CHUNK_LIMIT;$/\tset->allocChunkLimit = 0;/' \
		-e 's/^\tif (size > set->allocChunkLimit)$/\tsize = Max(size, 1);\n&/' "$file"
	[ "$(grep -cE '^	(set->allocChunkLimit = 0|size = Max\(size, 1\));$' "$file")" -eq 2 ] ||
		die "$file has changed: see separate_chunks"
}
