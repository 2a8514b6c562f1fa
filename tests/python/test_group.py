"""Groups: collectives on NumPy arrays, buffers and tensors with DLPack, against NumPy."""
import array
import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest

import tessera
from tessera import _arrays
from conftest import SOURCE

DTYPES = ["float32", "float64", "float16", "int64", "int32", "int8", "uint8"]


def on_ranks(function, ranks=3, backend="loopback"):
    return tessera.spawn(lambda: function(tessera.init()), ranks=ranks, backend=backend)


def value(rank, shape, dtype="float32"):
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 7 + rank).astype(dtype)


@pytest.mark.parametrize("backend", ["loopback", "shm", "gloo"])
def test_collectives(backend):
    def check(g):
        n = g.size
        each = [value(r, (2 * n, 3)) for r in range(n)]
        x = each[g.rank].copy()
        assert g.all_reduce(x) is x and np.array_equal(x, sum(each))
        x = each[g.rank].copy()
        g.reduce(x, dst=1)
        assert np.array_equal(x, sum(each) if g.rank == 1 else each[g.rank])
        assert np.array_equal(g.broadcast(each[g.rank].copy(), src=2), each[2])
        assert np.array_equal(g.all_gather(each[g.rank]), np.concatenate(each))
        gathered = g.gather(each[g.rank], dst=1)
        assert np.array_equal(gathered, np.concatenate(each)) if g.rank == 1 else gathered is None
        block = np.empty((2, 3), np.float32)
        assert g.scatter(block, each[1] if g.rank == 1 else None, src=1) is block and np.array_equal(block, each[1][2 * g.rank:2 * g.rank + 2])
        assert np.array_equal(g.reduce_scatter(each[g.rank]), sum(each)[2 * g.rank:2 * g.rank + 2])
        assert np.array_equal(g.all_to_all(each[g.rank]), np.concatenate([one[2 * g.rank:2 * g.rank + 2] for one in each]))
        rows = [[(a + b) % 2 + 1 for b in range(n)] for a in range(n)]  # from a to b
        sent = [value(10 * r, (sum(rows[r]), 3)) for r in range(n)]
        received = g.all_to_all(sent[g.rank], send=rows[g.rank], recv=[rows[a][g.rank] for a in range(n)])
        starts = [sum(rows[a][:g.rank]) for a in range(n)]
        assert np.array_equal(received, np.concatenate([sent[a][starts[a]:starts[a] + rows[a][g.rank]] for a in range(n)]))
        if g.rank == 0:
            g.send(each[0], dst=2)
        elif g.rank == 2:
            assert np.array_equal(g.recv(np.empty_like(each[0]), src=0), each[0])
        g.barrier()
        out = np.empty((n,), np.float32)
        assert g.all_gather(np.float32(g.rank) + np.zeros((), np.float32), out=out) is out and out.tolist() == list(range(n))
        pair = g.split(None if g.rank == 1 else 0, key=-g.rank, name="ends")
        if pair:
            assert pair.size == 2 and pair.rank == (g.rank == 0) and pair.ranks == [2, 0] and pair.name == "ends/0"
            assert pair.all_reduce(np.ones(1, np.int32)).tolist() == [2]
            pair.close()
        return repr(g)

    assert on_ranks(check, backend=backend)[1] == f"<tessera.Group world: rank 1 of 3, {backend}>"


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_and_operations(dtype):
    operations = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
    if "int" in dtype:
        operations.update(band=np.bitwise_and, bor=np.bitwise_or, bxor=np.bitwise_xor)

    def check(g):
        for op, function in operations.items():
            x = g.all_reduce(value(g.rank, (5,), dtype), op=op)
            assert x.dtype == dtype and np.array_equal(x, function.reduce([value(r, (5,), dtype) for r in range(g.size)]))
    on_ranks(check)


def test_buffers():
    def check(g):
        for x in (array.array("f", [g.rank, 1]), memoryview(bytearray(8)), bytearray(4)):
            g.all_reduce(x, op="max")
        x = array.array("f", [g.rank, 1])
        g.all_reduce(x)
        return x.tolist()
    assert on_ranks(check, ranks=2) == [[1, 2]] * 2


class Tensor:
    """A tensor of another library: memory that only DLPack offers. bits: of bfloat16."""

    def __init__(self, data, bfloat16=False, device=1):
        self.data, self.bfloat16, self.device = data, bfloat16, device

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self, stream=None):
        capsule = self.data.__dlpack__()
        if self.bfloat16:
            t = _arrays._DLTensor.from_address(_arrays._get_pointer(capsule, b"dltensor"))
            t.code = 4
        return capsule


