"""The libraries and extensions that other servers load, too."""

from dataclasses import dataclass
from pathlib import Path

EXTENSIONS = Path("/usr/share/postgresql/15/extension")

PINPOINT = "pg_pinpoint"


@dataclass
class Neighbour:
    """A library or several, and what a server with them has."""

    name: str
    libraries: tuple = ()       # in the order in which they are to be preloaded
    extensions: tuple = ()
    settings: tuple = ()
    options: str = ""           # of the session that is observed
    first: tuple = ()           # those of the libraries that must be before pg_pinpoint

    def orders(self):
        """The names of the orders, and shared_preload_libraries."""
        others = [library for library in self.libraries if library not in self.first]
        if others or not self.first:
            yield "pg_pinpoint before", [*self.first, PINPOINT, *others]
        if self.libraries:
            yield "pg_pinpoint after", [*self.libraries, PINPOINT]


def one(library, *settings, extension=None, options=""):
    return Neighbour(library, (library,), (extension or library,), settings, options)


STATEMENTS = "pg_stat_statements"

PRELOADED = [
    one(STATEMENTS, "pg_stat_statements.track = all"),
    Neighbour("auto_explain", ("auto_explain",), options=" ".join(
        f"-c auto_explain.{setting}" for setting in (
            "log_min_duration=0", "log_nested_statements=on", "log_analyze=on", "log_timing=off",
            "log_verbose=on"))),
    one("pgaudit", options="-c pgaudit.log=read,write,ddl,role,misc"),
    one("pg_qualstats", "pg_qualstats.sample_rate = 1"),
    Neighbour("pg_stat_kcache", (STATEMENTS, "pg_stat_kcache"), (STATEMENTS, "pg_stat_kcache")),
    one("pg_wait_sampling"),
    Neighbour("powa", (STATEMENTS, "powa"), ("btree_gist", STATEMENTS, "powa"),
              ("powa.database = 'postgres'", "powa.frequency = '5s'")),
    one("set_user"),
    one("plpgsql_check", "plpgsql_check.mode = 'every_start'"),
    Neighbour("plprofiler", ("plprofiler",), ("plprofiler",),
              ("plprofiler.enabled = on",), first=("plprofiler",)),
    one("plugin_debugger", extension="pldbgapi"),
    one("hypopg"),
    one("pg_cron", "cron.database_name = 'postgres'", "cron.host = '{folder}'"),
    one("pg_partman_bgw", "pg_partman_bgw.dbname = 'postgres'", "pg_partman_bgw.interval = 1",
        "pg_partman_bgw.role = 'postgres'", extension="pg_partman"),
    one("pglogical"),
    Neighbour("pgl_ddl_deploy", ("pglogical", "pgl_ddl_deploy"), ("pglogical", "pgl_ddl_deploy")),
    one("orafce"),
    one("rum"),
]

# Extensions that no server preloads. The output plugins wal2json and decoderbufs are used beside
# each neighbour; they need no extension (and Debian's decoderbufs has no script for it).
CREATED = ("pg_repack", "periods", "table_log", "pgq", "postgis", "plr", "plpython3u",
           "pltcl", "pltclu", "pllua", "plluau", "plsh", "pgcrypto", "dblink", "postgres_fdw")

# orafce, pglogical and plpgsql_check: no two of them can be preloaded on a server without
# pg_pinpoint, which ends at start.
APART = ("orafce", "plpgsql_check")


def together():
    """All that can be together."""
    libraries, extensions, settings, options = [], [], [], []
    chosen = [n for n in PRELOADED if n.name not in APART]
    for neighbour in sorted(chosen, key=lambda n: n.name != "plprofiler"):
        libraries += [name for name in neighbour.libraries if name not in libraries]
        extensions += [name for name in neighbour.extensions if name not in extensions]
        settings += neighbour.settings
        # Plans of the other extensions' own queries on the catalogs depend on what is installed.
        options += [neighbour.options] if neighbour.name != "auto_explain" else []
    return Neighbour("all together", tuple(libraries), (*extensions, *CREATED), tuple(settings),
                     " ".join(options), first=("plprofiler",))


# What the stage has built from sources.
SOURCES = [
    one("timescaledb", "timescaledb.telemetry_level = off"),
    Neighbour("citus", ("citus",), ("citus",), first=("citus",)),
    one("pg_tle"),
]


def is_installed(extension):
    return (EXTENSIONS / f"{extension}.control").exists()


ALL = [*PRELOADED, Neighbour("extensions that are not preloaded", (), CREATED), together(),
       *(n for n in SOURCES if is_installed(n.name))]
