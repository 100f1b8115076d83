# shellcheck shell=bash
# The stage "clients" of script/test. It builds the packages of clients/ as their registries want
# them, installs each into an empty project, and runs the scenarios of clients/conformance.

stage_clients() {
	local log=$WORK/clients.log language tool built=() python=$WORK/clients/python/venv/bin/python

	export PINPOINT_BUILD=$WORK/clients
	mkdir "$PINPOINT_BUILD"
	for language in python:python3 node:npm go:go java:mvn rust:cargo; do
		tool=${language#*:} language=${language%:*}
		have_tools "clients/$language" "$tool" || continue
		if run_twice_quietly "$log" "$ROOT/clients/conformance/build-programs" "$language"; then
			count 1 0 0
			built+=(--language "$language")
			[ "$language" != python ] || built+=(--language python-threads)
		else
			print_log "$log" 40
			count 0 1 1 "clients/$language" "$log" '[Ee]rror'
		fi
	done
	# The scenarios themselves need psycopg.
	[ -x "$python" ] && have_tools clients/conformance pgbouncer openssl || return 0
	run_python_test "$python" clients/conformance/run --bindir "$BINDIR" "${built[@]}"
	[ -d "$PINPOINT_BUILD/node" ] && have_tools "examples/live-page, examples/job-queue" chromedriver || return 0
	run_python_test "$python" clients/conformance/examples --bindir "$BINDIR"
}

# A program whose last line is "N passed, N failed". Arguments: Python, the program, its options.
run_python_test() {
	local rc=0 good bad log=$WORK/${2##*/}.log
	run_logged "$log" "$1" "$ROOT/$2" "${@:3}" || rc=$?
	read -r good bad < <(tail -n 1 "$log" | sed -nE 's/^([0-9]+) passed, ([0-9]+) failed$/\1 \2/p') || good=0 bad=1
	count "$good" "$bad" "$rc" "$2" "$log" '^FAILED'
}
