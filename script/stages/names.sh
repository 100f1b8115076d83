# shellcheck shell=bash
# "script/test STAGE NAME": the tests of a stage that have a name.

# shellcheck disable=SC2034 # for script/test
STAGES_WITH_NAMES=(regress isolation tap cargo)

# The tests that were chosen, by stage. All run if there is none.
declare -A CHOSEN=()

# The same for another script/test: STAGE NAME STAGE NAME ...
# shellcheck disable=SC2034 # for run_on_version()
NAMES=()

# Print the tests of a stage with this name, one in each line, and fail if there is none. A TAP test is
# PART/test/t/FILE. The others are names. Arguments: the stage, the name.
tests_named() (
	cd "$ROOT" || exit
	case $1 in
		regress) [ -e "notify/test/sql/$2.sql" ] && echo "$2" ;;
		isolation) [ -e "notify/test/specs/$2.spec" ] && echo "$2" ;;
		tap) tap_tests_named "${2%.pl}" ;;
		cargo) echo "$2" ;; # cargo itself looks for it
	esac
)

# "106", "sleepers" and "notify/106" are names of notify/test/t/106_sleepers.pl.
tap_tests_named() {
	local name=${1##*/} part=${1%/*} file
	for file in "${PARTS[@]/%//test/t/}"; do
		[[ $1 != */* || $file == "${part%/test/t}"/* ]] || continue
		compgen -G "$file$name.pl" || compgen -G "$file${name}_*.pl" || compgen -G "${file}[0-9]*_$name.pl" || true
	done | grep .
}

# Print where the tests of a stage are. Argument: the stage.
where_tests_are() {
	case $1 in
		regress) echo "the tests are notify/test/sql/NAME.sql" ;;
		isolation) echo "the tests are notify/test/specs/NAME.spec" ;;
		tap) echo "the tests are notify/test/t/NUMBER_NAME.pl and decoding/test/t/NUMBER_NAME.pl" ;;
		cargo) echo "cargo test --manifest-path bench/Cargo.toml -- --list prints the tests" ;;
	esac
}

# The chosen tests of pg_regress that run with the engine on or off. Arguments: the stage, "on" or "off".
chosen_for_engine() {
	local name other=off_schedule
	[ "$2" = on ] || other=engine_schedule
	for name in ${CHOSEN[$1]}; do
		grep -qx "test: $name" "$ROOT/notify/test/$other" || echo "$name"
	done
}
