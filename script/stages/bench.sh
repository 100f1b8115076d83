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
	local log=$WORK/cargo.log rc=0 good bad
	run_logged "$log" cargo test --manifest-path "$MANIFEST" --locked "$@" || rc=$?
	read -r good bad < <(awk '/^test result: / { p += $4; f += $6 } END { print p + 0, f + 0 }' "$log")
	[ "$((good + bad))" -gt 0 ] || bad=1
	count "$good" "$bad" "$rc" "cargo test $*" "$log" '^---- .* stdout ----$|^error'
}

# The unit tests, which start no server.
stage_quick-cargo() {
	cargo_test --no-fail-fast --lib --bins
}

stage_cargo() {
	cargo_test --no-fail-fast
}

# Those that "cargo test" leaves out, as not every machine has a browser.
stage_page() {
	cargo_test --lib browser -- --ignored
}

# docs/torture.md tells how to run it for longer.
stage_torture() {
	local options rc log=$WORK/torture.log
	for options in "--seed 1 --duration 20" "--seed 2 --duration 20" \
		"--seed 3 --duration 20 --setting pinpoint.latency_target=20ms --setting pinpoint.fold=on" \
		"--seed 4 --duration 40 --standby" "--seed 5 --duration 30 --sharing" \
		"--seed 6 --duration 20 --standby --switch-replication --position-clients 8"; do
		rc=0
		# shellcheck disable=SC2086  # several words
		run_logged "$log" cargo run --manifest-path "$MANIFEST" --locked --quiet -- \
			torture --pg-config "$PG_CONFIG" --timeout 180 $options || rc=$?
		count "$((rc == 0))" "$((rc != 0))" "$rc" "torture $options" "$log" '^error'
	done
}
