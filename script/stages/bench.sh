# shellcheck shell=bash
# The stages of script/test that need cargo.

MANIFEST=$ROOT/bench/Cargo.toml

stage_fmt() {
	check cargo fmt --manifest-path "$MANIFEST" --all --check
}

stage_clippy() {
	check cargo clippy --manifest-path "$MANIFEST" --locked --all-targets -- -D warnings
}

# Run tests written in Rust. Arguments are given to cargo test.
cargo_test() {
	local log=$WORK/cargo.log rc=0 good bad what="cargo test $*"
	run_logged "$log" cargo test --manifest-path "$MANIFEST" --locked "$@" || rc=$?
	read -r good bad < <(awk '/^test result: / { p += $4; f += $6 } END { print p + 0, f + 0 }' "$log")
	if [ "$((good + bad))" -eq 0 ]; then
		[ "$rc" -ne 0 ] || what+=": no test has this name: $(where_tests_are cargo)"
		bad=1
	fi
	count "$good" "$bad" "$rc" "$what" "$log" '^---- .* stdout ----$|^error'
}

# The unit tests, which start no server.
stage_quick-cargo() {
	cargo_test --no-fail-fast --lib --bins
}

stage_cargo() {
	local skip=
	if ! has_assertions; then
		skip="--skip planted_fault"
		not_run "cargo planted_fault" "the server was built without assertions"
	fi
	make_bench_programs
	# shellcheck disable=SC2086 # several words
	PATH=$BENCH_PROGRAMS:$PATH cargo_test --no-fail-fast -- $skip ${CHOSEN[cargo]-}
}

# The libraries have planted faults only for such a server.
has_assertions() {
	grep -q '^#define USE_ASSERT_CHECKING 1' "$("$PG_CONFIG" --includedir-server)/pg_config.h"
}

# As make_initdb_template() does for the TAP tests: BENCH_PROGRAMS is a folder with the programs of the
# server, in which initdb copies a data directory, if its arguments are those of pinpoint-bench.
make_bench_programs() {
	local template=$WORK/bench-template options="--username=postgres --auth=trust --encoding=UTF8 --no-locale"
	BENCH_PROGRAMS=$WORK/bench-programs
	# shellcheck disable=SC2086  # several words
	run_quietly "$WORK/initdb.log" as_server_user "$BINDIR/initdb" --pgdata="$template" $options --no-sync
	mkdir "$BENCH_PROGRAMS"
	ln -s "$BINDIR"/* "$BENCH_PROGRAMS"
	rm "$BENCH_PROGRAMS"/{initdb,pg_config}
	cat >"$BENCH_PROGRAMS/initdb" <<-EOF
		#!/bin/sh
		[ "\$*" != "--pgdata=data $options" ] || exec cp -RPp '$template' data
		exec '$BINDIR/initdb' "\$@"
	EOF
	cat >"$BENCH_PROGRAMS/pg_config" <<-EOF
		#!/bin/sh
		'$BINDIR/pg_config' "\$@" | sed 's|$BINDIR\$|$BENCH_PROGRAMS|'
	EOF
	chmod 755 "$BENCH_PROGRAMS"/{initdb,pg_config}
}

# Those that "cargo test" leaves out, as not every machine has a browser.
stage_page() {
	cargo_test --lib browser -- --ignored
}

# bench/torture.md tells how to run it for longer.
stage_torture() {
	local options
	for options in "--seed 1 --duration 20" "--seed 2 --duration 20 --stop-waker" \
		"--seed 3 --duration 20 --setting pinpoint.latency_target=20ms --setting pinpoint.fold=on" \
		"--seed 4 --duration 40 --standby" "--seed 5 --duration 30 --sharing" \
		"--seed 6 --duration 20 --standby --switch-replication --position-clients 8"; do
		# shellcheck disable=SC2086  # several words
		count_command "torture $options" cargo run --manifest-path "$MANIFEST" --locked --quiet -- \
			torture --pg-config "$PG_CONFIG" --timeout 180 $options || :
	done
}
