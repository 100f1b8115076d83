"""Images and services without a daemon and without a registry.

buildah builds the images, in chroot. The caller supplies stand-ins for the base images. The
services of a compose file run in containers of these images, also with chroot. An unknown
setting of a service is an error, and is never skipped.

All commands run as root, each in separate namespaces, so no process remains. Services share
the network of the caller. Each service has its own loopback address.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

# Mounts, and then the rest of the command line with a clean environment. The arguments
# are the root, lines of FROM:TO, and assignments with a command.
ENTER = """
root=$1 binds=$2
shift 2
mkdir -p "$root/proc" "$root/dev" "$root/etc"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
while IFS=: read -r from to; do
    [ -n "$from" ] || continue
    # A folder with a lock is for one command at a time; the others do without.
    if [ -e "$from/.lock" ]; then
        exec 9<"$from/.lock"
        flock -n 9 || continue
    fi
    mkdir -p "$root$to"
    mount --bind "$from" "$root$to"
done <<<"$binds"
env -i "$@"
# This shell stays the first process of its namespace, as root. A command that changes its
# user does not get the signal of --kill-child, and so the namespace would live on.
exit
"""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Failure(Exception):
    """A step that failed or cannot be done; the text says which and why."""


class Container:
    """The root file system of a container, and what it runs.

    binds: folders of this machine that it sees, as {path: folder}."""

    def __init__(self, root, settings):
        """settings: those of the image, as in the format of OCI."""
        self.root = Path(root)
        self.environment = {"PATH": PATH} | dict(value.split("=", 1) for value in settings.get("Env", ()))
        self.entrypoint = settings.get("Entrypoint", [])
        self.command = settings.get("Cmd", [])
        self.user = settings.get("User", "")
        self.directory = settings.get("WorkingDir") or "/"
        self.binds = {}

    def enter(self, command, user=None, environment=()):
        """The command line that runs a command in the container. Without a user: that of the
        image."""
        user = self.user if user is None else user
        values = {"HOME": "/root"} | self.environment | dict(environment)
        chroot = ["/usr/sbin/chroot"]
        if user:
            chroot.append(f"--userspec={self.ids(user)}")
        if self.directory != "/":
            command = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', self.directory, *command]
        return [
            *"unshare --mount --propagation private --pid --fork --kill-child=KILL bash -euc".split(),
            ENTER, "bash", str(self.root), "\n".join(f"{v}:{k}" for k, v in self.binds.items()),
            *(f"{k}={v}" for k, v in values.items()), *chroot, str(self.root), *command,
        ]  # fmt: skip

    def run(self, command, **options):
        """Run a command in the container; return its output."""
        done = subprocess.run(self.enter(command, **options), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
        if done.returncode != 0:
            end = "\n".join(done.stdout.splitlines()[-40:])
            raise Failure(f"exit code {done.returncode}: {shlex.join(command)}\n{end}")
        return done.stdout

    def ids(self, user):
        """UID:GID of a user of the image."""
        if re.fullmatch(r"\d+:\d+", user):
            return user
        for line in (self.root / "etc/passwd").read_text().splitlines():
            name, _, uid, gid, *_ = line.split(":")
            if user == name:
                return f"{uid}:{gid}"
        raise Failure(f"the image has no user {user}")


# ---- Images of buildah -------------------------------------------------------------


class Buildah:
    """Images in a new storage, and containers that are made from them."""

    def __init__(self, work):
        self.options = ["--root", work / "storage", "--runroot", work / "run"]

    def __call__(self, *arguments):
        """Run buildah; return its output."""
        command = ["buildah", *self.options, *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            end = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
            raise Failure(f"exit code {done.returncode}: {shlex.join(map(str, command))}\n{end}")
        return done.stdout.strip()

    def make(self, name, base, files=(), commands=(), **settings):
        """Make an image from another one, or from "scratch". files: pairs of source and target; an archive
        is unpacked. commands: what runs in it. settings: options of "buildah config"."""
        container = self("from", "--pull-never", base)
        for source, target in files:
            self("add", container, source, target)
        for command in commands:
            self("run", "--isolation=chroot", container, "--", *command)
        options = [f"--{key}={value}" for key, values in settings.items() for value in values]
        self("config", *options, container)
        self("commit", "--rm", container, name)

    def make_program(self, name, program):
        """Make an image with one program of this machine and its libraries, as its entry point."""
        program = Path(shutil.which(program))
        libraries = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        files = [program, *map(Path, re.findall(r"(/\S+) \(0x", libraries))]
        self.make(name, "scratch", [(file, file) for file in files], entrypoint=[json.dumps([str(program)])])

    def build(self, name, dockerfile, context, volumes=(), options=()):
        """Build a Dockerfile, in chroot, without pulling an image."""
        print(f"+ buildah build {name}", flush=True)
        self("build", "--isolation=chroot", "--pull-never", "--layers", f"--file={dockerfile}", f"--tag={name}",
             *(f"--volume={v}" for v in volumes), *options, context)  # fmt: skip

    def container(self, name):
        """A new container of an image."""
        container = self("from", "--pull-never", name)
        return Container(self("mount", container), json.loads(self("inspect", container))["OCIv1"]["config"])


# ---- Compose files -----------------------------------------------------------------


def interpolate(value, variables):
    """Put variables into all strings of a compose file: ${NAME}, ${NAME:?message}, $$."""
    if isinstance(value, dict):
        return {k: interpolate(v, variables) for k, v in value.items()}
    if isinstance(value, list):
        return [interpolate(v, variables) for v in value]
    if not isinstance(value, str):
        return value

    def replace(match):
        if match[0] == "$$":
            return "$"
        if match[1] not in variables:
            raise Failure(f"the compose file needs {match[1]}: {match[0]}")
        return variables[match[1]]

    return re.sub(r"\$\$|\$\{(\w+)(?::\?[^}]*)?\}|\$", replace, value)


class Service:
    """A service of a compose file, with a root and an address of its own."""

    known = set("build image environment user entrypoint command volumes ports depends_on healthcheck restart".split())

    def __init__(self, name, settings, address):
        if unknown := settings.keys() - self.known:
            raise Failure(f"service {name}: {', '.join(unknown)} is not understood here")
        self.name, self.settings, self.address = name, settings, address
        self.container = self.process = self.log = None

    def words(self, key):
        value = self.settings.get(key)
        return shlex.split(value) if isinstance(value, str) else value

    def prepare(self, container, folder, hosts, volumes):
        """Fill the root. hosts: the addresses of all services. volumes: names of volumes."""
        self.container = container
        self.container.environment |= {k: str(v) for k, v in self.settings.get("environment", {}).items()}
        # A container has an address, and here it has to be told so.
        self.container.environment["STAND_IN_ADDRESS"] = self.address
        self.container.user = self.settings.get("user", self.container.user)
        (container.root / "etc").mkdir(exist_ok=True)
        (container.root / "etc/hosts").write_text(
            "".join(f"{a} {n}\n" for n, a in hosts.items()) + f"{self.address} localhost\n"
        )
        for volume in self.settings.get("volumes", ()):
            source, target, *_ = volume.split(":")
            inside = container.root / target.strip("/")
            if source.startswith("."):
                inside.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(folder / source, inside)
            elif source in volumes:
                inside.mkdir(parents=True, exist_ok=True)
            else:
                raise Failure(f"service {self.name}: no volume {source}")

    def start(self, log):
        entrypoint, command = self.words("entrypoint"), self.words("command")
        if command is None:
            command = self.container.command if entrypoint is None else []
        if entrypoint is None:
            entrypoint = self.container.entrypoint
        self.log = log
        with open(log, "w") as out:
            self.process = subprocess.Popen(self.container.enter([*entrypoint, *command]), stdin=subprocess.DEVNULL,
                                            stdout=out, stderr=subprocess.STDOUT)  # fmt: skip

    def healthy(self):
        check = self.settings["healthcheck"]["test"]
        if check[0] != "CMD":
            raise Failure(f"service {self.name}: this healthcheck is not understood here")
        done = subprocess.run(self.container.enter(check[1:]), stdin=subprocess.DEVNULL, capture_output=True)
        return done.returncode == 0

    def stop(self):
        """Kill the service, and wait until nothing runs in its root any more."""
        if self.process:
            self.process.kill()
            self.process.wait()
            deadline = time.monotonic() + 60
            while left := processes_in(self.container.root):
                if time.monotonic() > deadline:
                    raise Failure(f"{self.name} has left processes behind: {left}")
                time.sleep(0.1)

    def end_of_log(self):
        return f"-- log of {self.name}\n" + "\n".join(self.log.read_text().splitlines()[-30:]) if self.log else ""


def processes_in(root):
    """The process IDs of what runs in a root."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "root").samefile(root):
                found.append(int(entry.name))
        except OSError:
            pass  # it has ended meanwhile
    return found


