# shellcheck shell=bash
# The stages of script/test that build the libraries, and test them with the makefiles of the parts.

# A callback has the parameters that PostgreSQL gives it, needed or not. The bitcode for JIT is made on
# the machine's own server only, as clang takes longer than gcc. A server that was built for
# --assertions has what pgindent needs, from version 16 on.
stage_build() {
	local part
	build_extension COPT="-Wall -Wextra -Werror -Wno-unused-parameter" ${PINPOINT_IN_FOLDER:+with_llvm=no}
	for part in "${PARTS[@]}"; do
		check "$ROOT/script/checks/symbols" "$WORK/build/$part"
	done
	[ ! -e "$(dirname "$("$PG_CONFIG" --pgxs)")/../tools/pgindent" ] ||
		check env "PG_CONFIG=$PG_CONFIG" "$ROOT/script/checks/pgindent"
}

# Copy the tests to where the servers' user may read and write, and the sources
# with them, for some tests compile a file of their part; and what else they look at.
prepare_tests() {
	[ ! -d "$WORK/test" ] || return 0
	mkdir "$WORK/test"
	cp -R "${PARTS[@]/#/$ROOT/}" "$ROOT/VERSION" "$ROOT/contrib" "$ROOT/docs" "$ROOT/managed" "$ROOT/README.md" "$ROOT/script/lib/prove" "$WORK/test"
	[ "$(id -u)" -ne 0 ] || chown -R postgres: "$WORK/test"
}

# Run "make installcheck" in the copy of a part. Arguments: the part, the file for its
# output, variables of make.
installcheck() {
	run_logged "$2" as_server_user "${SANITIZED[@]}" make -s -C "$WORK/test/$1" installcheck "PG_CONFIG=$PG_CONFIG" "${@:3}"
}

# Run the SQL tests (REGRESS) or the isolation specs (ISOLATION) with pg_regress, which
# makes a server for them: with the engine, and on PostgreSQL's own path. What they print
# may not differ. The tests of engine_schedule run with the engine only.
# Arguments: which of the two, the other, and the stage.
pg_regress() {
	local kind=$1 other=$2 stage=$3 engine out log rc good bad failed chosen
	check_schedules
	prepare_tests
	for engine in on off; do
		chosen=()
		if [ -n "${CHOSEN[$stage]-}" ]; then
			chosen=("$kind=$(chosen_for_engine "$stage" "$engine" | xargs)")
			[ "${chosen[0]}" != "$kind=" ] || continue
		fi
		out=$WORK/test/$kind-$engine
		log=$WORK/$kind-$engine.log
		rc=0
		as_server_user mkdir "$out"
		{
			cat "$ROOT/notify/test/pinpoint.conf"
			# What is built without contrib lacks it; no test here depends on it.
			[ -e "$PKGLIBDIR/pg_stat_statements.so" ] ||
				echo "shared_preload_libraries = 'pg_pinpoint'"
			# In the configuration file a test may still override it.
			echo "pinpoint.enabled = $engine"
		} >"$out/settings"
		installcheck notify "$log" TAP_TESTS= "$other=" REGRESS_PREP= "ENGINE=$engine" "${chosen[@]}" \
			"EXTRA_REGRESS_OPTS=--temp-instance=$out/instance --temp-config=$out/settings --outputdir=$out" || rc=$?

		good=$(matches "$OK" "$log")
		bad=$(matches "$NOT_OK" "$log")
		[ "$((good + bad))" -gt 0 ] || bad=1
		failed=$(grep -E "$NOT_OK" "$log" | sed -E 's/^(test|not ok [0-9]+)? +([-+] )?([^ ]+).*/\3/' | xargs) || true
		count "$good" "$bad" "$rc" "$kind with the engine $engine: $failed" \
			"$out/regression.diffs" '^diff '
		if [ "$bad" -gt 0 ] || [ "$rc" -ne 0 ]; then
			print_log "$out/regression.diffs"
			print_log "$out/log/postmaster.log" 50
		fi
		count_findings "$kind with the engine $engine" "$out"
	done
}

