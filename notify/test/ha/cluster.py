"""etcd, Patroni's nodes and haproxy, all on loopback and below one folder.

Every process that is started here is stopped by Cluster.stop(), by its process ID.
"""

import contextlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import psycopg2

DEADLINE = 240  # seconds, for everything that is waited for
SCOPE = "ha"
NAMES = ("node1", "node2", "node3")
HEARTBEAT = 0.5

# Patroni wants ttl >= loop_wait + 2 * retry_timeout, and a ttl of 20 s at least.
DCS = {
    "ttl": 20,
    "loop_wait": 1,
    "retry_timeout": 5,
    "maximum_lag_on_failover": 64 * 1024 * 1024,
    # If the server of the leader crashes, another node takes over at once.
    "primary_start_timeout": 0,
    "postgresql": {
        "use_pg_rewind": True,
        "use_slots": True,
        "parameters": {
            "shared_preload_libraries": "pg_pinpoint, pg_pinpoint_decoding",
            "pinpoint.replicate": "on",
            "pinpoint.queue_size": "128MB",
            "pinpoint.heartbeat_interval": f"{int(HEARTBEAT * 1000)}ms",
            "max_standby_streaming_delay": "4s",
            "wal_log_hints": "on",
            "wal_keep_size": "512MB",
            "max_connections": 100,
            "fsync": "off",  # processes are killed here, and not the machine
        },
    },
}


class Failed(Exception):
    """Something that should be so is not."""


def wait_until(condition, what, deadline=DEADLINE):
    """Wait until a condition is true, and return what it returned."""
    end = time.monotonic() + deadline
    while not (result := condition()):
        if time.monotonic() > end:
            raise Failed(f"not within {deadline} seconds: {what}")
        time.sleep(0.1)
    return result


class Ports:
    """Free ports, each of which is given once. They are below the range from which clients get
    theirs. Otherwise a client that tries again and again to connect to a server that is down could
    connect to itself."""

    def __init__(self):
        self.given = set()

    def free(self):
        while True:
            port = random.SystemRandom().randrange(20000, 32000)
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                if port not in self.given:
                    self.given.add(port)
                    return port


def query(port, text, database="postgres"):
    """Run SQL in a session of its own; return the rows."""
    connection = psycopg2.connect(
        host="127.0.0.1", port=port, user="postgres", dbname=database, connect_timeout=10,
        application_name="test", options="-c statement_timeout=60s")
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(text)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


# ---- Processes --------------------------------------------------------------------


