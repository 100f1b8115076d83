# shellcheck shell=bash
# The stage "ha" of script/test: notify/test/ha, a cluster of three nodes with Patroni, etcd
# and haproxy. Nodes are disturbed while clients write and listen.

# Build the library of this checkout again, as a possible later version: it reads the current
# format of the messages in the WAL, and writes a newer one.
build_newer_library() {
	local dir=$WORK/ha-newer notify=$WORK/ha-newer/notify
	mkdir "$dir"
	cp -R "$ROOT/VERSION" "$ROOT/notify" "$dir"
	echo 99.0.0 >"$dir/VERSION"
	make -s -C "$notify" clean "PG_CONFIG=$PG_CONFIG" &&
		make -s -C "$notify" with_llvm=no COPT=-DPINPOINT_MESSAGE_VERSION=99 "PG_CONFIG=$PG_CONFIG"
}

stage_ha() {
	local log=$WORK/ha.log dir=$WORK/ha rc=0

	run_quietly "$WORK/ha-newer.log" build_newer_library || {
		print_log "$WORK/ha-newer.log" 30
		count 0 1 1 "a newer library" "$WORK/ha-newer.log" 'error'
		return
	}
	as_server_user mkdir "$dir"
	cp -R "$ROOT/notify/test/ha" "$WORK/ha-program"
	run_logged "$log" as_server_user /usr/bin/python3 -B "$WORK/ha-program/run.py" \
		--pg-config "$PG_CONFIG" --folder "$dir" \
		--newer "$WORK/ha-newer/notify/pg_pinpoint.so" \
		--seed "${PINPOINT_TEST_SEED:-1}" || rc=$?
	count "$(matches '^passed ' "$log")" "$(matches '^failed ' "$log")" "$rc" \
		notify/test/ha "$log" '^failed '
}
