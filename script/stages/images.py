"""Images for containers, without a container engine and without a registry.

An image is a root file system in a directory, with the settings of its containers. The
steps of a Dockerfile and the services of a compose file run in it with chroot. The caller
supplies stand-ins for the base images. An unknown instruction is an error, and is never
skipped.

All commands run as root, each in separate namespaces, so no process or mount remains.
Services share the network of the caller. Each service has its own loopback address.
"""

import copy
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


class Image:
    """A root file system, and what a container made from it runs.

    binds: folders of this machine that its containers see, as {path: folder}."""

    def __init__(self, root, environment=None, entrypoint=(), command=(), binds=None):
        self.root = Path(root)
        self.environment = {"PATH": PATH} | (environment or {})
        self.entrypoint = list(entrypoint)
        self.command = list(command)
        self.binds = binds or {}
        self.user = ""
        self.directory = "/"

    def copy(self, root):
        subprocess.run(["cp", "-a", "--reflink=auto", self.root, root], check=True)
        other = copy.deepcopy(self)
        other.root = Path(root)
        return other

    def enter(self, command, user=None, environment=()):
        """The command line that runs a command in the image. Without a user: that of the
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
        """Run a command in the image; return its output."""
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


def program_image(root, program):
    """An image with one program of this machine and its libraries, as its entry point."""
    program = Path(shutil.which(program))
    libraries = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    for file in [program, *map(Path, re.findall(r"(/\S+) \(0x", libraries))]:
        target = Path(root) / file.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    return Image(root, entrypoint=[str(program)])


# ---- Dockerfiles -------------------------------------------------------------------


def instructions(path):
    """The instructions of a Dockerfile, each as (keyword, text)."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        keyword, _, text = line.strip().partition(" ")
        yield keyword.upper(), text.strip()


def expand(text, variables):
    """Put in the values of variables. One without a value is an error."""

    def value(match):
        name = match[1] or match[2]
        if name not in variables:
            raise Failure(f"no value for ${name} in: {text}")
        return variables[name]

    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", value, text)


def remove_ignored(context, ignore):
    """Take out of a context what its .dockerignore names: a path, or **/ and a name."""
    for pattern in ignore.read_text().split("\n") if ignore.exists() else ():
        pattern = pattern.strip()
        if not pattern or pattern.startswith("#"):
            continue
        if pattern.startswith("!"):
            raise Failure(f"{ignore}: {pattern} is not understood here")
        find = context.rglob(pattern[3:]) if pattern.startswith("**/") else context.glob(pattern)
        for path in list(find):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