class Process:
    """A program with its log. It works in the folder of the cluster, by which script/test
    finds it if this program is killed."""

    def __init__(self, name, folder, command):
        self.log = os.path.join(folder, f"{name}.log")
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def signal(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait(DEADLINE)


def find_program(name):
    path = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin")
    if not path:
        raise Failed(f"there is no {name}")
    return path


def works_below(pid, folder):
    with contextlib.suppress(OSError):
        where = os.readlink(f"/proc/{pid}/cwd")
        return where == folder or where.startswith(folder + "/")
    return False


def is_alive(pid, folder):
    """Whether a process of the cluster runs, and is not a zombie."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z" and works_below(pid, folder)
    return False


class EtcdProxy:
    """The connection of a node to etcd. When it is cut, nothing comes through, and connections
    stay open."""

    def __init__(self, port, target):
        self.port = port
        self.target = target
        self.is_cut = False
        self.stalled = []
        self.listener = socket.create_server(("127.0.0.1", port), backlog=100)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            if self.is_cut:
                self.stalled.append(client)
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            for source, sink in ((client, server), (server, client)):
                threading.Thread(
                    target=self.forward, args=(source, sink), daemon=True).start()

    def forward(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.is_cut:
                    self.stalled += [source, sink]
                    return
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        self.is_cut = True

    def restore(self):
        self.is_cut = False
        stalled, self.stalled = self.stalled, []
        for end in stalled:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


# ---- A node -----------------------------------------------------------------------


class Node:
    """A member of the cluster: Patroni, and its server.

    The server is a copy of the installation, so that each node can have a version of the
    library of its own. PostgreSQL finds its files from where the program is.
    """

    def __init__(self, name, cluster, pg_config):
        self.name = name
        self.cluster = cluster
        self.folder = os.path.join(cluster.folder, name)
        self.data = os.path.join(self.folder, "data")
        self.port = cluster.ports.free()
        self.rest_port = cluster.ports.free()
        self.etcd = EtcdProxy(cluster.ports.free(), cluster.etcd_port)
        self.patroni = None
        os.mkdir(self.folder)
        self.copy_installation(pg_config)
        self.file = os.path.join(self.folder, "patroni.yml")
        with open(self.file, "w") as file:
            json.dump(self.configuration(), file, indent=1)

    def copy_installation(self, pg_config):
        """Programs are copied, the rest are links. What the node may have in a version of its
        own is copied, too."""
        bindir, libdir, sharedir = (
            subprocess.check_output([pg_config, option], text=True).strip()
            for option in ("--bindir", "--pkglibdir", "--sharedir"))
        prefix = os.path.dirname(bindir)
        self.bindir = os.path.join(self.folder, "pg", "bin")
        self.libdir = os.path.join(self.folder, "pg", os.path.relpath(libdir, prefix))
        shutil.copytree(bindir, self.bindir)
        os.makedirs(self.libdir)
        for name in os.listdir(libdir):
            source = os.path.join(libdir, name)
            if name.startswith("pg_pinpoint") and name.endswith(".so"):
                shutil.copy(source, self.libdir)
            else:
                os.symlink(source, os.path.join(self.libdir, name))
        if sharedir.startswith(prefix + "/"):
            link = os.path.join(self.folder, "pg", os.path.relpath(sharedir, prefix))
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(sharedir, link)

    def install_library(self, file):
        """The server uses it after its next start."""
        target = os.path.join(self.libdir, "pg_pinpoint.so")
        shutil.copy(file, target + ".new")
        os.rename(target + ".new", target)

    def configuration(self):
        return {
            "scope": SCOPE,
            "name": self.name,
            "restapi": {"listen": f"127.0.0.1:{self.rest_port}",
                        "connect_address": f"127.0.0.1:{self.rest_port}"},
            # Without use_proxies Patroni would ask etcd for its address, and go there.
            "etcd3": {"hosts": [f"127.0.0.1:{self.etcd.port}"], "use_proxies": True},
            "bootstrap": {
                "dcs": {**DCS, **self.cluster.dcs},
                "initdb": ["no-sync", {"encoding": "UTF8"}, {"locale": "C"}],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "connect_address": f"127.0.0.1:{self.port}",
                "data_dir": self.data,
                "bin_dir": self.bindir,
                "pgpass": os.path.join(self.folder, "pgpass"),
                "parameters": {"unix_socket_directories": ""},
                "pg_hba": ["host all all 127.0.0.1/32 trust",
                           "host replication all 127.0.0.1/32 trust"],
                "authentication": {"superuser": {"username": "postgres"},
                                   "replication": {"username": "postgres"},
                                   "rewind": {"username": "postgres"}},
                "basebackup": [{"checkpoint": "fast"}, "no-sync"],
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
            },
        }

    def start(self):
        self.patroni = self.cluster.spawn(self.name, [find_program("patroni"), self.file])

    def postmaster(self):
        """The process ID of the server, or None."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(os.path.join(self.data, "postmaster.pid")) as file:
                pid = int(file.readline())
            if is_alive(pid, self.data):
                return pid
        return None

    def kill_postmaster(self):
        pid = self.postmaster()
        if pid is None:
            raise Failed(f"{self.name} has no server to kill")
        os.kill(pid, signal.SIGKILL)

    def query(self, text, database="postgres"):
        return query(self.port, text, database)

    def value(self, text, database="postgres"):
        """The only value of a query; None if the server cannot be asked."""
        try:
            return self.query(text, database)[0][0]
        except psycopg2.Error:
            return None

    def started(self):
        """When the server was started: another value after each start; None if it is down."""
        return self.value("SELECT pg_postmaster_start_time()")

    def rest(self, path, method="GET", body=None):
        """The status of a request to Patroni; None if there is no answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.rest_port}{path}", method=method,
            data=json.dumps(body).encode() if body is not None else None)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code
        except (OSError, http.client.HTTPException):
            return None

    def is_leader(self):
        return self.rest("/primary") == 200

    def log_lines(self, pattern):
        """The lines of the log that match a regular expression."""
        with open(self.patroni.log, errors="replace") as log:
            return [line for line in log if re.search(pattern, line)]


# ---- The cluster ------------------------------------------------------------------


class Cluster:
    """etcd, the nodes and haproxy."""

    def __init__(self, folder, pg_config, **dcs):
        self.folder = os.path.realpath(folder)
        self.dcs = dcs
        self.synchronous = bool(dcs.get("synchronous_mode"))
        self.processes = []
        self.ports = Ports()
        self.etcd_port = self.ports.free()
        self.port = self.ports.free()  # of haproxy: the leader
        self.nodes = [Node(name, self, pg_config) for name in NAMES]

    def spawn(self, name, command):
        process = Process(name, self.folder, command)
        self.processes.append(process)
        return process

    def start(self):
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.etcd_port, self.ports.free()))
        self.spawn("etcd", [
            find_program("etcd"), "--name=etcd", f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=etcd={peer}", "--heartbeat-interval=500",
            "--election-timeout=5000"])
        with open(f"{self.folder}/patronictl.yml", "w") as file:
            json.dump({"scope": SCOPE, "etcd3": {"host": f"127.0.0.1:{self.etcd_port}"}}, file)
        with open(f"{self.folder}/haproxy.cfg", "w") as file:
            file.write(self.haproxy_configuration())
        wait_until(self.etcd_answers, "etcd answers")
        for node in self.nodes:
            node.start()
        self.spawn("haproxy", [find_program("haproxy"), "-db", "-f", f"{self.folder}/haproxy.cfg"])
        self.wait_until_healthy()

    def etcd_answers(self):
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{self.etcd_port}/health",
                                        timeout=5) as response:
                return b"true" in response.read()
        return False

    def haproxy_configuration(self):
        servers = "\n".join(
            f"    server {node.name} 127.0.0.1:{node.port} check port {node.rest_port}"
            for node in self.nodes)
        return f"""\
defaults
    mode tcp
    timeout connect 5s
    timeout check 5s
    timeout client 1h
    timeout server 1h
listen leader
    bind 127.0.0.1:{self.port}
    option httpchk OPTIONS /primary
    http-check expect status 200
    default-server inter 500ms fall 3 rise 1 on-marked-down shutdown-sessions
{servers}
"""

    def leader(self):
        """The node that is the leader; None if there is not exactly one."""
        leaders = [node for node in self.nodes if node.is_leader()]
        return leaders[0] if len(leaders) == 1 else None

    def wait_for_leader(self, other_than=None):
        def leader():
            found = self.leader()
            return found if found is not other_than else None

        what = f"another leader than {other_than.name}" if other_than else "a leader"
        return wait_until(leader, what)

    def replicas(self):
        leader = self.wait_for_leader()
        return [node for node in self.nodes if node is not leader]

    def is_healthy(self):
        """One leader, from which the others stream, if need be synchronously."""
        leader = self.leader()
        if leader is None or leader.value("SELECT pg_is_in_recovery()") is not False:
            return False
        others = [node for node in self.nodes if node is not leader]
        # What Patroni knows, which may be later than what the server knows.
        path = "/sync" if self.synchronous else "/replica"
        if not all(node.rest(path) == 200 for node in others):
            return False
        states = "'sync', 'quorum'" if self.synchronous else "'async'"
        return leader.value(
            "SELECT count(DISTINCT application_name) FROM pg_stat_replication"
            f" WHERE state = 'streaming' AND sync_state IN ({states})") == len(others)

    def wait_until_healthy(self):
        wait_until(self.is_healthy, "the cluster has a leader and two replicas")

    def set_synchronous(self, synchronous):
        """Change synchronous_mode of the cluster."""
        self.synchronous = synchronous
        self.patronictl("edit-config", SCOPE, "--force", "-s",
                        f"synchronous_mode={str(synchronous).lower()}")
        self.wait_until_healthy()

    def patronictl(self, *arguments):
        result = subprocess.run(
            [find_program("patronictl"), "-c", f"{self.folder}/patronictl.yml", *arguments],
            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=2 * DEADLINE,
            env={**os.environ, "LC_ALL": "C.UTF-8", "LANG": "C.UTF-8"})
        if result.returncode != 0:
            raise Failed(f"patronictl {' '.join(arguments)}: {result.stdout[-2000:]}")

    def stop(self):
        """Stop everything, by force: Patroni first, as it would start servers again."""
        for process in self.processes:
            process.kill()
        for node in self.nodes:
            if pid := node.postmaster():
                os.kill(pid, signal.SIGQUIT)
        deadline = time.monotonic() + 15
        while any(node.postmaster() for node in self.nodes) and time.monotonic() < deadline:
            time.sleep(0.1)
        # Sessions of servers that were killed, which are blocked.
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if any(is_alive(pid, node.folder) for node in self.nodes):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    def print_logs(self, lines=40):
        """The last lines of every log."""
        for log in sorted({process.log for process in self.processes}):
            print(f"---- {os.path.basename(log)}")
            with open(log, errors="replace") as file:
                print("".join(file.readlines()[-lines:]), end="", flush=True)
