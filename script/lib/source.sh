# shellcheck shell=bash
# The source of the project, as in a release. The caller has sourced common.sh and created the
# temporary directory.

# Copy the files of the project to a new directory: all tracked files, with changes that are
# not committed. An untracked file must be added to git first. Without a repository, all files
# are copied, without what was built. Nothing is written to the checkout, which can belong to another user.
export_source() {
	local git=(git -C "$ROOT" -c "safe.directory=*")
	if [ "$("${git[@]}" rev-parse --show-cdup 2>/dev/null || echo none)" = "" ]; then
		mkdir -p "$1"
		"${git[@]}" ls-files -z --deduplicate |
			tar -C "$ROOT" --null --ignore-failed-read -T - -c | tar -C "$1" -x --no-same-owner
	else
		copy_sources "$1"
	fi
	[ -s "$1/VERSION" ] || die "the source could not be exported from $ROOT"
}
