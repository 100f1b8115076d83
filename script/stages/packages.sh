# shellcheck shell=bash
# The stages "package" and "containers" of script/test. They work in root file systems.

# Where script/checks/readme runs. Installations of packages use one CPU, so all run at a time.
README_RELEASES=(bookworm trixie noble)

# The commands of README.md include script/package.
stage_package() {
	local release
	if [[ $PG_CONFIG != /usr/lib/postgresql/15/* ]]; then
		run_script "there is no root file system to install it into" script/package
		return
	fi
	for release in "${README_RELEASES[@]}"; do
		make_folder "$release" || true
	done
	echo "+ script/checks/readme, at a time: ${README_RELEASES[*]}"
	supervise check_readme
	for release in "${README_RELEASES[@]}"; do
		heading "script/checks/readme $release"
		cat "$WORK/readme-$release.log"
		count_script "$(cat "$WORK/readme-$release.rc")" "it could not be installed into a folder" \
			"script/checks/readme $release" "$WORK/readme-$release.log"
	done
}

check_readme() {
	local release
	for release in "${README_RELEASES[@]}"; do
		{
			rc=0
			"$ROOT/script/checks/readme" "$release" || rc=$?
			echo "$rc" >"$WORK/readme-$release.rc"
		} >"$WORK/readme-$release.log" 2>&1 &
	done
	wait
}

# It appends its results.
stage_containers() {
	local rc=0
	run env "PINPOINT_RESULTS=$RESULTS" "$ROOT/script/stages/containers" || rc=$?
	case $rc in
		0) ;;
		77) not_run script/stages/containers "there is no release with the server of the images" ;;
		*) grep -q '^failed 1 script/stages/containers' "$RESULTS" || count 0 1 "$rc" script/stages/containers ;;
	esac
}
