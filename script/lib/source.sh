# shellcheck shell=bash
# The source of the project, as in a release. The caller has sourced common.sh and created the
# temporary directory.

# Copy the files of the project to a new directory: all tracked files, with changes that are
# not committed. An untracked file must be added to git first. Without a repository, all files
# are copied that .gitignore does not name. Nothing is written to the checkout, which can
# belong to another user.
export_source() {
	local folder=$1 tree index objects git=(git -C "$ROOT" -c "safe.directory=*")

	mkdir -p "$folder" "$WORK/objects"
	if [ "$("${git[@]}" rev-parse --show-cdup 2>/dev/null || echo none)" = "" ]; then
		index=$("${git[@]}" rev-parse --path-format=absolute --git-path index)
		objects=$("${git[@]}" rev-parse --path-format=absolute --git-path objects)
		cp "$index" "$WORK/index" || die "the checkout in $ROOT has no index of git"
		git=(env "GIT_INDEX_FILE=$WORK/index" "GIT_OBJECT_DIRECTORY=$WORK/objects"
			"GIT_ALTERNATE_OBJECT_DIRECTORIES=$objects" "${git[@]}")
		"${git[@]}" add --update
	else
		git=(git --git-dir="$WORK/source.git" --work-tree="$ROOT")
		git init -q --bare "$WORK/source.git"
		"${git[@]}" -c core.bare=false add --all
	fi
	tree=$("${git[@]}" write-tree) || die "git cannot tell what has changed in $ROOT"
	"${git[@]}" archive "$tree" | tar -C "$folder" -x
	[ -s "$folder/VERSION" ] || die "the source could not be exported from $ROOT"
	rm -rf "$WORK/objects" "$WORK/index" "$WORK/source.git"
}
