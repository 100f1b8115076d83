# shellcheck shell=bash
# The stage "ha" of script/test: notify/test/ha, a cluster of three nodes with Patroni, etcd
# and haproxy. Nodes are disturbed while clients write and listen.

# Build the library of this checkout again, as a possible later version: it reads the current
# format of the messages in the WAL, and writes a newer one.
build_newer_library() {
	copy_sources "$WORK/ha-newer" && echo 99.0.0 >"$WORK/ha-newer/VERSION" &&
		make -s -C "$WORK/ha-newer/notify" with_llvm=no COPT=-DPINPOINT_MESSAGE_VERSION=99 "PG_CONFIG=$PG_CONFIG"
}

stage_ha() {
	local dir=$WORK/ha

	count_command "a newer library" build_newer_library || return 0
	as_server_user mkdir "$dir"
	cp -R "$ROOT/notify/test/ha" "$WORK/ha-program"
	count_lines notify/test/ha as_server_user /usr/bin/python3 -B "$WORK/ha-program/run.py" \
		--pg-config "$PG_CONFIG" --folder "$dir" \
		--newer "$WORK/ha-newer/notify/pg_pinpoint.so" \
		--seed "${PINPOINT_TEST_SEED:-1}"
}