def test_dlpack():
    def check(g):
        x = np.full((2, 3), g.rank + 1, np.float32)
        assert g.all_reduce(Tensor(x)).data is x and (x == 3).all()  # without a copy
        bits = np.array([0x3f80, 0x4000], np.uint16).view(np.int16)  # 1, 2 in bfloat16
        g.all_reduce(Tensor(bits, bfloat16=True))
        assert bits.view(np.uint16).tolist() == [0x4000, 0x4080]  # 2, 4
        out = np.zeros(4, np.int16)
        with pytest.raises(TypeError, match="ml_dtypes"):
            g.all_gather(Tensor(bits, bfloat16=True))
        g.all_gather(Tensor(bits, bfloat16=True), out=Tensor(out, bfloat16=True))
        assert out.view(np.uint16).tolist() == [0x4000, 0x4080] * 2
        with pytest.raises(ValueError, match=r"x.cpu\(\)"):
            g.all_reduce(Tensor(x, device=2))
        with pytest.raises(ValueError, match="not contiguous"):
            g.all_reduce(Tensor(x[:, ::2]))
        return _arrays.read_memory(Tensor(x[1:]), True).address == x[1:].ctypes.data
    assert on_ranks(check, ranks=2) == [True, True]


def test_torch():
    torch = pytest.importorskip("torch")

    def check(g):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            x = torch.full((2, 3), g.rank + 1, dtype=dtype)
            assert g.all_reduce(x) is x and (x == 3).all()
        assert g.all_reduce(torch.ones(2), op=torch.distributed.ReduceOp.MAX).tolist() == [1, 1]
    on_ranks(check, ranks=2)


def test_arguments_are_checked():
    g = tessera.init()
    assert (g.rank, g.size) == (0, 1)
    x = np.ones((4, 4), np.float32)
    frozen = x.copy()
    frozen.setflags(write=False)
    for error, message, call in [
        (ValueError, "not contiguous", lambda: g.all_reduce(x.T[1:])),
        (ValueError, "read-only", lambda: g.all_reduce(frozen)),
        (ValueError, "big-endian", lambda: g.all_reduce(x.astype(">f4"))),
        (ValueError, "op='mean'", lambda: g.all_reduce(x, op="mean")),
        (TypeError, "complex64", lambda: g.all_reduce(x.astype(np.complex64))),
        (TypeError, "list: give a NumPy array", lambda: g.all_reduce([1, 2])),
        (ValueError, "out= is float64", lambda: g.all_gather(x, out=np.empty((4, 4)))),
        (ValueError, "1 ranks take blocks of float64", lambda: g.scatter(np.empty((4, 4)), x)),
        (ValueError, "have a number of rows", lambda: g.all_to_all(x, send=[3], recv=[3])),
        (ValueError, "both send= and recv=", lambda: g.all_to_all(x, send=[4])),
        (tessera.ArgumentError, "band of f32", lambda: g.all_reduce(x, op="band")),
    ]:
        with pytest.raises(error, match=message):
            call()
    assert g.all_reduce(x) is x  # the job still runs
    tessera.shutdown()
    with pytest.raises(RuntimeError, match="closed"):
        g.barrier()
    assert tessera.init().size == 1  # a job of one rank may be entered again
    tessera.shutdown()


@pytest.mark.parametrize("launcher", ["tessera", "torchrun", "mpirun", "srun"])
def test_launchers(tmp_path, launcher):
    """A program that calls init() is a rank of the job of its environment."""
    program = [sys.executable, "-c", "import tessera, numpy; g = tessera.init(); x = g.all_reduce(numpy.ones(1)); "
               "print(g.rank, g.size, x[0])"]
    if launcher == "tessera":
        command = [sys.executable, "-m", "tessera", "launch", "-n", "2", "--", *program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert sorted(done.stdout.splitlines()) == ["[0] 0 2 2.0", "[1] 1 2 2.0"], done.stderr
        return
    names = {"torchrun": ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"), "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "X"),
             "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")}[launcher]
    ranks = [subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env={
        **os.environ, **dict(zip(names, (str(r), "2", "2"))), "TESSERA_JOB": f"test-{os.getpid()}-{launcher}"}) for r in range(2)]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["0 2 2.0\n", "1 2 2.0\n"]


def run_ranks(code, tmp_path):
    """Runs a program as two ranks; returns the status and stderr of each."""
    path = tmp_path / "program.py"
    path.write_text("import sys, numpy as np, tessera\ng = tessera.init()\n" + code)
    ranks = [subprocess.Popen([sys.executable, str(path)], stderr=subprocess.PIPE, text=True, env={
        **os.environ, "RANK": str(r), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TESSERA_JOB": f"test-{os.getpid()}-run"})
        for r in range(2)]
    ends = [rank.communicate(timeout=60)[1] for rank in ranks]
    return [(rank.returncode, end) for rank, end in zip(ranks, ends)]


def test_an_exception_of_a_rank_of_a_job_reaches_the_others(tmp_path):
    (status0, end0), (status1, end1) = run_ranks("if g.rank: raise ValueError('mine')\ng.barrier()\n", tmp_path)
    assert (status0, status1) == (1, 1)
    assert "ValueError: mine" in end1
    assert "rank 1: ValueError: mine" in end0


def test_a_rank_of_a_job_that_exits_is_named(tmp_path):
    (status0, end0), (status1, _) = run_ranks("if g.rank: sys.exit(3)\ng.barrier()\n", tmp_path)
    assert (status0, status1) == (1, 3)
    assert "rank 1" in end0 and "left" in end0
