"""The Python blocks of docs/python.md run as they stand."""
import re

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