class Dockerfile:
    """Builds stages of a Dockerfile.

    bases: the stand-ins for base images, by name without tag. work: a new folder for the
    stages."""

    def __init__(self, path, context, bases, work):
        self.work = Path(work)
        self.work.mkdir()
        self.context = self.work / "context"
        subprocess.run(["cp", "-a", context, self.context], check=True)
        remove_ignored(self.context, path.with_name(path.name + ".dockerignore"))
        self.bases, self.built, self.stages, self.arguments = bases, {}, {}, {}
        for keyword, text in instructions(path):
            if keyword == "FROM":
                words = expand(text, self.arguments).split()
                name = words[2] if len(words) == 3 and words[1].upper() == "AS" else str(len(self.stages))
                self.stages[name] = steps = [(keyword, words[0])]
            elif self.stages:
                steps.append((keyword, text))
            elif keyword == "ARG":
                name, _, value = text.partition("=")
                self.arguments[name] = value
            else:
                raise Failure(f"{path}: {keyword} before FROM")
        self.last = list(self.stages)[-1]

    def build(self, target=None):
        """The image of a stage, the last one if none is named."""
        target = target or self.last
        if target not in self.stages:
            raise Failure(f"no stage {target}, only {', '.join(self.stages)}")
        if target not in self.built:
            image, arguments = None, {}
            for keyword, text in self.stages[target]:
                print(f"+{target}: {keyword} {text}", flush=True)
                if keyword == "FROM":
                    image = self.from_(text, self.work / target)
                elif keyword == "ARG":
                    if text not in self.arguments:
                        raise Failure(f"ARG {text} has no value before the first FROM")
                    arguments[text] = self.arguments[text]
                elif hasattr(self, keyword.lower()):
                    getattr(self, keyword.lower())(image, text, arguments | image.environment)
                else:
                    raise Failure(f"{keyword} is not understood here")
            self.built[target] = image
        return self.built[target]

    def from_(self, base, root):
        if base == "scratch":
            root.mkdir()
            return Image(root)
        name = base.partition(":")[0]
        if name not in self.bases:
            raise Failure(f"there is no stand-in for the image {base}")
        return self.bases[name].copy(root)

    def run(self, image, text, variables):
        if text.startswith(("--", "[")):
            raise Failure(f"RUN {text} is not understood here")
        image.run(["/bin/sh", "-c", text], environment=variables)

    def copy(self, image, text, variables):
        *sources, target = expand(text, variables).split()
        origin = self.context
        if sources[0].startswith("--from="):
            origin = self.build(sources.pop(0).removeprefix("--from=")).root
        files = []
        for pattern in sources:
            found = sorted(origin.glob(pattern.strip("/"))) if pattern.strip("./") else [origin]
            if not found:
                raise Failure(f"COPY {text}: there is no {pattern}")
            files += found
        if len(files) > 1 and not target.endswith("/"):
            raise Failure(f"COPY {text}: several files, and the target does not end in /")
        into = image.root / os.path.join(image.directory, target).strip("/")
        for file in files:
            whole = file.is_dir()
            as_folder = whole or target.endswith("/")
            (into if as_folder else into.parent).mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-dR", "--preserve=mode,timestamps", f"{file}/." if whole else file, into], check=True)

    def workdir(self, image, text, variables):
        image.directory = os.path.join(image.directory, expand(text, variables))
        (image.root / image.directory.strip("/")).mkdir(parents=True, exist_ok=True)

    def env(self, image, text, variables):
        name, _, value = text.partition("=")
        image.environment[name] = expand(value, variables)

    def user(self, image, text, variables):
        image.user = expand(text, variables)

    def cmd(self, image, text, variables):
        image.command = json.loads(text)

    def entrypoint(self, image, text, variables):
        image.entrypoint, image.command = json.loads(text), []


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
        self.image = self.process = self.log = None

    def words(self, key):
        value = self.settings.get(key)
        return shlex.split(value) if isinstance(value, str) else value

    def prepare(self, image, folder, hosts, volumes):
        """Make the root. hosts: the addresses of all services. volumes: names of volumes."""
        self.image = image
        self.image.environment |= {k: str(v) for k, v in self.settings.get("environment", {}).items()}
        # A container has an address, and here it has to be told so.
        self.image.environment["STAND_IN_ADDRESS"] = self.address
        self.image.user = self.settings.get("user", self.image.user)
        (image.root / "etc").mkdir(exist_ok=True)
        (image.root / "etc/hosts").write_text(
            "".join(f"{a} {n}\n" for n, a in hosts.items()) + f"{self.address} localhost\n"
        )
        for volume in self.settings.get("volumes", ()):
            source, target, *_ = volume.split(":")
            inside = image.root / target.strip("/")
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
            command = self.image.command if entrypoint is None else []
        if entrypoint is None:
            entrypoint = self.image.entrypoint
        self.log = log
        with open(log, "w") as out:
            self.process = subprocess.Popen(self.image.enter([*entrypoint, *command]), stdin=subprocess.DEVNULL,
                                            stdout=out, stderr=subprocess.STDOUT)  # fmt: skip

    def healthy(self):
        check = self.settings["healthcheck"]["test"]
        if check[0] != "CMD":
            raise Failure(f"service {self.name}: this healthcheck is not understood here")
        done = subprocess.run(self.image.enter(check[1:]), stdin=subprocess.DEVNULL, capture_output=True)
        return done.returncode == 0

    def stop(self):
        """Kill the service, and wait until nothing runs in its root any more."""
        if self.process:
            self.process.kill()
            self.process.wait()
            deadline = time.monotonic() + 60
            while left := processes_in(self.image.root):
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


def up(path, project, build, bases, work, without=()):
    """Start the services of a compose file, and return them by name.

    project: what the file has. build: makes the image of a "build" section, from the folder
    of the file and the section. without: services that are left out. The caller stops them."""
    work.mkdir()
    settings = {n: s for n, s in project["services"].items() if n not in without}
    services = {n: Service(n, s, f"127.0.0.{i}") for i, (n, s) in enumerate(settings.items(), 2)}
    hosts = {s.name: s.address for s in services.values()}
    volumes = project.get("volumes", {})
    for name, service in services.items():
        if "build" in service.settings:
            image = build(path.parent, service.settings["build"])
        else:
            image = bases[service.settings["image"].partition(":")[0]]
        service.prepare(image.copy(work / name), path.parent, hosts, volumes)

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