# A test that no schedule names would never run, and nobody would know. Names are
# unique: SQL tests and specs share the folder of the expected output.
check_schedules() {
	local odd
	cd "$ROOT/notify/test" || return
	odd=$(comm -3 <(basename -a -s .spec specs/*.spec | cat - <(basename -a -s .sql sql/*.sql) | sort) \
		<(sed -n 's/^test: *//p' ./*_schedule | tr -s ' ' '\n' | sort) | xargs)
	cd /
	[ -z "$odd" ] ||
		die "not exactly once both a file in notify/test and a line in a schedule: $odd"
}

stage_regress() {
	pg_regress REGRESS ISOLATION regress
}

stage_isolation() {
	pg_regress ISOLATION REGRESS isolation
}

# A copy of a data directory takes a fifth of the time of initdb. PostgreSQL::Test of 17 and later
# copies that of INITDB_TEMPLATE. For older versions, a program with the name of initdb does this,
# if its arguments are those of PostgreSQL::Test. Its folder, TEMPLATE_PATH, must come first in PATH.
make_initdb_template() {
	[ -z "${TEMPLATE_PATH-}" ] || return 0
	export INITDB_TEMPLATE=$WORK/initdb-template TEMPLATE_PATH=$WORK/initdb
	run as_server_user "$BINDIR/initdb" -A trust --no-sync --no-instructions "$INITDB_TEMPLATE"
	mkdir "$TEMPLATE_PATH"
	cat >"$TEMPLATE_PATH/initdb" <<-EOF
		#!/bin/sh
		[ "\$# \$1 \$3 \$4 \$5" != "5 -D -A trust -N" ] || exec cp -RPp '$INITDB_TEMPLATE' "\$2"
		exec '$BINDIR/initdb' "\$@"
	EOF
	chmod 755 "$TEMPLATE_PATH/initdb"
}

# The tests of a part that script/stages/slow-tests does not name. Argument: the part.
quick_tests() {
	local file
	cd "$ROOT/$1" || return
	for file in test/t/*.pl; do
		grep -q "^$1/$(basename "$file" .pl | sed 's/^[0-9]*_//') " "$ROOT/script/stages/slow-tests" || echo "$file"
	done
}

# A name in script/stages/slow-tests without a test would leave out nothing, and nobody would know.
check_slow_tests() {
	local part name
	while IFS='/ ' read -r part name _; do
		[[ $part == '#'* ]] || compgen -G "$ROOT/$part/test/t/[0-9]*_$name.pl" >/dev/null ||
			die "script/stages/slow-tests: there is no $part/$name"
	done <"$ROOT/script/stages/slow-tests"
}

stage_quick-tap() {
	check_slow_tests
	stage_tap quick
}

# All TAP tests, or those that were chosen, or with the argument "quick" those that take little time.
stage_tap() {
	local part tests
	[ -e "$TESTTOOLS/perl/PostgreSQL/Test/Cluster.pm" ] || {
		not_run tap "there is no PostgreSQL::Test: the server was built without --enable-tap-tests"
		return
	}
	prepare_tap
	for part in "${PARTS[@]}"; do
		if [ "$part" = decoding ] && is_emulated; then
			not_run "TAP tests of decoding" "qemu adds a thread to each program: --machine instead of --arch"
			continue
		fi
		tests=
		if [ "${1-}" = quick ]; then
			tests=$(quick_tests "$part" | xargs)
		elif [ -n "${CHOSEN[tap]-}" ]; then
			tests=$(tr ' ' '\n' <<<"${CHOSEN[tap]}" | sed -n "s,^$part/,,p" | xargs)
			[ -n "$tests" ] || continue
		fi
		tap_tests "$part" "$tests"
	done
}

# Does qemu run this program, without a machine?
is_emulated() {
	local threads=(/proc/self/task/*)
	[ "${#threads[@]}" -gt 1 ]
}

prepare_tap() {
	prepare_tests
	export PG_TEST_PORT_DIR=$WORK/test/ports PINPOINT_RESULTS=$WORK/test/results
	make_initdb_template
}

# Run TAP tests. Arguments: the part, and its files; without them, all.
tap_tests() {
	local rc=0
	as_server_user touch "$PINPOINT_RESULTS"
	installcheck "$1" "$WORK/tap.log" REGRESS= ISOLATION= REGRESS_PREP= ${2:+"PROVE_TESTS=$2"} \
		enable_tap_tests=yes "PROVE=$WORK/test/prove" "PG_PROVE_FLAGS=-I $TESTTOOLS/perl" || rc=$?
	grep -q '^failed' "$PINPOINT_RESULTS" || count 0 0 "$rc" "TAP tests of $1" "$WORK/tap.log" '^script/lib/prove'
	cat "$PINPOINT_RESULTS" >>"$RESULTS"
	rm "$PINPOINT_RESULTS"
	count_findings "TAP tests of $1" "$WORK/test/$1"
}
