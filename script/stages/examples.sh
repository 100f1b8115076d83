# shellcheck shell=bash
# The stage "examples" of script/test. It runs the client of examples/python-asyncpg on a stock
# server and on a server with pg_pinpoint. The client passes if its results are correct and
# identical on both servers, and if it misses nothing while connections are lost, the server
# restarts and a standby is promoted. Then the stage runs the job queue of
# bench/queues for three seconds, and checks that jobs are done and that the notifications use
# pg_pinpoint. It also runs bench/scaling and bench/costs, and the bridge to NATS with its page.

# Is each of these tools there? If not, say that something is not run. Arguments: what, tools.
have_tools() {
	local tool
	for tool in "${@:2}"; do
		command -v "$tool" >/dev/null || {
			not_run "$1" "there is no $tool"
			return 1
		}
	done
}

# Build something in a folder. Arguments: its name, the folder, a command of the shell.
build_in() {
	local log=$WORK/build-${1//\//-}.log
	run_twice_quietly "$log" env -C "$2" bash -c "$3" || {
		print_log "$log" 30
		count 0 1 1 "$1" "$log" '^(npm )?error'
		return 1
	}
}

stage_examples() {
	have_tools "examples, bench/queues" python3 || return 0
	cp -R "$ROOT/examples" "$WORK/examples"
	test_client
	smoke_queue
	smoke_scaling
	smoke_costs
	test_nats
}

# The client over asyncpg, which comes from the registry, in the version of requirements.txt.
# EXAMPLE is its command.
test_client() {
	local dir=$WORK/examples/python-asyncpg target

	python3 -c 'import ensurepip, venv' 2>/dev/null || {
		not_run examples/python-asyncpg "python3 has no venv"
		return
	}
	build_in examples/python-asyncpg "$dir" 'python3 -m venv venv &&
		venv/bin/pip install -q --disable-pip-version-check --no-deps -r requirements.txt' || return 0
	EXAMPLE=("$dir/venv/bin/python" "$dir/example.py")
	for target in stock pinpoint; do
		start_example_server "$target"
		run_example "$target"
		supervise as_server_user "$BINDIR/pg_ctl" -D "$WORK/examples-$target" -s -w -m fast stop
	done
	compare_example
	for target in stock pinpoint; do
		check_missed "$target"
	done
}

# The server listens on TCP, on loopback. A free port may be taken a moment later, so try several.
start_example_server() {
	local target=$1 data=$WORK/examples-$1 log=$WORK/examples-$1.log try
	supervise quietly "$log" as_server_user "$BINDIR/initdb" -D "$data" -U postgres \
		-A trust -N --locale=C --encoding=UTF8 || {
		print_log "$log"
		die "initdb failed"
	}
	cat >>"$data/postgresql.conf" <<-EOC
		listen_addresses = '127.0.0.1'
		unix_socket_directories = ''
		fsync = off
	EOC
	# Without heartbeats, so that it does not depend on the moment what a cache reads again.
	[ "$target" = stock ] || cat >>"$data/postgresql.conf" <<-EOC
		shared_preload_libraries = 'pg_pinpoint, pg_pinpoint_decoding'
		pinpoint.heartbeat_interval = 0
	EOC
	for try in 1 2 3 4 5; do
		EXAMPLE_PORT=$((20000 + RANDOM % 12000))
		if supervise quietly "$log" as_server_user "$BINDIR/pg_ctl" -D "$data" \
			-l "$data.server.log" -o "-p $EXAMPLE_PORT" -s -w start; then
			break
		elif [ "$try" = 5 ]; then
			print_log "$data.server.log" 30
			die "the server for the examples does not start"
		fi
	done
}

# How many transactions pg_pinpoint has carried.
PUBLISHED='SELECT coalesce(sum(transactions), 0) FROM pinpoint.stat_notify'

run_example() {
	local target=$1 log=$WORK/example.$1 rc=0 psql before
	psql=("$BINDIR/psql" -XAtq -h 127.0.0.1 -p "$EXAMPLE_PORT" -U postgres -v ON_ERROR_STOP=1)
	if [ "$target" = pinpoint ]; then
		before=$("${psql[@]}" -d postgres -c 'CREATE EXTENSION pg_pinpoint' \
			-c "$PUBLISHED")
	fi
	supervise quietly "$log" python3 "$WORK/examples/check.py" 127.0.0.1 "$EXAMPLE_PORT" \
		"${EXAMPLE[@]}" || rc=$?
	echo "exit code $rc" >>"$log"

	# Check that pg_pinpoint delivered the notifications.
	[ "$target" = stock ] ||
		[ "$("${psql[@]}" -d postgres -c "$PUBLISHED")" -gt "$before" ] ||
		echo "not through pg_pinpoint" >>"$log"
}

compare_example() {
	local stock=$WORK/example.stock pinpoint=$WORK/example.pinpoint
	if cmp -s "$stock" "$pinpoint" && [ "$(tail -n 1 "$stock")" = "exit code 0" ]; then
		count 1 0 0
		echo "python-asyncpg: the same on both servers"
	else
		count 0 1 1 examples/python-asyncpg "$pinpoint" '^error'
		print_log "$stock"
		print_log "$pinpoint"
	fi
}

# Connections are lost, the server restarts and a standby is promoted: the example misses no
# change. Argument: the server.
check_missed() {
	local target=$1 dir=$WORK/missed-$1 log=$WORK/missed-$1.log rc=0
	mkdir "$dir"
	[ "$(id -u)" -ne 0 ] || chown postgres: "$dir"
	run_logged "$log" python3 "$WORK/examples/check_missed.py" "$BINDIR" "$dir" "$target" \
		"python-asyncpg=${EXAMPLE[*]@Q}" || rc=$?
	count "$(matches '^passed ' "$log")" "$(matches '^failed ' "$log")" "$rc" \
		"examples/check_missed.py, $target" "$log" '^failed '
}

smoke_queue() {
	local log=$WORK/queue.log

	mkdir "$WORK/bench"
	cp "$ROOT/VERSION" "$WORK"
	cp -R "$ROOT/bench/measurement.py" "$ROOT/bench/server.py" "$ROOT/bench/queues" "$WORK/bench"
	have_tools bench/queues go || return 0
	if run_quietly "$log" python3 "$WORK/bench/queues/run" --pg-config "$PG_CONFIG" \
		--queue river --workers 1 --runs 1 --seconds 3; then
		count 1 0 0
		echo "River: jobs are done on both servers"
	else
		count 0 1 1 bench/queues "$log" '^failed'
		print_log "$log"
	fi
}

# The measurement of bench/scaling, and the tables that docs/scaling.md has from its record.
smoke_scaling() {
	local log=$WORK/scaling.log records=("$ROOT"/docs/results/*/scaling.json)

	have_tools bench/scaling python3 || return 0
	if run_quietly "$log" "$ROOT/bench/scaling/run" --standbys 1 --runs 1 --seconds 1 \
		--json "$WORK/scaling.json" &&
		run_quietly "$log" "$ROOT/bench/scaling/run" --model "$WORK/scaling.json" &&
		run_quietly "$log" "$ROOT/bench/scaling/order_lock.py" --listeners 1 --runs 1 --seconds 1 \
			--json "$WORK/order-lock.json"; then
		count 1 0 0
		echo "bench/scaling: measured, and calculated"
	else
		count 0 1 1 bench/scaling "$log" '^failed'
		print_log "$log"
	fi
	cp "$ROOT/docs/scaling.md" "$WORK/scaling.md"
	if run_quietly "$log" "$ROOT/bench/scaling/run" --model "${records[-1]}" \
		--page "$WORK/scaling.md" && diff "$ROOT/docs/scaling.md" "$WORK/scaling.md" >>"$log"; then
		count 1 0 0
	else
		count 0 1 1 "the tables of docs/scaling.md: run script/figures" "$log" '^[<>]|^failed'
		print_log "$log"
	fi
}

# The measurement of bench/costs, with small backlogs.
smoke_costs() {
	local log=$WORK/costs.log

	if [ ! -e "$TESTTOOLS/perl/PostgreSQL/Test/Cluster.pm" ]; then
		not_run bench/costs "the server was built without --enable-tap-tests"
	elif run_quietly "$log" "$ROOT/bench/costs/run" --runs 1 --capacity small --json "$WORK/costs.json"; then
		count 1 0 0
		echo "bench/costs: measured"
	else
		count 0 1 1 bench/costs "$log" '^failed'
		print_log "$log"
	fi
}

# The bridge of examples/nats, and the page of examples/browser. Their tests start servers
# of their own, for they are killed.
test_nats() {
	local log=$WORK/nats.log browser='' rc=0

	have_tools "examples/nats, examples/browser" go nats-server || return 0
	if have_tools examples/browser npm chromedriver; then
		! build_in examples/browser "$WORK/examples/browser" 'npm ci --silent --no-audit --no-fund' || browser=1
	fi
	run_logged "$log" env -C "$WORK/examples/nats" "BRIDGE_TEST_BROWSER=$browser" \
		go test -mod=readonly -count=1 -timeout 1200s -v . || rc=$?
	count "$(matches '^--- PASS' "$log")" "$(matches '^--- FAIL' "$log")" "$rc" \
		examples/nats "$log" '^--- FAIL|_test\.go:'
}
