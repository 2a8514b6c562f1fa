"""load(): logits, text and gradients do not depend on ranks, and errors leave a model usable."""
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tessera


def test_bits_do_not_depend_on_ranks(data):
    with tessera.load(data) as one, tessera.load(data, ranks=4, mesh="dp=2,tp=2", plan="tp+sp") as four:
        expected, logits = one.logits([1, 2, 3, 4]), four.logits([1, 2, 3, 4])
        assert logits.dtype == np.float32 and logits.shape == (4, one.vocabulary)
        assert np.array_equal(logits, expected)
        rows = expected.astype(np.float64)[:-1]
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
        loss, grads = four.grad([1, 2, 3, 4])
        assert loss == pytest.approx(-rows[range(3), [2, 3, 4]].mean(), rel=1e-6)
        expected_loss, expected_grads = one.grad([1, 2, 3, 4])
        assert loss == expected_loss and grads.keys() == expected_grads.keys()
        assert all(np.array_equal(grads[name], expected_grads[name]) for name in grads)
        assert grads["model.layers.0.mlp.up_proj.weight"].any()


def test_strategy_gives_the_mesh(data):
    plan = {"plan": "tp", "mesh": "dp=2,tp=2", "plan_overrides": ["dp:**=zero3"], "micro_batches": 4}
    with tessera.load(data, plan=plan) as four, tessera.load(data, plan=plan, ranks=2, mesh="tp") as two:
        assert four.ranks == 4 and two.ranks == 2
        assert np.array_equal(four.logits([1, 2]), two.logits([1, 2]))
        with pytest.raises(ValueError, match="batch=6: cannot be cut into the 4 micro-batches"):
            four.explain(train=True, batch=6)
        assert "zero3" in four.explain(train=True)
        loss, _ = two.grad([1, 2, 3])
    files = dict(plan, offload_optimizer="disk", offload_weights="disk")  # without a folder: gradients need none
    with tessera.load(data, plan=files) as model:
        assert model.grad([1, 2, 3])[0] == loss
    with pytest.raises(tessera.ArgumentError, match="mesh dp=2,tp=2 of 4 ranks, not for 3"):
        tessera.load(data, plan=plan, ranks=3)


def test_text_and_ids(data):
    with tessera.load(data, ranks=2) as model:
        prompt = "Once upon a time"
        text = model.generate(prompt, max_tokens=20, temperature=0)
        ids = model.generate(model.encode(prompt), max_tokens=20, temperature=0)
        assert text.startswith(", there was a") and model.decode(ids) == text
        assert model.generate([prompt, prompt], max_tokens=20, temperature=0) == [text, text]
        assert len(model.generate(prompt, max_tokens=3, temperature=0)) < len(text)
        assert model.generate(prompt, max_tokens=0) == ""
        assert model.generate(prompt, max_tokens=9, temperature=0, stop=ids[:1]) == model.decode(ids[:1])
        for stop in ("there", ["zebra", "there"]):
            assert model.generate(prompt, max_tokens=20, temperature=0, stop=stop) == text[:text.index("there")]
        drawn = {model.generate(prompt, max_tokens=20, temperature=1.5, seed=seed) for seed in (1, 2, 1)}
        assert len(drawn) == 2
        assert np.array_equal(model.logits(prompt), model.logits(model.encode(prompt)))


