"""A conformance program that is measured."""

import os
import subprocess
import threading
import time

from servers import DEADLINE, Failed


class Program:
    """A program, and the time at which each of its lines has arrived."""

    def __init__(self, command, dsn):
        self.lines = []
        self.arrived = threading.Condition()
        self.process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, env={**os.environ, "PINPOINT_DSN": dsn})
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            now = time.perf_counter()
            with self.arrived:
                self.lines.append((now, line))
                self.arrived.notify()

    def wait_for(self, text):
        """The time at which a line with this text has arrived. Forgets the lines."""
        with self.arrived:
            if not self.arrived.wait_for(lambda: any(text in line for _, line in self.lines), DEADLINE):
                raise Failed(f"nothing with {text} from {self.process.args}")
            time_of_line = next(when for when, line in self.lines if text in line)
            self.lines.clear()
        return time_of_line

    def command(self, *lines):
        """Write commands to its standard input."""
        self.process.stdin.write("".join(f"{line}\n" for line in lines))
        self.process.stdin.flush()

    def end(self):
        self.process.kill()
        self.process.wait()
