# shellcheck shell=bash
# The stage "clients" of script/test. It builds the packages of clients/ as their registries want
# them, installs each into an empty project, runs the tests that each package has of its own, and the
# scenarios of clients/conformance.

# The packages that were built, as options of clients/conformance/package-tests, and what run has besides.
CLIENTS_BUILT=()
MORE_CLIENTS=()

build_clients() {
	local language tool

	export PINPOINT_BUILD=$WORK/clients
	mkdir "$PINPOINT_BUILD"
	for language in python:python3 node:npm go:go java:mvn rust:cargo; do
		tool=${language#*:} language=${language%:*}
		have_tools "clients/$language" "$tool" || continue
		count_command "clients/$language" twice "$ROOT/clients/conformance/build-programs" "$language" || continue
		CLIENTS_BUILT+=(--language "$language")
		[ "$language" != python ] || MORE_CLIENTS=(--language python-threads)
	done
}

# The scenarios themselves need psycopg. Arguments: options of the program.
# shellcheck disable=SC2120 # the stage "managed" has one
run_conformance() {
	local python=$PINPOINT_BUILD/python/venv/bin/python
	[ -x "$python" ] && have_tools clients/conformance pgbouncer openssl || return 0
	count_last_line "clients/conformance/run${*:+ $*}" "$python" "$ROOT/clients/conformance/run" --bindir "$BINDIR" "$@" "${CLIENTS_BUILT[@]}" "${MORE_CLIENTS[@]}"
}

stage_clients() {
	local python

	build_clients
	python=$PINPOINT_BUILD/python/venv/bin/python
	if [ -x "$python" ]; then
		count_last_line clients/conformance/package-tests "$python" "$ROOT/clients/conformance/package-tests" \
			--bindir "$BINDIR" "${CLIENTS_BUILT[@]}"
	fi
	# shellcheck disable=SC2119
	run_conformance
	[ -x "$python" ] && [ -d "$PINPOINT_BUILD/node" ] && have_tools "examples/live-page, examples/python-recipes" chromedriver || return 0
	count_last_line clients/conformance/examples "$python" "$ROOT/clients/conformance/examples" --bindir "$BINDIR"
}
