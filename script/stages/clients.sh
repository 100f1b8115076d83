# shellcheck shell=bash
# The stage "clients" of script/test. It builds the packages of clients/ as their registries want
# them, installs each into an empty project, and runs the scenarios of clients/conformance.

# The packages that were built, as options of clients/conformance/run.
CLIENTS_BUILT=()

build_clients() {
	local language tool

	export PINPOINT_BUILD=$WORK/clients
	mkdir "$PINPOINT_BUILD"
	for language in python:python3 node:npm go:go java:mvn rust:cargo; do
		tool=${language#*:} language=${language%:*}
		have_tools "clients/$language" "$tool" || continue
		count_command "clients/$language" twice "$ROOT/clients/conformance/build-programs" "$language" || continue
		CLIENTS_BUILT+=(--language "$language")
		[ "$language" != python ] || CLIENTS_BUILT+=(--language python-threads)
	done
}

# The scenarios themselves need psycopg. Arguments: options of the program.
# shellcheck disable=SC2120 # the stage "managed" has one
run_conformance() {
	local python=$PINPOINT_BUILD/python/venv/bin/python
	[ -x "$python" ] && have_tools clients/conformance pgbouncer openssl || return 0
	count_last_line "clients/conformance/run${*:+ $*}" "$python" "$ROOT/clients/conformance/run" --bindir "$BINDIR" "$@" "${CLIENTS_BUILT[@]}"
}

stage_clients() {
	local python

	build_clients
	python=$PINPOINT_BUILD/python/venv/bin/python
	# shellcheck disable=SC2119
	run_conformance
	[ -x "$python" ] && [ -d "$PINPOINT_BUILD/node" ] && have_tools "examples/live-page, examples/job-queue" chromedriver || return 0
	count_last_line clients/conformance/examples "$python" "$ROOT/clients/conformance/examples" --bindir "$BINDIR"
}
