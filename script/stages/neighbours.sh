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
	{
		flock 8 # another run may be installing it
		! diff -q "$folder/$list" <(printf '%s\n' "${NEIGHBOURS_PACKAGES[@]}") >/dev/null 2>&1 || return 0
		as_root rm -rf "$folder.new" "$folder" &&
			install_release "${RELEASES[15]}" "$folder.new" \
				"--include=$(IFS=, && echo "${NEIGHBOURS_PACKAGES[*]}")" &&
			printf '%s\n' "${NEIGHBOURS_PACKAGES[@]}" | as_root tee "$folder.new/$list" >/dev/null &&
			as_root mv "$folder.new" "$folder"
	} 8<"$folder.lock"
}

# Build the libraries for the folder: $WORK/neighbours/files has what "make install" installs.
build_for_neighbours() {
	copy_sources "$WORK/neighbours-build" &&
		make -s -C "$WORK/neighbours-build" install with_llvm=no "DESTDIR=$WORK/neighbours/files" "PG_CONFIG=$PG_CONFIG"
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
	count_command "the libraries for neighbours" build_for_neighbours || return 0
	build_sources "$WORK/neighbours/files"
	count_lines notify/test/neighbours run_neighbours
}
