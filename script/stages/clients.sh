# shellcheck shell=bash
# The stage "clients" of script/test. It builds the packages of clients/ as their registries want
# them, installs each into an empty project, and runs the scenarios of clients/conformance.

stage_clients() {
	local language tool built=() python=$WORK/clients/python/venv/bin/python

	export PINPOINT_BUILD=$WORK/clients
	mkdir "$PINPOINT_BUILD"
	for language in python:python3 node:npm go:go java:mvn rust:cargo; do
		tool=${language#*:} language=${language%:*}
		have_tools "clients/$language" "$tool" || continue
		count_command "clients/$language" twice "$ROOT/clients/conformance/build-programs" "$language" || continue
		built+=(--language "$language")
		[ "$language" != python ] || built+=(--language python-threads)
	done
	# The scenarios themselves need psycopg.
	[ -x "$python" ] && have_tools clients/conformance pgbouncer openssl || return 0
	count_last_line clients/conformance/run "$python" "$ROOT/clients/conformance/run" --bindir "$BINDIR" "${built[@]}"
	[ -d "$PINPOINT_BUILD/node" ] && have_tools "examples/live-page, examples/job-queue" chromedriver || return 0
	count_last_line clients/conformance/examples "$python" "$ROOT/clients/conformance/examples" --bindir "$BINDIR"
}
