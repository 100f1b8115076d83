"""mypy --strict and pyright find nothing in the package and in typed.py. Each is skipped if it is not installed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("command", [["mypy", "--strict", "--cache-dir", os.devnull],
                                     ["pyright", "--pythonpath", sys.executable]], ids=lambda command: command[0])
def test_types(command):
    if not importlib.util.find_spec(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    environment = {**os.environ, "MYPYPATH": str(PACKAGE / "src")}
    result = subprocess.run([sys.executable, "-m", *command, "src", "test/typed.py"], cwd=PACKAGE, env=environment,
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
