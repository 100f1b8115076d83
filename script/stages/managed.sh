# shellcheck shell=bash
# The stage "managed" of script/test: managed/pinpoint.sql on servers that do not load the library.

stage_managed() {
	[ -e "$TESTTOOLS/perl/PostgreSQL/Test/Cluster.pm" ] || {
		not_run managed "there is no PostgreSQL::Test: the server was built without --enable-tap-tests"
		return
	}
	prepare_tap
	tap_tests managed ""
}
