# shellcheck shell=bash
# The stage "upstream" of script/test: PostgreSQL's own tests, from its source, on the
# installed server. Each suite runs with both libraries. What does not pass runs on the stock
# server, too, and the results are compared:
#
#     core regression tests, isolation tests, PL/pgSQL, contrib: the output of each test of
#     the suite must be identical
#     TAP tests of recovery and subscription: the same assertions must pass; a list of them is
#     the output of such a test
#
# pg_regress creates its database from template0, so an option makes it create the extensions.
# A test may also fail on the stock server, for example if the source is of another minor
# release. Such a test is listed, and counts as failed only if the outputs differ.
#
# Some of these tests depend on timing, and fail at random on any server. Therefore tests with
# different results are repeated once on both servers, and fail if they differ again.

# shellcheck source-path=SCRIPTDIR source=../lib/postgres-source.sh
. "$ROOT/script/lib/postgres-source.sh"

# Where the libraries are seen, and may be: the steps of isolation/stats that ask
# how much NOTIFY has written to PostgreSQL's own queue. pg_pinpoint writes nothing
# to it.
EXPECTED_DIFFERENCE=isolation/stats.out

stage_upstream() {
	UPSTREAM=$WORK/upstream
	mkdir "$UPSTREAM"
	# A server that is built from source is built without the patches of the distribution.
	get_postgres_source "${PGSRC:-apt}" ${BUILT:+--skip-patches} || {
		not_run upstream "the source of $("$PG_CONFIG" --version) is not available"
		return
	}
	grep -m 1 '^PACKAGE_STRING=' "$WORK/source/configure"
	upstream_libraries
	make_initdb_template
	[ "$(id -u)" -ne 0 ] || chown -R postgres: "$UPSTREAM" "$WORK/source"

	run_and_compare
	if [ "${#DIFFERENT[@]}" -gt 0 ]; then
		again_what_differs
	fi
	count_outcomes
}

# ---- What is compared -------------------------------------------------------------

# Run the suites that are wanted with the libraries, then those that do not pass on the stock
# server, and compare.
run_and_compare() {
	local mode wanted=("${ONLY[@]}")
	DIFFERENT=()
	for mode in pinpoint stock; do
		heading "upstream: $mode"
		upstream_regress "$mode"
		upstream_tap "$mode"
		[ "$mode" = pinpoint ] || break
		select_failed
		[ "${#ONLY[@]}" -gt 0 ] || break
	done
	heading "upstream: compared"
	compare_outputs
	ONLY=("${wanted[@]}")
}

# Set ONLY to the suites of pg_regress and the TAP tests that do not pass with the libraries. The others
# count as the same, and so do the tests that pass in a suite of isolation tests.
select_failed() {
	local output name
	ONLY=()
	for output in "$UPSTREAM"/pinpoint/*/{output,results/*.tap}; do
		[ -e "$output" ] || continue
		name=$(name_of "$output")
		if grep -qE "$NOT_OK|^not ok|^exit code [^0]" "$output"; then
			ONLY+=("$name")
		fi
		# A TAP test can skip all that it has.
		[[ $name == *.tap ]] || grep -qE "$OK" "$output" || count 0 1 1 "upstream: no test of $name passes" "$output" .
		if ! contains "$name" "${ONLY[@]}" || [[ $name == *isolation ]]; then
			SAME=$((SAME + $(matches "$OK|^ok " "$output")))
		fi
	done
	echo "on the stock server, too: ${ONLY[*]:-none}"
}

# The name of a suite of pg_regress, or SUITE/TEST of an output of a test. Argument: the path of the output.
name_of() {
	local name=${1#"$UPSTREAM"/*/}
	name=${name%/output}
	echo "${name/\/results/}"
}

# How many results are the same on both servers, and the names of the outputs that are not.
SAME=0
DIFFERENT=()

# The suites to run, and the files of TAP tests; all if there is none.
ONLY=()

is_wanted() {
	[ "${#ONLY[@]}" -eq 0 ] || contains "$1" "${ONLY[@]}"
}

# Run what differs once more. A suite of pg_regress does so as a whole, since its tests
# need each other.
again_what_differs() {
	local name differed=("${DIFFERENT[@]}")
	UPSTREAM=$UPSTREAM/again
	as_server_user mkdir "$UPSTREAM"
	echo "once more: ${differed[*]}"
	for name in "${differed[@]}"; do
		case $name in
			*.tap) ONLY+=("$name") ;;
			*) ONLY+=("${name%%/*}") ;;
		esac
	done
	run_and_compare
	for name in "${differed[@]}"; do
		contains "$name" "${DIFFERENT[@]}" || echo "$name differed by chance, and not again"
	done
}

