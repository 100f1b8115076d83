"""pg_pinpoint with Patroni: disturb a cluster, and see that no listener misses anything.

    run.py --pg-config FILE --folder FOLDER [--newer FILE] [--seed N] [PART...]

There are three nodes with etcd and haproxy, writers that find the leader as clients do, and
listeners on every node. After each disturbance the cluster has to become healthy, and
then:

- A listener whose server has not stopped is still connected, and has received exactly
  what was committed, in commit order. Exception: when a leader begins, standbys do not know
  whether it replicates until it reports so, and disconnect listeners of heartbeats then.
- The copy of a listener that had to connect again equals the table. It has read only the
  channels again that changed_since() named.
- With synchronous_mode, nothing that was acknowledged, or that a listener was told of, is
  lost. Without it, that is counted.

Parts: "synchronous", "asynchronous", "upgrade" (which needs --newer, a library that writes
messages of a newer form into the WAL). Lines begin with "passed" or "failed".
"""

import argparse
import contextlib
import random
import signal
import sys
import time

import psycopg2

from clients import CHANNELS, FLOOD, QUIET, SCHEMA, Ledger, Listener, Writers, read, write
from cluster import DEADLINE, SCOPE, Cluster, Failed, wait_until

PARTS = ("synchronous", "asynchronous", "upgrade")


def say(text):
    print(text, flush=True)


class Stuck:
    """A session in a database of its own, whose client does not read."""

    def __init__(self, node, database):
        self.connection = psycopg2.connect(host="127.0.0.1", port=node.port, user="postgres",
                                           dbname=database, connect_timeout=10)
        self.connection.autocommit = True
        with self.connection.cursor() as cursor:
            cursor.execute(f"LISTEN {FLOOD}")
        self.pid = self.connection.info.backend_pid


