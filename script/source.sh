# shellcheck shell=bash
# The source of the project as a release has it. The caller has sourced lib.sh, and made
# the temporary folder.

# Write the files of the project into a new folder: those that git knows, as they are now,
# also if the change is not committed. A file that git does not know must be added first.
# In a folder without a repository, all files that .gitignore does not name.
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
