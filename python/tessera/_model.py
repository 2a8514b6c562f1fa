"""A checkpoint that a plan partitions: load() and what a model does."""
from __future__ import annotations

import ctypes
import operator
import os
import pickle
import weakref
from json import dumps, loads
from typing import Any, Callable, Mapping, Sequence, Union

import numpy as np

from . import _abi
from ._errors import CODES, make_error
from ._group import World, find_world
from ._library import fail, lib, list_strings, set_options, take_bytes
from ._spawn import is_threaded
from ._threads import ThreadWorld, use_options
from ._values import Values

C = _abi.CONSTANTS
Ids = Sequence[int]
Prompt = Union[str, Ids]
Plan = Union[str, "os.PathLike[str]", Mapping[str, Any], None]

open_models: weakref.WeakSet[Model] = weakref.WeakSet()


def count_ranks(mesh: bytes) -> int:
    """Returns the number of ranks of a mesh, such as b"dp=2,tp=2"."""
    out = ctypes.c_int32()
    lib.mesh_count_ranks(mesh, ctypes.byref(out))
    return out.value


def read_strategy(plan: bytes | None, ranks: int | None, mesh: str | None) -> tuple[bytes | None, int, dict[str, bytes]]:
    """Returns the mesh, which has `ranks` ranks, and the micro-batches of a plan that is a strategy; else None and 1.

    The dict has b"host" for each kind of values that the strategy offloads.
    """
    found = ctypes.POINTER(_abi.Strategy)()
    lib.strategy_read(plan, ctypes.byref(found))
    try:
        if found and ranks and not mesh:
            lib.strategy_check_ranks(found, ranks)
        if not found:
            return None, 1, {}
        places = {name: b"host" for name in ("offload_optimizer", "offload_weights") if getattr(found.contents, name)}
        return found.contents.mesh, found.contents.micro_batches or 1, places
    finally:
        lib.strategy_free(found)


