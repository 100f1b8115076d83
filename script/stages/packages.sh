# shellcheck shell=bash
# The stages "package" and "containers" of script/test.

# script/checks/readme builds, installs and tests the package by the commands of README.md: on the release with
# the server, and for 15 on all releases that README.md names. Installations of packages use one CPU, so
# all run at a time.
stage_package() {
	local release releases log rc
	[[ $PG_CONFIG =~ ^/usr/lib/postgresql/([0-9]+)/bin/pg_config$ ]] || {
		not_run package "$PG_CONFIG is of no package"
		return
	}
	releases=("${RELEASES[${BASH_REMATCH[1]}]}")
	[ "${BASH_REMATCH[1]}" != 15 ] || releases+=(trixie noble)
	run bash -c '
		for release in "${@:3}"; do
			{
				"$1/checks/readme" "$release"
				echo "$?" >"$2/readme-$release.rc"
			} >"$2/readme-$release.log" 2>&1 &
		done
		wait' bash "$ROOT/script" "$WORK" "${releases[@]}"
	for release in "${releases[@]}"; do
		log=$WORK/readme-$release.log
		heading "script/checks/readme $release"
		cat "$log"
		rc=$(cat "$WORK/readme-$release.rc")
		if [ "$rc" -eq 77 ]; then
			not_run "script/checks/readme $release" "it could not be installed into a folder"
		else
			count "$((rc == 0))" 0 "$rc" "script/checks/readme $release" "$log" '^script/'
		fi
	done
}

stage_containers() {
	local log=$WORK/containers.log rc=0
	run_logged "$log" "$ROOT/script/stages/containers" || rc=$?
	if [ "$rc" -eq 77 ]; then
		not_run script/stages/containers "$(tail -n 1 "$log")"
		return
	fi
	sed -n 's/^not run: \(.*\): \(.*\)/not run \1 (\2)/p' "$log" >>"$RESULTS"
	count "$(matches '^passed ' "$log")" 0 "$rc" script/stages/containers "$log" '^script/stages/containers: '
}
