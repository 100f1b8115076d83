# shellcheck shell=bash
# The stage "neighbours" of script/test: notify/test/neighbours, pg_pinpoint beside the extensions
# that Debian 12 has for PostgreSQL 15, and those of NEIGHBOURS_SOURCES. They are installed into a
# folder of the cache, and not on this machine.

# shellcheck source-path=SCRIPTDIR source=../lib/servers.sh
. "$ROOT/script/lib/servers.sh"
# shellcheck source-path=SCRIPTDIR source=../lib/neighbour-sources.sh
. "$ROOT/script/lib/neighbour-sources.sh"

# Names of packages after "postgresql-15-"
NEIGHBOURS=(cron decoderbufs hypopg orafce partman periods pg-qualstats pg-stat-kcache
	pg-wait-sampling pgaudit pgl-ddl-deploy pglogical pgq3 pldebugger pllua plpgsql-check plprofiler
	plr plsh postgis-3 powa repack rum set-user tablelog wal2json)
NEIGHBOURS_PACKAGES=("${NEIGHBOURS[@]/#/postgresql-15-}" postgresql-15 postgresql-plpython3-15
	postgresql-pltcl-15 python3-psycopg2)

# Make the folder. A folder with another list of packages is replaced.
make_neighbours() {
	local folder=$CACHE/neighbours list=usr/share/pinpoint-packages

	as_root mkdir -p "$folder.lock" || return
	# shellcheck disable=SC2016 # mmdebstrap's variables
	{
		flock 8 # another run may be installing it
		! diff -q "$folder/$list" <(printf '%s\n' "${NEIGHBOURS_PACKAGES[@]}") >/dev/null 2>&1 || return 0
		as_root rm -rf "$folder.new" "$folder" &&
			install_release "${RELEASES[15]}" "$folder.new" \
				"--include=$(IFS=, && echo "${NEIGHBOURS_PACKAGES[*]}")" \
				--essential-hook='mkdir -p "$1/etc/postgresql-common/createcluster.d"' \
				--essential-hook='echo "create_main_cluster = false" >"$1/etc/postgresql-common/createcluster.d/none.conf"' &&
			printf '%s\n' "${NEIGHBOURS_PACKAGES[@]}" | as_root tee "$folder.new/$list" >/dev/null &&
			as_root mv "$folder.new" "$folder"
	} 8<"$folder.lock"
}

# Build the libraries for the folder: $WORK/neighbours/files has what "make install" installs.
build_for_neighbours() {
	local part build=$WORK/neighbours-build
	mkdir "$build"
	cp -R "$ROOT/VERSION" "${PARTS[@]/#/$ROOT/}" "$build"
	for part in "${PARTS[@]}"; do
		make -s -C "$build/$part" clean "PG_CONFIG=$PG_CONFIG" &&
			make -s -C "$build/$part" install with_llvm=no "DESTDIR=$WORK/neighbours/files" \
				"PG_CONFIG=$PG_CONFIG" || return
	done
}

# Run the program in the folder, on files in memory. A folder is used by one run at a time.
run_neighbours() {
	# shellcheck disable=SC2016 # variables of the shell inside
	in_namespaces "$CACHE/neighbours" "$WORK/neighbours" '
		exec 9>"$folder/.lock" # for as long as the command runs
		flock 9
		list=$folder/usr/share/pinpoint-files # of the previous run
		[ ! -e "$list" ] || (cd "$folder" && xargs -d "\n" rm -f <"$list")
		(cd "$other/files" && find . ! -type d) >"$list"
		cp -R "$other/files/." "$folder"
		rm -rf "$folder/srv/program"
		cp -R "$other/program" "$folder/srv"
	' bash -euc '
		install -d -o postgres /dev/shm/neighbours
		exec setpriv --reuid=postgres --regid=postgres --init-groups \
			env -C / "PINPOINT_TEST_FAULT=$1" python3 -B /srv/program/run.py /dev/shm/neighbours
	' bash "${PINPOINT_TEST_FAULT-}"
}

stage_neighbours() {
	local log=$WORK/neighbours.log rc=0

	# shellcheck disable=SC1091 # of this machine
	if [[ $PG_CONFIG != /usr/lib/postgresql/15/* ]] ||
		[ "$(. /etc/os-release && echo "${VERSION_CODENAME-}")" != "${RELEASES[15]}" ]; then
		not_run neighbours "the libraries are not built for PostgreSQL 15 of Debian 12"
		return
	fi
	make_neighbours || {
		not_run neighbours "the extensions could not be installed into a folder"
		return
	}
	mkdir "$WORK/neighbours"
	cp -R "$ROOT/notify/test/neighbours" "$WORK/neighbours/program"
	run_quietly "$WORK/neighbours-build.log" build_for_neighbours || {
		print_log "$WORK/neighbours-build.log" 30
		count 0 1 1 "the libraries for neighbours" "$WORK/neighbours-build.log" 'error'
		return
	}
	build_sources "$WORK/neighbours/files"
	run_logged "$log" run_neighbours || rc=$?
	count "$(matches '^passed ' "$log")" "$(matches '^failed ' "$log")" "$rc" \
		notify/test/neighbours "$log" '^failed '
}
