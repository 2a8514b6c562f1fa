import os
import pathlib

import pytest

SOURCE = pathlib.Path(__file__).parents[2]


@pytest.fixture
def data():
    """The checkpoint of the demo."""
    return str(SOURCE / "data")


def list_children():
    """Lists the children of this process that have not been waited for."""
    with open(f"/proc/self/task/{os.getpid()}/children") as f:
        return f.read().split()


def list_shared_files():
    """Lists the files of shared memory, and the sockets of jobs."""
    folders = ["/dev/shm", os.path.join(os.environ.get("XDG_RUNTIME_DIR", "/tmp"), f"tessera-{os.getuid()}")]
    return sorted(os.path.join(folder, name) for folder in folders if os.path.isdir(folder) for name in os.listdir(folder)
                  if f"{os.getpid()}-" in name)


@pytest.fixture(autouse=True)
def no_traces():
    """Fails a test that leaves a process, or a file of a job."""
    yield
    assert not list_children()
    assert not list_shared_files()