count_outcomes() {
	compgen -G "$WORK/upstream/pinpoint/recovery/results/*.tap" >/dev/null || die "PostgreSQL's TAP tests have no results"
	count "$SAME" "${#DIFFERENT[@]}" 0 "the outcomes of ${DIFFERENT[*]}"
}

# The C functions that the tests call: those of regress.c are not installed.
upstream_libraries() {
	local dir=$WORK/source/src/test/regress library
	run cc -O2 -fPIC -shared -I"$("$PG_CONFIG" --includedir-server)" \
		-o "$dir/regress.so" "$dir/regress.c" || die "regress.c does not compile"
	for library in refint autoinc; do
		[ ! -e "$PKGLIBDIR/$library.so" ] || ln -sf "$PKGLIBDIR/$library.so" "$dir/"
	done
}

# A variable of a makefile, without running make: the tests of a module.
makefile_list() {
	sed -e ':a' -e '/\\$/N; s/\\\n//; ta' "$1" | sed -n "s/^$2 *= *//p"
}

# ---- Suites of pg_regress -----------------------------------------------------

upstream_regress() {
	local mode=$1 src=$WORK/source module name tests
	pg_regress_suite "$mode" core regress "$src/src/test/regress" \
		--schedule="$src/src/test/regress/parallel_schedule" \
		--dlpath="$src/src/test/regress" --max-concurrent-tests=20
	pg_regress_suite "$mode" isolation isolation "$src/src/test/isolation" \
		--schedule="$src/src/test/isolation/isolation_schedule"
	for module in src/pl/plpgsql/src contrib/pg_stat_statements contrib/tcn \
		contrib/test_decoding; do
		name=${module##*/}
		read -ra tests < <(makefile_list "$src/$module/Makefile" REGRESS) || true
		pg_regress_suite "$mode" "${name/src/plpgsql}" regress "$src/$module" "${tests[@]}"
		read -ra tests < <(makefile_list "$src/$module/Makefile" ISOLATION) || true
		pg_regress_suite "$mode" "$name-isolation" isolation "$src/$module" "${tests[@]}"
	done
}

# Arguments: mode, a name for the suite, "regress" or "isolation", its folder, then
# the tests, as the runner gets them.
pg_regress_suite() {
	local mode=$1 name=$2 kind=$3 dir=$4 out=$UPSTREAM/$1/$2 runner log libraries tests options=()
	shift 4
	# Some makefiles create the extension that their isolation tests need.
	[ "$kind" = regress ] ||
		readarray -t options < <(grep -os -- '--load-extension=[a-z_]*' "$dir/Makefile")
	if [ "$#" -eq 0 ] || ! is_wanted "$name"; then return 0; fi
	if [ "$mode:$kind" = stock:isolation ]; then
		# Isolation tests do not need each other: only those that do not pass.
		readarray -t tests < <(failed_tests "$UPSTREAM/pinpoint/$name/output")
		set -- "${tests[@]}"
	fi
	log=$out/output
	runner=$TESTTOOLS/regress/pg_regress
	[ "$kind" = regress ] || runner=$TESTTOOLS/isolation/pg_isolation_regress
	as_server_user mkdir -p "$out"
	# the suite's own settings, and the libraries
	{
		echo "fsync = off"
		cat "$dir"/{logical,"${dir##*/}"}.conf 2>/dev/null
	} >"$out/settings" || true
	if [ "$mode" = pinpoint ]; then
		libraries=$(libraries_after "$out/settings")
		echo "$libraries" >>"$out/settings"
		options+=(--load-extension=pg_pinpoint --load-extension=pg_pinpoint_decoding)
	fi
	printf '%s, %s: ' "$mode" "$name"
	supervise quietly "$log" as_server_user "$runner" --temp-instance="$out/instance" \
		--temp-config="$out/settings" --bindir="$BINDIR" --inputdir="$dir" \
		--outputdir="$out" --encoding=UTF8 --no-locale "${options[@]}" "$@" || true
	rm -rf "$out/instance/data"
	printf '%s ok, %s not ok\n' "$(matches "$OK" "$log")" "$(matches "$NOT_OK" "$log")"
	[ -n "$(compgen -G "$out/results/*.out")" ] || print_log "$log" 50
}

# The names of the tests that do not pass. Argument: the output of a suite of pg_regress.
failed_tests() {
	sed -nE 's/^(test|   ) +([^ ]+) +\.\.\. FAILED.*/\2/p; s/^not ok [0-9]+ +[-+] +([^ ]+).*/\1/p' "$1"
}

# The line of settings by which both libraries are loaded, before what the file
# names already.
libraries_after() {
	local more
	more=$(sed -n "s/^shared_preload_libraries *= *'\(.*\)'/, \1/p" "$1")
	echo "shared_preload_libraries = 'pg_pinpoint, pg_pinpoint_decoding$more'"
}

# A test is what it printed.
compare_outputs() {
	local stock pinpoint name
	while IFS= read -r stock; do
		name=$(name_of "$stock")
		is_wanted "$name" || is_wanted "${name%%/*}" || continue
		pinpoint=${stock/"$UPSTREAM/stock/"/"$UPSTREAM/pinpoint/"}
		if cmp -s "$stock" "$pinpoint" || { [ "$name" = "$EXPECTED_DIFFERENCE" ] &&
			cmp -s <(without_slru_steps "$stock") <(without_slru_steps "$pinpoint"); }; then
			SAME=$((SAME + 1))
		else
			DIFFERENT+=("$name")
			printf -- '---- %s differs\n' "$name"
			diff -u "$stock" "$pinpoint" | head -n 60 || true
			print_log "${pinpoint%.tap}.err" 30
		fi
	done < <(find "$UPSTREAM/stock" -path '*/results/*.out' -o -path '*/results/*.tap' | sort)
	grep -sE "$NOT_OK|^not ok|^exit code [^0]" "$UPSTREAM"/stock/*/{output,results/*.tap} |
		sed "s,^$UPSTREAM/stock/,on the stock server too: ," || true
}

# An output of an isolation test without the results of steps about SLRU
without_slru_steps() {
	awk '/^(step|starting permutation:)/ { step = $2 } step !~ /slru/' "$1"
}

# ---- TAP ------------------------------------------------------------------------

upstream_tap() {
	local mode=$1 suite dir file libraries=$UPSTREAM/$1/libraries.conf
	as_server_user mkdir -p "$UPSTREAM/$mode"
	: >"$libraries"
	[ "$mode" = stock ] || libraries_after /dev/null >"$libraries"
	for suite in recovery subscription; do
		dir=$UPSTREAM/$mode/$suite
		as_server_user mkdir -p "$dir/results"
		for file in "$WORK/source/src/test/$suite"/t/*.pl; do
			! is_wanted "$suite/$(basename "$file" .pl).tap" || echo "${file##*/}"
		done >"$dir/files"
		[ -s "$dir/files" ] || continue
		printf '%s, %s: ' "$mode" "$suite"
		supervise upstream_prove "$suite" "$dir" "$libraries" || true
		printf '%s ok, %s not ok\n' "$(cat "$dir"/results/*.tap | grep -c '^ok ' || true)" \
			"$(cat "$dir"/results/*.tap | grep -c '^not ok ' || true)"
	done
}

# Some at a time: they wait more than they work. The output is what a test asserted. Positions in the WAL
# and process IDs are others each time.
upstream_prove() {
	local suite=$1 dir=$2 libraries=$3 with_icu=no
	[[ $("$PG_CONFIG" --configure) != *--with-icu* ]] || with_icu=yes
	cd "$WORK/source/src/test/$suite" || return
	# shellcheck disable=SC2016 # variables of the shell inside
	as_server_user env "PATH=$TEMPLATE_PATH:$PATH" PG_REGRESS="$TESTTOOLS/regress/pg_regress" \
		REGRESS_SHLIB="$WORK/source/src/test/regress/regress.so" \
		PG_TEST_PORT_DIR="$UPSTREAM/ports" TEMP_CONFIG="$libraries" \
		PERL5LIB="$WORK/source/src/test/perl" with_icu="$with_icu" \
		enable_injection_points=no \
		xargs -P 3 -n 1 -a "$dir/files" bash -c '
			name=${2%.pl}
			export TESTDIR=$1/$name
			export TESTDATADIR=$TESTDIR/tmp_check TESTLOGDIR=$TESTDIR/tmp_check/log
			mkdir -p "$TESTDIR"
			{
				perl "t/$2" 2>"$1/results/$name.err"
				echo "exit code $?"
			} | grep -E "^(not )?ok |^exit code|^1\.\." |
				sed -E "s/[0-9A-F]+\/[0-9A-F]{6,}/LSN/g; s/pid [0-9]+/pid/g; s/^((not )?ok) [0-9]+/\1/" |
				sort >"$1/results/$name.tap"
			rm -rf "$TESTDATADIR"' bash "$dir"
}
