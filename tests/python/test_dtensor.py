"""Distributed tensors against NumPy: any shapes, meshes and placements."""
import itertools

import numpy as np
import pytest

import tessera
from tessera import DeviceMesh, DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh


def on_ranks(function, ranks=4, backend="loopback"):
    return tessera.spawn(function, ranks=ranks, backend=backend)


def edge(n, m, r):
    return -(-n * r // m)


def cut(n, m, r):
    return slice(edge(n, m, r), edge(n, m, r + 1))


@pytest.mark.parametrize("backend", ["loopback", "shm", "gloo"])
def test_shards_of_any_size(backend):
    def check():
        mesh = DeviceMesh((2, 2), ("dp", "tp"))
        d, t = mesh.get_coordinate()
        assert [mesh.get_local_rank("dp"), mesh.get_local_rank("tp")] == [d, t] and mesh.size() == 4 and mesh.shape == (2, 2)
        x = np.arange(35, dtype=np.float32).reshape(5, 7)
        root = distribute_tensor(x if tessera.init().rank == 0 else np.zeros_like(x), mesh, [Shard(0), Shard(1)])
        assert np.array_equal(root.local, x[cut(5, 2, d), cut(7, 2, t)]) and root.placements == (Shard(0), Shard(1))
        assert root.ranges(0) == [(edge(5, 2, d), edge(5, 2, d + 1))] and root.to_local() is root.local
        for placements in itertools.product([Replicate(), Shard(0), Shard(-1)], repeat=2):
            moved = root.redistribute(placements)
            assert np.array_equal(moved.full(), x) and np.array_equal(moved.full_tensor(), x)
            back = moved.redistribute([Shard(0), Shard(1)])
            assert np.array_equal(back.local, root.local)
        twice = root.redistribute([Shard(0), Shard(0)])
        rows = x[cut(5, 2, d)]
        assert np.array_equal(twice.local, rows[cut(len(rows), 2, t)])
        assert DTensor.from_local(twice.local, mesh, twice.placements).shape == (5, 7)
        one = distribute_tensor(x, mesh, [Replicate(), Shard(0)], src_data_rank=None)
        one.local *= 2
        assert np.array_equal(one.full(), 2 * x)
        return mesh.get_group("tp").all_reduce(np.ones(1, np.int64)).tolist()
    assert on_ranks(check, backend=backend) == [[2]] * 4


def test_addends_and_local_parts():
    def check():
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        rank = mesh.get_local_rank()
        whole = np.arange(10, dtype=np.int32)
        for op, expected in [("sum", 4 * whole + 6), ("max", whole + 3), ("min", whole)]:
            t = DTensor.from_local(whole + rank, mesh, [Partial(op)])
            assert t.placements == (Partial(op),) and t.placements[0].is_partial(op)
            assert np.array_equal(t.redistribute([Replicate()]).local, expected)
            assert np.array_equal(t.redistribute([Shard(0)]).local, expected[cut(10, 4, rank)])
        t = DTensor.from_local(whole[cut(10, 4, rank)], mesh, [Shard(0)])
        assert t.shape == (10,) and np.array_equal(t.full(), whole)
        fused = distribute_tensor(whole, mesh, [Shard(0)], parts={0: [4, (6, 3)]})
        assert fused.ranges(0) == [(rank, rank + 1), (4 + 2 * edge(3, 4, rank), 4 + 2 * edge(3, 4, rank + 1))]
        with pytest.raises(IndexError, match=r"ranges\(1\): the tensor has 1 dim"):
            t.ranges(1)
        return t
    tensors = on_ranks(check)  # tensors outlive their ranks
    assert [t.local.tolist() for t in tensors] == [[0, 1, 2], [3, 4], [5, 6, 7], [8, 9]]
    assert "shape=(10,)" in repr(tensors[0])


def test_errors_name_the_rule():
    def check():
        mesh = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
        x = np.zeros((4, 4), np.float32)
        for error, message, call in [
            (tessera.Error, "different ops", lambda: distribute_tensor(x, mesh, [Partial("max"), Partial()])),
            (tessera.Error, "5", lambda: distribute_tensor(x, mesh, [Shard(5), Replicate()])),
            (ValueError, "1 placements for the 2 dimensions of dp=2,tp=2", lambda: distribute_tensor(x, mesh, [Shard(0)])),
            (ValueError, r"this rank has shape \[4, 4\]", lambda: DTensor.from_local(x, mesh, [Shard(0), Replicate()], shape=(4, 4))),
            (KeyError, "no dimension 'pp'", lambda: mesh.get_group("pp")),
            (ValueError, "in order", lambda: DeviceMesh("cpu", [1, 0, 2, 3])),
            (ValueError, "host memory", lambda: init_device_mesh("cuda", (4,))),
        ]:
            with pytest.raises(error, match=message):
                call()
        mesh.close()
        with pytest.raises(RuntimeError, match="closed"):
            mesh.get_group("tp")
    on_ranks(check)
