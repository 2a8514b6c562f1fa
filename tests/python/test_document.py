"""The Python blocks of docs/python.md, and the tests of docs/testing.md, run as they stand."""
import importlib.metadata
import os
import re
import subprocess
import sys

from conftest import SOURCE


def test_blocks(monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```", (SOURCE / "docs/python.md").read_text(), re.M | re.S)
    assert len(blocks) >= 6
    names = {"__name__": "document"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"block {number} of docs/python.md", "exec"), names)
    for value in names.values():
        if type(value).__name__ == "Model":
            value.close()


def test_tests(tmp_path):
    """The half of docs/testing.md for Python: its file, and the commands that run it; those before install."""
    text = (SOURCE / "docs/testing.md").read_text().partition("\n## From Python\n")[2]
    install, run = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    (test,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert "pip install . pytest" in install and run.count("pytest") == 2
    (tmp_path / "test_mine.py").write_text(test)
    installed = "tessera.pytest_plugin" in [entry.name for entry in importlib.metadata.entry_points(group="pytest11")]
    command = tmp_path / "pytest"
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m pytest {'' if installed else '-p tessera.pytest_plugin'} \"$@\"\n")
    command.chmod(0o755)
    done = subprocess.run(["sh", "-ec", run], cwd=tmp_path, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True, text=True)
    assert done.returncode == 0 and len(re.findall(r"= (7 passed|6 passed, 1 skipped) in ", done.stdout)) == 2, done.stdout + done.stderr