def stop_all(services):
    """Stop services. All are killed before one is waited for, so none is left if that fails."""
    for service in services:
        if service.process:
            service.process.kill()
    for service in services:
        service.stop()


def wait_until(what, condition, services, seconds=300):
    """Wait for a condition while services run."""
    deadline = time.monotonic() + seconds
    while not condition():
        ended = [s.name for s in services if s.process and s.process.poll() is not None]
        if ended or time.monotonic() > deadline:
            reason = f"{', '.join(ended)} ended" if ended else f"not within {seconds} s"
            raise Failure("\n".join([f"{what}: {reason}", *(s.end_of_log() for s in services)]))
        time.sleep(0.2)


def up(path, project, buildah, image_of, work):
    """Start the services of a compose file, and return them by name.

    project: what the file has. image_of: returns the name of an image, for the folder of the file
    and a service. The caller stops them."""
    work.mkdir()
    services = {n: Service(n, s, f"127.0.0.{i}") for i, (n, s) in enumerate(project["services"].items(), 2)}
    hosts = {s.name: s.address for s in services.values()}
    volumes = project.get("volumes", {})
    for name, service in services.items():
        service.prepare(buildah.container(image_of(path.parent, service.settings)), path.parent, hosts, volumes)

    waiting = list(services.values())
    try:
        while waiting:
            for service in waiting:
                depends = service.settings.get("depends_on", {})
                if not any(s.name in depends for s in waiting):
                    break
            else:
                raise Failure("services depend on each other")
            for name, how in depends.items():
                if how["condition"] == "service_healthy":
                    wait_until(f"{name} becomes healthy", services[name].healthy, services.values())
            service.start(work / f"{service.name}.log")
            waiting.remove(service)
        for service in services.values():
            if "healthcheck" in service.settings:
                wait_until(f"{service.name} becomes healthy", service.healthy, services.values())
    except BaseException:
        stop_all(services.values())
        raise
    return services
