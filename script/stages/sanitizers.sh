# shellcheck shell=bash
# The option --sanitizers of script/test, and the stage "sanitizers".
#
# With the option, the libraries are compiled with AddressSanitizer and UndefinedBehaviorSanitizer.
# The server is not, but it allocates each chunk of memory separately (script/lib/postgres-source.sh),
# so the sanitizer knows the chunks of memory contexts. A finding ends the process with SIGABRT, and
# so the server with all sessions. It is also listed as a failure.
#
# valgrind finds what these two do not: memory that is read before it is written.

# PostgreSQL compiles with -fwrapv, which makes a signed overflow defined. Nothing here needs it.
SANITIZERS="-g -fno-wrapv -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
SANITIZED=() # for script/stages/server.sh: what runs the tests: nothing, or env with variables of the sanitizers

# Compile with sanitizers from now on.
use_sanitizers() {
	local asan
	# A test loads two copies of a library, with the same variables.
	asan=detect_leaks=0:detect_stack_use_after_return=0:detect_odr_violation=0:quarantine_size_mb=16
	export PROFILE=$SANITIZERS
	as_server_user mkdir "$WORK/findings"
	# shellcheck disable=SC2034 # see above
	SANITIZED=(env "LD_PRELOAD=$(cc -print-file-name=libasan.so)" "PINPOINT_TEST_CFLAGS=$SANITIZERS"
		"ASAN_OPTIONS=$asan:abort_on_error=1:log_path=$WORK/findings/finding"
		UBSAN_OPTIONS=abort_on_error=1:print_stacktrace=1)
}

# Count findings. AddressSanitizer writes each to a file, which is removed. Beside it,
# UndefinedBehaviorSanitizer writes to the log of the server. Arguments: what has run, and the folder
# with its logs.
count_findings() {
	local number log=$WORK/findings.log kinds='ERROR: AddressSanitizer|runtime error: '
	[ "$BUILT" = --sanitizers ] || return 0
	{
		find "$WORK/findings" -type f -exec cat {} + -delete
		grep -rh --include='*.log' -A 12 'runtime error: ' "$2" || :
	} >"$log"
	number=$(matches "$kinds" "$log")
	[ "$number" -gt 0 ] || return 0
	print_log "$log" 100
	count 0 "$number" 0 "$1: findings of sanitizers" "$log" "$kinds"
}

# Without the option, run script/test with it. Then the stage is the tests that no other stage runs.
stage_sanitizers() {
	if [ "$BUILT" = --sanitizers ]; then
		sanitized_decoding
		sanitized_queue
		return
	fi
	count_last_line "script/test --sanitizers" env -u TEMPLATE_PATH "PG_CONFIG=$STOCK_PG_CONFIG" \
		"$ROOT/script/test" --sanitizers regress isolation sanitizers
}

# The redirection, the unit tests of the relation-file map (their module includes it), and the worker.
sanitized_decoding() {
	[ -e "$TESTTOOLS/perl/PostgreSQL/Test/Cluster.pm" ] || {
		not_run "decoding with sanitizers" "there is no PostgreSQL::Test"
		return
	}
	prepare_tap
	tap_tests decoding "test/t/001_activation.pl test/t/003_map.pl test/t/011_standby_snapshot.pl"
}

# The model of the queue. Its makefile compiles it with sanitizers, or without for valgrind, which is
# slower by a factor of 50.
sanitized_queue() {
	local seed
	queue_model make -s message_log_model message_log_plain "PG_CONFIG=$PG_CONFIG" PROFILE= || return 0
	for seed in 1 2 3; do
		queue_model ./message_log_model 5000 "$seed" || :
	done
	queue_model valgrind --quiet --error-exitcode=9 --leak-check=no ./message_log_plain 100 1 || :
}

# Run a command in notify/test/fuzz.
queue_model() {
	prepare_tests
	count_command "$*" as_server_user env -C "$WORK/test/notify/test/fuzz" "$@"
}
