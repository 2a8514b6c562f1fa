"""register_style(): strategies as data, and their errors."""
import ctypes

import numpy as np
import pytest

import tessera
from tessera import Partial, Replicate, Shard

COLWISE = dict(inputs=[Replicate()], outputs=[Shard(-1)], params={"weight": Shard(0), "bias": Shard(0)})
UP = "model.layers.*.mlp.up_proj"


def test_a_style_has_the_bits_of_one_rank(data):
    tessera.register_style("colwise_python", **COLWISE)
    plan = {UP: "colwise_python", "model.layers.*.mlp.gate_proj": "colwise", "model.layers.*.mlp.down_proj": "rowwise"}
    with tessera.load(data) as one, tessera.load(data, ranks=3, plan=plan) as three:
        assert np.array_equal(one.logits([1, 2, 3]), three.logits([1, 2, 3]))
        loss, grads = three.grad([1, 2, 3])
        expected, expected_grads = one.grad([1, 2, 3])
        assert loss == expected and all(np.array_equal(grads[name], expected_grads[name]) for name in grads)
        assert "colwise_python" in three.explain()
        up = [p for p in three.explain(json=True)["parameters"] if p["name"] == "model.layers.0.mlp.up_proj.weight"]
        assert up[0]["placement"] == "Shard(0)" and up[0]["style"] == "colwise_python"


def test_a_style_of_functions(data):
    sites = []

    def place_inputs(site):
        sites.append(site)
        return [Replicate()]

    def place_param(site, param):
        assert param.shape[param.out_dim] == 172
        return Shard(param.out_dim) if site.config == "cut" else Replicate()

    tessera.register_style("function_python", inputs=place_inputs, outputs=[Replicate()], params=place_param)
    with tessera.load(data, ranks=2, plan={UP: "function_python:cut"}) as model:
        assert {(site.module, site.kind, site.ranks) for site in sites} >= {("model.layers.0.mlp.up_proj", "linear", 2)}
        assert "all_gather" in model.explain()


def test_torch_placements_are_accepted(data):
    torch_shard = type("Shard", (), {"dim": 0, "__module__": "torch.distributed.tensor"})
    torch_replicate = type("Replicate", (), {})
    tessera.register_style("torch_python", inputs=[torch_replicate()], outputs=[Shard(-1)], params={"weight": torch_shard()})
    with tessera.load(data, ranks=2, plan={UP: "torch_python", "model.layers.*.mlp.down_proj": "rowwise"}) as model:
        assert "torch_python" in model.explain()


@pytest.mark.parametrize("definition, message", [
    (dict(params={"weight": Shard(2)}), "model.layers.0.mlp.up_proj: ValueError: bad_python cuts dimension 2 of weight, which has shape"),
    (dict(params=lambda site, param: 1 / 0), "model.layers.0.mlp.up_proj: ZeroDivisionError: division by zero (test_style.py:"),
    (dict(inputs=lambda site: [Replicate()] * 5), "places 5 inputs; a module has at most 4"),
    (dict(outputs=[Partial("max")]), "model.layers.0.mlp.up_proj"),
])
def test_wrong_styles_name_the_module(data, definition, message):
    tessera.register_style("bad_python", **definition)
    with pytest.raises(tessera.Error) as caught:
        tessera.load(data, ranks=2, plan={UP: "bad_python"})
    assert message in str(caught.value)


def test_a_crash_in_a_process_names_the_style(data, capfd):
    tessera.register_style("crash_python", inputs=lambda site: ctypes.string_at(0))

    def crash():
        return tessera.load(data, plan={UP: "crash_python"})
    with pytest.raises(tessera.RankError, match="signal 11"):
        tessera.spawn(crash, ranks=2, backend="shm")
    err = capfd.readouterr().err
    assert all(part in err for part in ("crash_python", "layout", "model.layers.0.mlp.up_proj")), err


def test_registration_is_checked(data):
    with pytest.raises(TypeError, match="no placement"):
        tessera.register_style("x_python", inputs=["Shard"])
    with pytest.raises(ValueError, match="use sum"):
        tessera.register_style("x_python", outputs=[Partial("avg")])
    with pytest.raises(tessera.ArgumentError, match="colwise"):
        tessera.register_style("colwise", **COLWISE)
    with pytest.raises(tessera.ArgumentError, match="X Y"):
        tessera.register_style("X Y", **COLWISE)
    tessera.register_style("twice_python", **COLWISE)
    with tessera.load(data):
        tessera.register_style("twice_python", **COLWISE)
        with pytest.raises(ValueError, match="close them first"):
            tessera.register_style("twice_python", inputs=[Replicate()])
    tessera.register_style("twice_python", inputs=[Replicate()])
    with pytest.raises(tessera.Error, match="takes no configuration"):
        tessera.load(data, ranks=2, plan={UP: "twice_python:x"})