class Test:
    """The cluster with its clients, the disturbances, and the check after each of them."""

    def __init__(self, cluster, seed, newer):
        self.cluster = cluster
        self.newer = newer
        self.random = random.Random(seed)
        self.ledger = Ledger()
        self.listeners = []
        self.writers = None
        self.changes = 0
        self.table = {channel: [] for channel in CHANNELS}
        self.what = "start"
        self.survived = 0  # sessions, over all disturbances

    def seeded(self):
        return random.Random(self.random.random())

    # ---- Clients

    def start_clients(self):
        leader = self.cluster.wait_for_leader()
        leader.query(SCHEMA)
        through_haproxy = {"host": "127.0.0.1", "port": self.cluster.port}
        several_hosts = {
            "host": ",".join("127.0.0.1" for _ in self.cluster.nodes),
            "port": ",".join(str(node.port) for node in self.cluster.nodes),
            "target_session_attrs": "read-write"}
        self.writers = Writers(self.ledger, [through_haproxy] * 3 + [several_hosts] * 2,
                               self.seeded)
        for node in self.cluster.nodes:
            address = {"host": "127.0.0.1", "port": node.port}
            self.listeners += [
                Listener(f"{node.name}.a", self.ledger, address, node),
                Listener(f"{node.name}.b", self.ledger, address, node, floods=True)]
        self.listeners += [Listener("haproxy", self.ledger, through_haproxy),
                           Listener("hosts", self.ledger, several_hosts)]
        for listener in self.listeners:
            listener.start()
        wait_until(lambda: all(listener.is_ready for listener in self.listeners),
                   "listeners are connected")
        self.writers.start()

    def change(self):
        """Change a channel on which nothing else happens."""
        self.changes += 1
        channel, name = self.random.choice(QUIET), f"change.{self.changes:07}"
        end = time.monotonic() + DEADLINE
        while True:
            try:
                connection = psycopg2.connect(host="127.0.0.1", port=self.cluster.port,
                                              user="postgres", dbname="postgres",
                                              connect_timeout=10)
                with contextlib.closing(connection), connection.cursor() as cursor:
                    write(cursor, channel, name)
                    connection.commit()
                    self.ledger.acknowledged.add(name)
                    return
            except psycopg2.Error:
                # It may have been committed, so the next attempt has another name.
                name += "+"
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    # ---- The check after each disturbance

    def read_table(self):
        connection = psycopg2.connect(host="127.0.0.1", port=self.cluster.wait_for_leader().port,
                                      user="postgres", dbname="postgres", connect_timeout=10)
        with contextlib.closing(connection), connection.cursor() as cursor:
            return read(cursor, CHANNELS)

    def all_equal(self):
        """Whether every copy equals the table, which nobody changes."""
        try:
            self.table = self.read_table()
        except psycopg2.Error:
            return False  # the leader has changed
        return all([listener.has(self.table) for listener in self.listeners])

    def check(self):
        self.cluster.wait_until_healthy()
        self.writers.wait_for_commits()
        self.writers.pause()
        try:
            wait_until(self.all_equal, "the copies of all listeners equal the table")
        except Failed:
            for listener in self.listeners:
                say(listener.difference(self.table))
            raise
        self.check_lost()
        self.writers.go_on()

    def check_lost(self):
        ledger = self.ledger
        names = {name for channel in self.table.values() for name in channel}
        if untrue := ledger.told & ledger.rolled_back:
            raise Failed(f"listeners were told of what was rolled back: {sorted(untrue)[:10]}")
        lost, untrue = ledger.acknowledged - names, ledger.told - names
        if self.cluster.synchronous and (lost or untrue):
            raise Failed(f"acknowledged and lost: {len(lost)} {sorted(lost)[:10]}; listeners"
                         f" were told of {len(untrue)} that were lost: {sorted(untrue)[:10]}")
        if lost or untrue:
            say(f"    lost: {len(lost)} acknowledged commits; of what was lost, listeners were"
                f" told of {len(untrue)}")
        ledger.acknowledged -= lost
        ledger.told -= untrue

    def disturb(self, what, disturbance, *arguments):
        """Run a disturbance while writers write, and check."""
        self.what = what
        say(f"---- {what}")
        began = time.monotonic()
        sessions = {listener: listener.session for listener in self.listeners}
        started = {node: node.started() for node in self.cluster.nodes}
        leader = self.cluster.leader()
        read_again = sum(listener.read_again for listener in self.listeners)
        left_out = sum(listener.left_out for listener in self.listeners)
        may_end = disturbance(*arguments) or set()
        self.change()
        self.check()
        stayed = [listener for listener in self.listeners if listener.session == sessions[listener]]
        is_same_leader = (leader is not None and self.cluster.wait_for_leader() is leader
                          and leader.started() == started[leader])
        for node in self.cluster.nodes if is_same_leader else ():
            if node.started() != started[node]:
                continue  # it has been restarted
            for listener in self.listeners:
                if listener.node is node and listener not in may_end and listener not in stayed:
                    raise Failed(f"{listener.name} was disconnected, though its server has not"
                                 f" stopped: {listener.reasons[-3:]}")
        self.survived += len(stayed)
        read_again = sum(listener.read_again for listener in self.listeners) - read_again
        left_out = sum(listener.left_out for listener in self.listeners) - left_out
        say(f"passed {what}: {time.monotonic() - began:.0f} s,"
            f" {len(self.ledger.acknowledged)} rows, leader {self.cluster.wait_for_leader().name};"
            f" stayed connected: {' '.join(listener.name for listener in stayed) or 'nobody'};"
            f" answers named {read_again} of {read_again + left_out} channels")

    # ---- Disturbances

    def wait_for_start(self, node, before):
        """Wait until a server has been started anew."""
        wait_until(lambda: node.started() not in (None, before), f"{node.name} has started again")

    def switch_over(self, candidate=None):
        leader = self.cluster.wait_for_leader()
        candidate = candidate or self.random.choice(self.cluster.replicas())
        self.cluster.patronictl("switchover", SCOPE, "--leader", leader.name,
                                "--candidate", candidate.name, "--force")
        wait_until(lambda: self.cluster.leader() is candidate, f"{candidate.name} is the leader")

    def kill_leader(self):
        """Another node takes over, or the same one again if Patroni finds none in time."""
        leader = self.cluster.wait_for_leader()
        before = leader.started()
        leader.kill_postmaster()
        wait_until(lambda: self.cluster.leader() not in (None, leader) or leader.is_leader()
                   and leader.started() not in (None, before), "there is a leader again")

    def kill_patroni_of_leader(self):
        """Its server goes on, and takes writes, while another one is the leader already: until
        it is killed, as by a watchdog. Patroni 3.0 would else begin with no synchronous
        standbys at all, and the server would acknowledge what waits for them."""
        leader = self.cluster.wait_for_leader()
        leader.patroni.kill()
        self.cluster.wait_for_leader(other_than=leader)
        self.change()
        leader.kill_postmaster()
        leader.start()

    def kill_replica(self):
        replica = self.random.choice(self.cluster.replicas())
        before = replica.started()
        replica.kill_postmaster()
        self.wait_for_start(replica, before)

    def kill_patroni_of_replica(self):
        replica = self.random.choice(self.cluster.replicas())
        replica.patroni.kill()
        self.writers.wait_for_commits()
        replica.start()
        wait_until(lambda: replica.rest("/replica") == 200, f"Patroni of {replica.name} answers")

    def restart(self, node):
        before = node.started()
        self.cluster.patronictl("restart", SCOPE, node.name, "--force")
        self.wait_for_start(node, before)

    def restart_leader(self):
        self.restart(self.cluster.wait_for_leader())

    def reinitialize(self):
        replica = self.random.choice(self.cluster.replicas())
        before = replica.started()
        self.cluster.patronictl("reinit", SCOPE, replica.name, "--force")
        self.wait_for_start(replica, before)

    def cut_leader_off(self):
        leader = self.cluster.wait_for_leader()
        leader.etcd.cut()
        try:
            self.cluster.wait_for_leader(other_than=leader)
        finally:
            leader.etcd.restore()

    def lose_connections(self):
        """The servers go on, so positions stay valid."""
        lost = self.random.sample(self.listeners, len(self.listeners) // 2)
        for listener in lost:
            listener.may_connect.clear()
        wait_until(lambda: not any(listener.is_ready for listener in lost), "they are closed")
        self.change()
        for listener in lost:
            listener.may_connect.set()
        return set(lost)

    def read_nothing(self):
        """Two clients of a replica do not read, one of them in a database that is dropped.
        Replay of the DROP DATABASE waits for both, until they are disconnected."""
        leader = self.cluster.wait_for_leader()
        replica = self.random.choice(self.cluster.replicas())
        listener = next(listener for listener in self.listeners
                        if listener.node is replica and FLOOD in listener.channels)
        listener.may_read.clear()
        try:
            wait_until(lambda: listener.is_paused, "a listener is paused")
            # Its session may respond once more, if the buffers of its connection grow.
            for _ in range(5):
                self.drop_database(leader, replica, listener.pid)
                if replica.value("SELECT count(*) FROM pg_stat_activity"
                                 f" WHERE pid = {listener.pid}") == 0:
                    break
            else:
                raise Failed(f"{listener.name} does not read, and is not disconnected")
        finally:
            listener.may_read.set()
        return {listener}

    def drop_database(self, leader, replica, pid):
        """Drop a database with a session on a replica whose client does not read. Nor does that
        of the session with this process ID."""
        self.changes += 1
        database = f"dropped{self.changes}"
        leader.query(f"CREATE DATABASE {database}")
        leader.query("CREATE EXTENSION pg_pinpoint", database)
        wait_until(lambda: replica.value(
            "SELECT count(*) FROM pg_extension WHERE extname = 'pg_pinpoint'", database) == 1,
            "the extension is replicated")
        stuck = Stuck(replica, database)
        try:
            for stuck_pid, name in ((stuck.pid, database), (pid, "postgres")):
                wait_until(lambda: self.flood(leader, name, replica, stuck_pid),
                           "a client is stuck")
            leader.query(f"DROP DATABASE {database}")
            wait_until(lambda: replica.value(
                f"SELECT count(*) FROM pg_database WHERE datname = '{database}'") == 0,
                "DROP DATABASE is replayed")
            wait_until(lambda: replica.value(
                f"SELECT count(*) FROM pg_stat_activity WHERE pid = {stuck.pid}") == 0,
                "its session has ended")
        finally:
            stuck.connection.close()

    def flood(self, leader, database, replica, pid):
        """Notify 4 MB. Returns whether a session on the replica cannot send."""
        leader.query(f"SELECT pg_notify('{FLOOD}', n || repeat('.', 7500))"
                     " FROM generate_series(1, 500) n", database)
        return replica.value("SELECT wait_event = 'ClientWrite' FROM pg_stat_activity"
                             f" WHERE pid = {pid}")

    # ---- Parts

    def synchronous(self):
        disturbances = [
            ("switchover", self.switch_over),
            ("kill -9 of the leader's postmaster", self.kill_leader),
            ("kill -9 of the leader's Patroni", self.kill_patroni_of_leader),
            ("kill -9 of a replica's postmaster", self.kill_replica),
            ("kill -9 of a replica's Patroni", self.kill_patroni_of_replica),
            ("restart of the leader", self.restart_leader),
            ("reinit of a replica", self.reinitialize),
            ("the leader is cut off from etcd", self.cut_leader_off),
            ("connections are lost", self.lose_connections),
            ("clients that do not read, and DROP DATABASE", self.read_nothing),
        ]
        self.random.shuffle(disturbances)
        for what, disturbance in disturbances:
            self.disturb(f"{what}, synchronous", disturbance)
        self.disturb("connections are lost once more", self.lose_connections)
        # Otherwise the checks have shown nothing.
        if not self.survived or not sum(listener.left_out for listener in self.listeners):
            raise Failed("no session stayed connected, or all answers named all channels")

    def asynchronous(self):
        self.cluster.set_synchronous(False)
        for number in ("first", "second"):
            self.disturb(f"{number} kill -9 of the leader's postmaster, asynchronous",
                         self.kill_leader)
        self.cluster.set_synchronous(True)

    def upgrade_node(self, node):
        node.install_library(self.newer)
        self.restart(node)

    def upgrade(self):
        """Replicas first, then a switchover, then the old leader. Only its listeners are
        disconnected in between: it does not know the form of what the new leader writes."""
        if not self.newer:
            raise Failed("the part \"upgrade\" needs --newer")
        old = self.cluster.wait_for_leader()
        replicas = self.cluster.replicas()
        for node in replicas:
            self.disturb(f"upgrade of the replica {node.name}", self.upgrade_node, node)
        self.disturb("switchover to the newer version", self.upgrade_switch_over, old, replicas[0])
        self.disturb("upgrade of the old leader", self.upgrade_node, old)

    def upgrade_switch_over(self, old, new):
        refused = "The primary has a newer version of pg_pinpoint"
        self.switch_over(new)
        wait_until(lambda: old.log_lines(refused), f"{old.name} disconnects its listeners")
        return {listener for listener in self.listeners if listener.node is old}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pg-config", required=True, metavar="FILE", help="pg_config of the server")
    parser.add_argument("--folder", required=True, help="for the nodes; it is empty")
    parser.add_argument("--newer", metavar="FILE", help="a library that writes newer messages")
    parser.add_argument("--seed", type=int, default=1, metavar="N",
                        help="of the order of the disturbances (default: 1)")
    parser.add_argument("parts", nargs="*", metavar="PART",
                        help=f"{', '.join(PARTS)} (default: all)")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {' '.join(sorted(unknown))}")
    return options


def main():
    options = parse_arguments()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    began = time.monotonic()
    say(f"seed {options.seed}")
    # Both replicas are synchronous: each of them may be ahead of the other, and told its
    # listeners, so each must be one that may become the leader.
    cluster = Cluster(options.folder, options.pg_config, synchronous_mode=True,
                      synchronous_node_count=2)
    test = Test(cluster, options.seed, options.newer)
    try:
        cluster.start()
        test.start_clients()
        test.disturb("start", lambda: None)
        for part in options.parts or PARTS:
            getattr(test, part)()
    except (Failed, psycopg2.Error, OSError) as error:
        cluster.print_logs()
        say(f"failed {test.what}: {error}")
        return 1
    finally:
        cluster.stop()
    say(f"{time.monotonic() - began:.0f} s; {test.survived} sessions survived a disturbance")
    return 0


if __name__ == "__main__":
    sys.exit(main())
