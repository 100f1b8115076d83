# shellcheck shell=bash
# The stage "examples" of script/test. It runs the client of examples/python-asyncpg on a stock
# server and on a server with pg_pinpoint. The client passes if its results are correct on both, and
# if it misses nothing while connections are lost, the server restarts and a standby is promoted. Then
# the stage runs the job queue of bench/queues for three seconds, and checks that jobs are done and
# that the notifications use pg_pinpoint. It also runs bench/scaling and bench/costs, and the bridge to NATS with its page.

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

stage_examples() {
	have_tools "examples, bench/queues" python3 || return 0
	cp -R "$ROOT/examples" "$WORK/examples"
	test_client
	smoke_queue
	smoke_scaling
	smoke_costs
	test_nats
}

# The client over asyncpg, which comes from the registry, in the version of requirements.txt, on the stock
# server and with pg_pinpoint. Connections are lost, the server restarts and a standby is promoted.
test_client() {
	local target dir=$WORK/examples/python-asyncpg

	python3 -c 'import ensurepip, venv' 2>/dev/null || {
		not_run examples/python-asyncpg "python3 has no venv"
		return
	}
	count_command "the packages of examples/python-asyncpg" twice env -C "$dir" bash -c 'python3 -m venv venv &&
		venv/bin/pip install -q --disable-pip-version-check --no-deps -r requirements.txt' || return 0
	for target in stock pinpoint; do
		as_server_user mkdir "$WORK/missed-$target"
		count_lines "examples/check_missed.py, $target" python3 "$WORK/examples/check_missed.py" "$BINDIR" \
			"$WORK/missed-$target" "$target" "python-asyncpg=$dir/venv/bin/python $dir/example.py"
	done
}

smoke_queue() {
	mkdir "$WORK/bench"
	cp "$ROOT/VERSION" "$WORK"
	cp -R "$ROOT/bench/measurement.py" "$ROOT/bench/server.py" "$ROOT/bench/queues" "$WORK/bench"
	have_tools bench/queues go || return 0
	count_command bench/queues python3 "$WORK/bench/queues/run" --pg-config "$PG_CONFIG" \
		--queue river --workers 1 --runs 1 --seconds 3 || :
}

# The measurement of bench/scaling, and the tables that docs/scaling.md has from its record.
smoke_scaling() {
	local records=("$ROOT"/docs/results/*/scaling.json) record=$WORK/scaling.json page=$WORK/scaling.md

	if count_command bench/scaling "$ROOT/bench/scaling/run" --standbys 1 --runs 1 --seconds 1 --json "$record"; then
		count_command "bench/scaling, the model" "$ROOT/bench/scaling/run" --model "$record" || :
	fi
	count_command bench/scaling/order_lock.py "$ROOT/bench/scaling/order_lock.py" --listeners 1 --runs 1 --seconds 3 \
		--json "$WORK/order-lock.json" || :
	cp "$ROOT/docs/scaling.md" "$page"
	if count_command "the tables of docs/scaling.md" "$ROOT/bench/scaling/run" --model "${records[-1]}" --page "$page"; then
		count_command "the tables of docs/scaling.md: run script/figures" diff "$ROOT/docs/scaling.md" "$page" || :
	fi
}

# The measurement of bench/costs, with small backlogs.
smoke_costs() {
	[ -e "$TESTTOOLS/perl/PostgreSQL/Test/Cluster.pm" ] || {
		not_run bench/costs "the server was built without --enable-tap-tests"
		return
	}
	count_command bench/costs "$ROOT/bench/costs/run" --runs 1 --capacity small --json "$WORK/costs.json" || :
}

# The bridge of examples/nats, and the page of examples/browser. Their tests start servers
# of their own, for they are killed.
test_nats() {
	local log=$WORK/nats.log browser='' rc=0

	have_tools "examples/nats, examples/browser" go nats-server || return 0
	if have_tools examples/browser npm chromedriver && count_command "the packages of examples/browser" \
		twice npm --prefix "$WORK/examples/browser" ci --silent --no-audit --no-fund; then
		browser=1
	fi
	run_logged "$log" env -C "$WORK/examples/nats" "BRIDGE_TEST_BROWSER=$browser" \
		go test -mod=readonly -count=1 -timeout 1200s -v . || rc=$?
	count "$(matches '^--- PASS' "$log")" "$(matches '^--- FAIL' "$log")" "$rc" \
		examples/nats "$log" '^--- FAIL|_test\.go:'
}