class Settings:
    """The arguments of load(), as the library reads them."""

    def __init__(self, directory: str | os.PathLike[str], ranks: int | None, mesh: str | None, plan: Plan, *, overrides: Any = None,
                 threads: int = 0, weights: str | None = None, kv: str | None = None, kv_memory: int = 0, math: str | None = None,
                 positions: int = 0, ignore_unexpected: bool = False, values: str | None = None,
                 offload_weights: bool = False) -> None:
        self.directory = os.fspath(directory).encode()
        for name, value in (("threads", threads), ("kv_memory", kv_memory), ("positions", positions)):
            if not hasattr(value, "__index__"):
                raise TypeError(f"load: {name}={value!r}: give a whole number" + " of bytes" * (name == "kv_memory"))
        if offload_weights not in (True, False):
            raise TypeError(f"load: offload_weights={offload_weights!r}: give True or False; weights are read from the checkpoint")
        if mesh is not None and not isinstance(mesh, str):
            raise TypeError(f"load: mesh={mesh!r}: give text, such as 'dp=2,tp=2'")
        self.plan = _write_plan(plan)
        planned, self.micro, places = read_strategy(self.plan, ranks, mesh)
        self.mesh = mesh.encode() if mesh else planned or b"tp"
        if isinstance(overrides, str):
            overrides = [overrides]
        if isinstance(overrides, Mapping):
            overrides = [f"{pattern}={style}" for pattern, style in overrides.items()]
        self.overrides = list_strings(overrides)
        self.ranks = ranks or count_ranks(self.mesh)
        self.session = _abi.SessionOptions(
            threads=threads, plan=self.plan, overrides=self.overrides, ignore_unexpected=ignore_unexpected,
            kv_dtype=_find_dtype("kv", kv), kv_memory=kv_memory, positions=positions,
            weights=_find_dtype("weights", weights), math=_find_dtype("math", math), values=values.encode() if values else None,
            offload_weights=offload_weights)
        self.trainer = _abi.TrainerOptions(
            threads=threads, plan=self.plan, overrides=self.overrides, ignore_unexpected=ignore_unexpected,
            positions=positions, dropout=-1.0, values=self.session.values, math=self.session.math)
        self.gradients = _abi.TrainerOptions.from_buffer_copy(self.trainer)  # of one step, which needs no files
        for name, place in places.items():
            setattr(self.gradients, name, place)

    def explain(self, json: bool = False, *, form: str = "text", tokens: int = 1, train: bool = False, batch: int = 8,
                sequence: int = 0) -> Any:
        """Returns what `tessera explain` prints; see Model.explain. It needs no ranks."""
        forms = [name[len("TESS_EXPLAIN_"):].lower() for name in C if name.startswith("TESS_EXPLAIN_")]
        name = ("json_program" if form == "program" else "json") if json else form
        if name not in forms or json and form not in ("text", "program"):
            raise ValueError(f"explain: form={form!r}: use text, program, storage or svg; json=True has text and program")
        found, text = ctypes.c_void_p(), ctypes.c_void_p()
        if train and batch % self.micro:
            raise ValueError(f"explain: batch={batch}: cannot be cut into the {self.micro} micro-batches of the strategy")
        if train:
            lib.explain_training(self.directory, self.mesh, self.ranks, batch // self.micro, sequence, ctypes.byref(self.trainer), ctypes.byref(found))
        else:
            lib.explain(self.directory, self.mesh, self.ranks, tokens, ctypes.byref(self.session), ctypes.byref(found))
        try:
            lib.explanation_format(found, C["TESS_EXPLAIN_" + name.upper()], self.directory, self.session.positions, ctypes.byref(text))
        finally:
            lib.explanation_free(found)
        written = take_bytes(text).decode()
        return loads(written) if json else written


def _write_plan(plan: Plan) -> bytes | None:
    if isinstance(plan, Mapping) and "plan" in plan:
        return dumps(plan).encode()
    if isinstance(plan, Mapping):
        for pattern, style in plan.items():
            if not isinstance(pattern, str) or not isinstance(style, str):
                raise TypeError(f"load: plan: {pattern!r}: {style!r}: a rule is a pattern and the name of a style, "
                                "such as 'rowwise'; register_style makes a style of placements")
        return dumps(plan).encode()
    return None if plan is None else os.fspath(plan).encode()


def _find_dtype(argument: str, name: str | None) -> int:
    allowed = {"kv": ("auto", "f32", "bf16"), "weights": ("file", "bf16", "q8", "bf12", "mxfp4"), "math": ("f32", "bf16")}[argument]
    if name is None or name in allowed and name in ("auto", "file"):
        return 0
    if name not in allowed:
        why = "; in f16, gradients below 6e-8 would be 0" if (argument, name) == ("math", "f16") else ""
        raise ValueError(f"{argument}={name!r}: use {' or '.join(allowed)}{why}")
    return C["TESS_" + name.upper()]


# ---- one rank --------------------------------------------------------------------------------------------------------

class _Text:
    """The results of a request."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.text = b""
        self.rows: list[np.ndarray] = []
        self.failure: tuple[int, str] | None = None


class _Rank:
    """The model on one rank. Its calls are collective."""

    def __init__(self, world: World, settings: Settings, is_interrupted: Callable[[], bool]) -> None:
        self.world, self.settings, self.is_interrupted = world, settings, is_interrupted
        self.raised: BaseException | None = None
        self.trainer: Any = None
        self.mesh: ctypes.c_void_p | None = ctypes.c_void_p()
        self.session: ctypes.c_void_p | None = ctypes.c_void_p()
        world.at_leave.append(self.close)
        world.call(lib.mesh_open, world.pointer, settings.mesh, ctypes.byref(self.mesh))
        world.call(lib.session_open, self.mesh, settings.directory, ctypes.byref(settings.session), ctypes.byref(self.session))
        self.info = _abi.SessionInfo()
        lib.session_get_info(self.session, ctypes.byref(self.info))

    def close(self) -> None:
        if self.close in self.world.at_leave:
            self.world.at_leave.remove(self.close)
        lib.trainer_close(self.trainer)
        lib.session_close(self.session)
        lib.mesh_close(self.mesh)
        self.trainer = self.session = self.mesh = None

    # ---- inference

    def _guard(self, callback: Callable[..., Any]) -> Callable[..., int]:
        """Returns a callback of a generation, whose exception ends it and is raised by generate."""
        def call(*arguments: Any) -> int:
            try:
                callback(*arguments)
                return C["TESS_END_ALL"] if self.is_interrupted() else C["TESS_GO_ON"]
            except BaseException as error:
                self.raised = error
                return fail(CODES["EABORTED"], type(error).__name__)
        return call

    def generate(self, requests: list[_abi.Request], texts: dict[int, _Text]) -> None:
        """Runs requests; the rank that gets the results of request i puts them in texts[i]."""
        vocabulary = self.info.vocabulary

        def on_token(_: Any, i: int, token: int, logits: Any, text: Any, n: int) -> None:
            one = texts.setdefault(i, _Text())
            one.ids.append(token)
            one.text += ctypes.string_at(text, n) if n else b""

        def on_logits(_: Any, i: int, rows: Any, n: int) -> None:
            texts.setdefault(i, _Text()).rows.append(np.ctypeslib.as_array(rows, (n, vocabulary)).copy())

        def on_end(_: Any, i: int, result: Any, text: Any, n: int) -> None:
            one = texts.setdefault(i, _Text())
            one.text += ctypes.string_at(text, n) if n else b""
            if result.contents.status:
                one.failure = result.contents.status, result.contents.sentence.decode(errors="replace")

        how = _abi.Generation(
            on_token=_abi.ON_TOKEN(self._guard(on_token)), on_logits=_abi.ON_LOGITS(self._guard(on_logits)),
            on_end=_abi.ON_END(self._guard(on_end)), on_step=_abi.ON_STEP(self._guard(lambda _: None)))
        pointers = (ctypes.POINTER(_abi.Request) * max(1, len(requests)))(*[ctypes.pointer(r) for r in requests])
        self.raised = None
        try:
            self.world.call(lib.session_generate, self.session, pointers, len(requests), ctypes.byref(how))
        except Exception:
            if self.raised:
                raise self.raised
            raise

    def take_values(self, train: bool) -> Values | None:
        """Takes the values that were kept: on rank 0, and None on others."""
        if train and not self.trainer:
            raise ValueError("take_values: train=True: nothing was trained; call grad first")
        out = ctypes.c_void_p()
        take, of = (lib.trainer_take_values, self.trainer) if train else (lib.session_take_values, self.session)
        self.world.call(take, of, ctypes.byref(out))
        return Values(out) if out.value else None

    # ---- gradients

    def compute_gradients(self, sequences: list[tuple[Ids, Ids]], root: int) -> tuple[float, dict[str, np.ndarray]]:
        """Computes the loss of (ids, labels) and the gradients, on rank `root` or on all (-1)."""
        if not self.trainer:
            trainer = ctypes.c_void_p()
            self.world.call(lib.trainer_open, self.mesh, self.settings.directory, ctypes.byref(self.settings.gradients), ctypes.byref(trainer))
            self.trainer = trainer
        sequences = sequences + [(sequences[0][0][:1], [-100])] * (self.info.nreplicas - len(sequences))
        ids, labels = (np.concatenate([np.asarray(one[k], np.int32) for one in sequences]) for k in (0, 1))
        lengths = np.array([len(one[0]) for one in sequences], np.int64)
        batch = _abi.Batch(
            nsequences=len(sequences), lengths=lengths.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)),
            ids=ids.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)), labels=labels.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)))
        result = _abi.TrainingResult()
        self.world.call(lib.trainer_compute_gradients, self.trainer, ctypes.byref(batch), 1, ctypes.byref(result))
        return result.loss, self._gather_gradients(root)

    def _gather_gradients(self, root: int) -> dict[str, np.ndarray]:
        gradients = {}
        mine = root in (-1, self.world.rank)
        for i in range(lib.trainer_count_tensors(self.trainer)):
            about = lib.trainer_get_tensor(self.trainer, i).contents
            if not about.trained:
                continue
            one = np.empty(tuple(about.shape[:about.ndim]) if mine else 0, np.float32)
            self.world.call(lib.trainer_gather, self.trainer, C["TESS_GRADIENT"], i, 0, about.size, root, one.ctypes.data if mine else None)
            if mine:
                gradients[about.name.decode()] = one
        return gradients


def find_job() -> World | None:
    """Returns the world of this rank; None: there is none, or it has one rank."""
    world = find_world()
    return world if world and world.size > 1 else None


# ---- the model -------------------------------------------------------------------------------------------------------

class _Tokenizer:
    def __init__(self, directory: bytes) -> None:
        self.pointer = ctypes.c_void_p()
        lib.tokenizer_open(directory, ctypes.byref(self.pointer))
        self._end = weakref.finalize(self, lib.tokenizer_close, self.pointer)


class Model:
    """A checkpoint on its ranks, which load() opens. A context manager: closes the ranks at its end.

    The ranks are threads of this process; or, in a job, the processes of the job, which make the same calls.
    """

    def __init__(self, settings: Settings, options: dict[str, Any]) -> None:
        self._settings = settings
        self._tokenizer: _Tokenizer | None = None
        world = find_job()
        self._world = world
        self._rank: _Rank | None = None
        if world:
            set_options(**options)  # they stay set: ranks that are threads share them
            self._rank = _Rank(world, settings, lambda: False)
            self._info = self._rank.info
        else:
            self._threads = threads = ThreadWorld(settings.ranks, **options)
            ranks: dict[int, _Rank] = {}
            self._ranks = ranks
            weakref.finalize(self, threads.release)

            def open_rank(world: World) -> None:
                ranks[world.rank] = _Rank(world, settings, lambda: threads.interrupted)

            with use_options(**options):
                try:
                    threads.run(open_rank, collective=True)
                except BaseException:
                    threads.close()
                    raise
            self._info = ranks[0].info
        open_models.add(self)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tessera.Model {self.directory}: {self.ranks} ranks, mesh {self._settings.mesh.decode()}>"

    def close(self) -> None:
        """Ends the ranks, or, in a job, closes the model on this rank."""
        open_models.discard(self)
        if self._rank:
            self._rank.close()
            self._rank = None
        elif not self._world:
            self._threads.close()

    @property
    def directory(self) -> str:
        """The directory of the checkpoint."""
        return os.fsdecode(self._settings.directory)

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self._settings.ranks

    @property
    def vocabulary(self) -> int:
        """The number of ids."""
        return int(self._info.vocabulary)

    @property
    def positions(self) -> int:
        """The maximum length of a sequence; 0: no limit."""
        return int(self._info.positions)

    # ---- text

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Encodes text by the tokenizer of the checkpoint; `special`: with the ids that it puts around a text."""
        data = text.encode()
        ids, n = ctypes.c_void_p(), ctypes.c_size_t()
        lib.tokenizer_encode(self._open_tokenizer().pointer, data, len(data), special, ctypes.byref(ids), ctypes.byref(n))
        return [int(i) for i in np.frombuffer(take_bytes(ids, 4 * n.value), np.int32)]

    def decode(self, ids: Ids, special: bool = False) -> str:
        """Decodes ids; `special`: with the text of special ids."""
        text, n = ctypes.c_void_p(), ctypes.c_size_t()
        lib.tokenizer_decode(self._open_tokenizer().pointer, (ctypes.c_int32 * len(ids))(*ids), len(ids), not special,
                             ctypes.byref(text), ctypes.byref(n))
        return take_bytes(text, n.value).decode(errors="replace")

    def _open_tokenizer(self) -> _Tokenizer:
        if not self._tokenizer:
            self._tokenizer = _Tokenizer(self._settings.directory)
        return self._tokenizer

    # ---- inference

    def logits(self, prompt: Prompt | Sequence[Prompt]) -> Any:
        """Returns the logits of each position: float32 [positions, vocabulary]. Of a list of prompts: a list of arrays.

        A prompt is text, with the special ids of the tokenizer, or ids.
        """
        def take(one: _Text, prompt: Prompt) -> np.ndarray:
            return np.concatenate(one.rows) if one.rows else np.empty((0, self.vocabulary), np.float32)
        return self._run_requests(prompt, take, flags=C["TESS_ALL_LOGITS"], max_tokens=-1)

    def generate(self, prompt: Prompt | Sequence[Prompt], max_tokens: int | None = None, *, temperature: float | None = None,
                 top_p: float | None = None, min_p: float | None = None, top_k: int | None = None,
                 repetition_penalty: float | None = None, seed: int = 0,
                 stop: Ids | str | Sequence[str] | None = None) -> Any:
        """Continues a prompt: returns the new text of a text, the new ids of ids, and a list for a list of prompts.

        max_tokens: the maximum number of new ids. None: as the checkpoint specifies. stop: ids that end the sequence in
        place of those of the checkpoint; or a text, or texts, before which a text ends, in addition to these.
        temperature 0 is greedy. The ids do not depend on ranks, mesh or plan.
        """
        sampling = _abi.Sampling.from_buffer_copy(self._info.sampling)
        given = dict(temperature=temperature, top_p=top_p, min_p=min_p, top_k=top_k, repetition_penalty=repetition_penalty)
        for name, value in given.items():
            if value is not None:
                setattr(sampling, name, value)
        sampling.seed = seed
        if max_tokens is not None and operator.index(max_tokens) < 0:
            raise ValueError(f"generate: max_tokens={max_tokens}: 0 or more; None: as the checkpoint specifies")
        if isinstance(stop, bytes):
            raise TypeError(f"generate: stop={stop!r}: give text, a list of texts, or ids")
        fields: dict[str, Any] = {"sampling": ctypes.pointer(sampling), "max_tokens": 0 if max_tokens is None else max_tokens or -1}
        texts: list[Any] = [stop] if isinstance(stop, str) else [] if stop is None else list(stop)
        if texts and all(isinstance(one, str) for one in texts):
            data = [one.encode() for one in texts]
            if any(not one or 0 in one for one in data):
                raise ValueError(f"generate: stop={stop!r}: a stop text has 1 byte or more, and no U+0000")
            fields.update(stop_texts=(ctypes.c_char_p * len(data))(*data), nstop_texts=len(data))
        elif stop is not None:
            fields.update(stop=(ctypes.c_int32 * max(1, len(stop)))(*stop), nstop=len(stop))

        def take(one: _Text, prompt: Prompt) -> Any:
            return one.text.decode(errors="replace") if isinstance(prompt, str) else one.ids
        return self._run_requests(prompt, take, **fields)

    def _run_requests(self, prompt: Prompt | Sequence[Prompt], take: Callable[[_Text, Prompt], Any], **fields: Any) -> Any:
        single = _is_prompt(prompt)
        prompts: list[Any] = [prompt] if single else list(prompt)
        requests = [_make_request(one, fields) for one in prompts]
        texts: dict[int, _Text] = {}
        self._call(lambda rank: rank.generate(requests, texts))
        if self._world:
            texts = _exchange(self._world, texts)
        for i in range(len(prompts)):
            failure = texts.setdefault(i, _Text()).failure
            if failure:
                raise make_error(*failure)
        results = [take(texts[i], one) for i, one in enumerate(prompts)]
        return results[0] if single else results

    # ---- gradients

    def grad(self, ids: Prompt | Sequence[Prompt], labels: Any = None) -> tuple[float, dict[str, np.ndarray]]:
        """Returns the loss of a sequence, or of a list of them, and its gradients: complete float32 arrays by name.

        labels: as ids, with -100 where an id must not be predicted; None: the ids. Weights do not change, and there is
        no dropout. The first call loads the checkpoint for training.
        """
        single = _is_prompt(ids)
        prompts: list[Any] = [ids] if single else list(ids)
        batch: list[Any] = [self.encode(one) if isinstance(one, str) else [_check_id(i) for i in one] for one in prompts]
        marks: list[Any] = batch if labels is None else [labels] if single else list(labels)
        if [len(one) for one in batch] != [len(one) for one in marks]:
            raise ValueError("grad: each id has a label, -100 where it is not to be predicted")
        if not batch:
            raise ValueError("grad: give a sequence of ids")
        sequences = list(zip(batch, marks))
        result: tuple[float, dict[str, np.ndarray]] = self._call(
            lambda rank: rank.compute_gradients(sequences, -1 if self._world else 0))
        return result

    def take_values(self, train: bool = False) -> Values | None:
        """Returns the outputs of modules that the calls since the last one have kept, by the option `values` of load().

        Each is complete for any plan: float32 [rows, elements], a row per id. train: those of grad. In a job, rank 0 gets
        them, and the other ranks None.
        """
        result: Values | None = self._call(lambda rank: rank.take_values(train))
        return result

    # ---- the plan

    def explain(self, json: bool = False, *, form: str = "text", tokens: int = 1, train: bool = False, batch: int = 8,
                sequence: int = 0) -> Any:
        """Returns what `tessera explain` prints: what each rank holds, computes and sends; json: as a dict.

        form: "text", "program" (with json=True the dict has it, too), "storage" or "svg". tokens: rows of the step. train:
        explain a step of training with `batch` sequences of `sequence` ids (0: 1024, or the maximum length).
        """
        return self._settings.explain(json, form=form, tokens=tokens, train=train, batch=batch, sequence=sequence)

    def _call(self, function: Callable[[_Rank], Any]) -> Any:
        """Calls a function of the model on all ranks, and returns the value of the first, or of this rank of a job."""
        if self not in open_models:
            raise RuntimeError("the model is closed")
        if self._rank:
            return function(self._rank)
        ranks = self._ranks
        try:
            return self._threads.run(lambda world: function(ranks[world.rank]), collective=True)[0]
        except BaseException:
            if self._threads.has_ended():
                self.close()
            raise


def _is_prompt(given: Prompt | Sequence[Prompt]) -> bool:
    """Returns whether an argument is one text or one list of ids, not a list of them."""
    return isinstance(given, str) or len(given) == 0 or np.ndim(given[0]) == 0 and not isinstance(given[0], str)


def _make_request(prompt: Prompt, fields: dict[str, Any]) -> _abi.Request:
    if isinstance(prompt, str):
        text = prompt.encode()
        return _abi.Request(text=text, ntext=len(text), **fields)
    ids = [_check_id(i) for i in prompt]
    return _abi.Request(ids=(ctypes.c_int32 * max(1, len(ids)))(*ids), nids=len(ids), **fields)


def _check_id(given: Any) -> int:
    """Returns an id that fits in 32 bits: the library refuses those that are not in the vocabulary."""
    try:
        one = operator.index(given)
    except TypeError:
        raise TypeError(f"id {given!r}: a prompt is text or integers") from None
    if not -1 << 31 <= one < 1 << 31:
        raise ValueError(f"id {one} is outside the vocabulary")
    return one


def _exchange(world: World, texts: dict[int, _Text]) -> dict[int, _Text]:
    """Gives all ranks of a job the results of each: only the first rank of a replica has those of its requests."""
    mine = np.frombuffer(pickle.dumps(texts), np.uint8) if texts else np.empty(0, np.uint8)
    sizes = world.group.all_gather(np.array([mine.size], np.int64), where="model:sizes")
    merged: dict[int, _Text] = {}
    for rank, size in enumerate(sizes):
        if size:
            data = mine.copy() if rank == world.rank else np.empty(size, np.uint8)
            merged.update(pickle.loads(world.group.broadcast(data, rank, where="model:results").tobytes()))
    return merged


def load(directory: str | os.PathLike[str], ranks: int | None = None, mesh: str | None = None, plan: Plan = None,
         backend: str | None = None, *, overrides: str | Sequence[str] | Mapping[str, str] | None = None, threads: int = 0,
         weights: str | None = None, kv: str | None = None, kv_memory: int = 0, math: str | None = None, positions: int = 0,
         ignore_unexpected: bool = False, values: str | None = None, offload_weights: bool = False, device: str | None = None,
         timeout: float | None = None) -> Model:
    """Opens a Hugging Face directory on `ranks` ranks.

    The ranks are threads of this process. In a job of several ranks (after init(), or in a function of spawn), the call is
    collective, and the ranks are those of the job.

    mesh: "dp=2,tp=2"; default: "tp". plan: "auto" (None), "none", the name of a plan, a file, JSON or a dict
    {pattern: style}. overrides: rules that replace those of the plan. threads: per rank; 0: a share of the CPUs.
    weights: "file", "q8", "bf12" or "mxfp4"; "bf16" widens those stored in MXFP4. kv: "auto", "f32" or "bf16". math: "f32" or
    "bf16", of linear products, in gradients, too; bf16 needs weights in bf16. positions: the maximum length of a sequence.
    offload_weights: large weights are read from the checkpoint before each use, for models larger than memory.
    values: a pattern of modules, such as "*", whose outputs are kept for take_values().
    backend, device, timeout: as TESSERA_BACKEND, TESSERA_DEVICE, TESSERA_TIMEOUT.
    """
    world = find_job()
    if world and ranks not in (None, world.size):
        raise ValueError(f"load: ranks={ranks}, but the job has {world.size} ranks; leave ranks= out")
    if world and backend not in (None, world.backend):
        raise ValueError(f"load: backend={backend!r}, but the job uses {world.backend}; leave backend= out")
    if not world and backend not in (None, "auto") and not is_threaded(backend):
        raise ValueError(f"load: the ranks are threads, over loopback; with {backend} they are processes: use spawn(), or init() in a job")
    settings = Settings(directory, world.size if world else ranks, mesh, plan, overrides=overrides, threads=threads, weights=weights,
                        kv=kv, kv_memory=kv_memory, math=math, positions=positions, ignore_unexpected=ignore_unexpected, values=values,
                        offload_weights=offload_weights)
    return Model(settings, {"device": device, "timeout": timeout, "backend": None if world else backend or "loopback"})
