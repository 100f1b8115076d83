# shellcheck shell=bash
# The source of the project, as in a release. The caller has sourced lib.sh and created the
# temporary directory.

# Copy the files of the project to a new directory: all tracked files, with changes that are
# not committed. An untracked file must be added to git first. Without a repository, all files
# are copied that .gitignore does not name.
export_source() {
	local folder=$1 tree git=(git -C "$ROOT" -c "safe.directory=$ROOT" -c user.name=- -c user.email=-)

	mkdir -p "$folder"
	if [ "$("${git[@]}" rev-parse --show-cdup 2>/dev/null || echo none)" = "" ]; then
		tree=$("${git[@]}" stash create) || die "git cannot tell what has changed in $ROOT"
		"${git[@]}" archive "${tree:-HEAD}" | tar -C "$folder" -x
	else
		git=(git --git-dir="$WORK/source.git" --work-tree="$ROOT")
		git init -q --bare "$WORK/source.git"
		"${git[@]}" -c core.bare=false add --all
		"${git[@]}" archive "$("${git[@]}" write-tree)" | tar -C "$folder" -x
	fi
	[ -s "$folder/VERSION" ] || die "the source could not be exported from $ROOT"
}
