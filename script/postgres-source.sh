# shellcheck shell=bash
# The source of PostgreSQL. The caller has sourced lib.sh and created the temporary directory.

# Put the source of the server of PG_CONFIG into $WORK/source. The argument is a directory with
# the source, or "apt". With "apt", Debian's source package of the same release is downloaded;
# if there is none, that of another minor release.
get_postgres_source() {
	local name own version
	if [ "$1" != apt ]; then
		cp -R "$(realpath -e "$1")" "$WORK/source"
		return
	fi
	name=postgresql-$("$PG_CONFIG" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/')
	own=$(dpkg-query -W -f '${source:Version}' "$name") || {
		warn "name the folder with the source of $PG_CONFIG"
		return 1
	}

	# apt with lists of its own: a machine's sources seldom name source packages.
	mkdir -p "$WORK"/apt/{lists/partial,cache/archives/partial,download}
	apt_update
	# shellcheck disable=SC2016 # apt's placeholders
	apt-get indextargets --format '$(LABEL) deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' \
		'Created-By: Packages' | sed -nE 's/^(Debian|Ubuntu)[^ ]* //p' | sort -u >"$WORK/apt/sources.list"
	source_apt apt-get update || return
	cd "$WORK/apt/download" || return
	for version in "$own" $(source_apt apt-cache showsrc "$name" |
		sed -n 's/^Version: //p' | sort -rV -u); do
		rm -f ./*
		source_apt apt-get source --download-only "$name=$version" || continue
		[ "$version" = "$own" ] ||
			warn "the server is of $own, and its source of $version: apt has no other"
		dpkg-source --no-check -x ./*.dsc "$WORK/source" >/dev/null
		return
	done
	return 1
}

source_apt() {
	"$@" -q -o "Dir::Etc::SourceList=$WORK/apt/sources.list" -o Dir::Etc::SourceParts=- \
		-o "Dir::State::Lists=$WORK/apt/lists" -o "Dir::Cache=$WORK/apt/cache" \
		-o APT::Sandbox::User=root -o Acquire::Retries=3
}
