# shellcheck shell=bash
# PostgreSQL's source, for the tests that are in it. The caller has sourced
# lib.sh and has made its temporary folder.

# Print the folder with the source of the server of PG_CONFIG. PGSRC in the
# environment is such a folder; without it, or if it is "apt", Debian's source
# package is fetched: of the very release if there is one, else of another minor
# release.
postgres_source() {
	if [ "${PGSRC:-apt}" != apt ]; then
		realpath -e "$PGSRC"
		return
	fi
	case $PG_CONFIG in
		/usr/lib/postgresql/*) source_from_apt >&2 && echo "$WORK/source" ;;
		*)
			warn "PGSRC has to name the folder with the source of $PG_CONFIG"
			return 1
			;;
	esac
}

# apt with lists of its own: a machine's sources seldom name source packages.
source_apt() {
	local dir=$WORK/apt
	mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial" "$dir/download"
	"$@" -q -o "Dir::Etc::SourceList=$dir/sources.list" -o Dir::Etc::SourceParts=- \
		-o "Dir::State::Lists=$dir/lists" -o "Dir::Cache=$dir/cache" \
		-o APT::Sandbox::User=root -o Acquire::Retries=3
}

# The Debian that this machine's packages are from.
source_list() {
	# shellcheck disable=SC2016 # apt's placeholders
	apt-get indextargets --format '$(LABEL) deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' \
		'Created-By: Packages' | sed -n 's/^Debian[^ ]* //p' | sort -u
}

source_from_apt() {
	local name own version
	name=postgresql-$("$PG_CONFIG" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/')
	own=$(dpkg-query -W -f '${source:Version}' "$name") || return
	mkdir -p "$WORK/apt"
	[ -n "$(source_list)" ] || apt_update
	source_list >"$WORK/apt/sources.list"
	source_apt apt-get update || return
	cd "$WORK/apt/download" || return
	for version in "$own" $(source_apt apt-cache showsrc "$name" |
		sed -n 's/^Version: //p' | sort -rV -u); do
		rm -f ./*
		source_apt apt-get source --download-only "$name=$version" || continue
		dpkg-source --no-check -x ./*.dsc "$WORK/source" >/dev/null || return
		[ "$version" = "$own" ] ||
			warn "the server is of $own, and its source of $version: apt has no other"
		return 0
	done
	warn "apt has no source of $name"
	return 1
}