def test_errors_name_the_cause(data):
    with tessera.load(data, ranks=2) as model:
        for call in (model.logits, model.grad):
            with pytest.raises(tessera.ArgumentError, match="id 99999 at position 2 is outside the vocabulary") as caught:
                call([1, 2, 99999])
            assert caught.value.status == "EINVAL"
        assert model.logits([1, 2]).shape == (2, model.vocabulary)  # the ranks still run
    with pytest.raises(RuntimeError, match="closed"):
        model.logits([1])
    with pytest.raises(tessera.Error, match="no-such-directory"):
        tessera.load("/no-such-directory", ranks=2)
    with pytest.raises(tessera.NotFoundError, match="up_proj.*no_such_style"):
        tessera.load(data, ranks=2, plan={"model.layers.*.mlp.up_proj": "no_such_style"})
    with pytest.raises(ValueError, match="processes"):
        tessera.load(data, ranks=2, backend="gloo")
    with pytest.raises(TypeError, match="mesh=.*dp=2,tp=2"):
        tessera.load(data, ranks=4, mesh={"dp": 2, "tp": 2})
    with pytest.raises(TypeError, match="up_proj.*Shard.*name of a style"):
        tessera.load(data, ranks=2, plan={"model.layers.*.mlp.up_proj": tessera.Shard(0)})
    with pytest.raises(tessera.ArgumentError, match="1 to 1024"):
        tessera.load(data, ranks=2000)
    for name, value in (("kv_memory", "1K"), ("threads", 1.5), ("offload_weights", "/tmp")):
        with pytest.raises(TypeError, match=f"load: {name}={value!r}: give "):
            tessera.load(data, **{name: value})
    with pytest.raises(ValueError, match="math='f16': use f32 or bf16; in f16, gradients below 6e-8 would be 0"):
        tessera.load(data, math="f16")
    with tessera.load(data, weights="file", kv="auto", overrides="model.layers.*.mlp=isolated") as model:
        assert model.explain(json=True)


def test_arguments_of_a_prompt(data):
    with tessera.load(data) as model:
        for call in (model.logits, model.grad):
            with pytest.raises(TypeError, match="id 1.5: a prompt is text or integers"):
                call([1.5, 2])
            with pytest.raises(ValueError, match="outside the vocabulary"):
                call([1, 10**30])
            call(np.arange(1, 4))
        with pytest.raises(ValueError, match="max_tokens=-1"):
            model.generate("Once", max_tokens=-1)
        with pytest.raises(TypeError, match="stop=b'a': give text, a list of texts, or ids"):
            model.generate("Once", max_tokens=2, stop=b"a")
        with pytest.raises(ValueError, match="a stop text has 1 byte or more"):
            model.generate("Once", max_tokens=2, stop=["a", ""])


def test_threads_that_share_a_model(data):
    with tessera.load(data, ranks=4) as model, ThreadPoolExecutor(4) as threads:
        expected = model.logits([1, 2])
        assert all(np.array_equal(one, expected) for one in threads.map(model.logits, [[1, 2]] * 100))


def test_a_model_in_a_forked_process(data):
    with tessera.load(data, ranks=2) as model:
        with pytest.raises(RuntimeError, match="threads of process"):
            tessera.spawn(lambda: model.logits([1]), ranks=2, backend="shm")
        inner = tessera.spawn(lambda: tessera.load(data, plan="tp").logits([1, 2]), ranks=3, backend="shm")
        assert all(np.array_equal(one, model.logits([1, 2])) for one in inner)


@pytest.mark.parametrize("backend", ["loopback", "shm"])
def test_a_model_of_a_job_is_collective(data, backend):
    def call():
        with tessera.load(data, mesh="dp=2,tp=2", plan="tp+sp") as model:
            return (model.logits([[1, 2, 3], [4], [5, 6]]), model.generate(["Once", "The"], max_tokens=5, temperature=0),
                    model.grad([[1, 2, 3], [3, 4]]), model.ranks)

    with tessera.load(data) as one:
        expected = one.logits([[1, 2, 3], [4], [5, 6]])
        text = one.generate(["Once", "The"], max_tokens=5, temperature=0)
        loss, grads = one.grad([[1, 2, 3], [3, 4]])
    for logits, texts, (rank_loss, rank_grads), ranks in tessera.spawn(call, ranks=4, backend=backend):
        assert all(np.array_equal(a, b) for a, b in zip(logits, expected)) and texts == text and ranks == 4
        assert rank_loss == loss and all(np.array_equal(rank_grads[name], grads[name]) for name in grads)


def test_ranks_of_a_job_are_not_chosen_again(data):
    with pytest.raises(ValueError, match="the job has 2 ranks"):
        tessera.spawn(lambda: tessera.load(data, ranks=3), ranks=2, backend="loopback")


def test_a_lost_model_ends_its_ranks(data):
    for _ in range(3):
        tessera.load(data, ranks=2)
    gc.collect()
    until = time.monotonic() + 10
    while any(thread.name == "tessera-world" for thread in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.001)
    assert not any(thread.name == "tessera-world" for thread in threading.enumerate())
