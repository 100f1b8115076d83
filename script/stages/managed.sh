# shellcheck shell=bash
# The stage "managed" of script/test: managed/pinpoint.sql on servers that do not load the library.

stage_managed() {
	if [ -e "$TESTTOOLS/perl/PostgreSQL/Test/Cluster.pm" ]; then
		prepare_tap
		tap_tests managed ""
	else
		not_run managed "there is no PostgreSQL::Test: the server was built without --enable-tap-tests"
	fi
	if [ -n "${PINPOINT_BUILD-}" ]; then
		run_conformance --managed
	else
		not_run "clients/conformance/run --managed" "the packages were not built: select the stage clients, too"
	fi
}
