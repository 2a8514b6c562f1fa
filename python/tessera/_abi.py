"""The C API in ctypes: constants, structs and functions. tests/python/test_abi.py compares them with the headers."""
from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

CONSTANTS = {
    "TESS_ABI": 2,
    "TESS_F32": 1, "TESS_F64": 2, "TESS_BF16": 3, "TESS_F16": 4, "TESS_I64": 5, "TESS_I32": 6, "TESS_I8": 7, "TESS_U8": 8,
    "TESS_Q8": 64, "TESS_BF12": 65, "TESS_MXFP4": 66,
    "TESS_HOST": 1,
    "TESS_BARRIER": 1, "TESS_BROADCAST": 2, "TESS_REDUCE": 3, "TESS_ALL_REDUCE": 4, "TESS_GATHER": 5,
    "TESS_ALL_GATHER": 6, "TESS_SCATTER": 7, "TESS_REDUCE_SCATTER": 8, "TESS_ALL_TO_ALL": 9, "TESS_SEND": 10,
    "TESS_RECV": 11,
    "TESS_SUM": 1, "TESS_PROD": 2, "TESS_MIN": 3, "TESS_MAX": 4, "TESS_BAND": 5, "TESS_BOR": 6, "TESS_BXOR": 7,
    "TESS_ASIS": 0, "TESS_REPLICATE": 1, "TESS_SHARD": 2, "TESS_PARTIAL": 3,
    "TESS_ALL_LOGITS": 1, "TESS_TOKEN_LOGITS": 2,
    "TESS_FINISH_FAILED": 4, "TESS_GO_ON": 0, "TESS_END_ALL": 2,
    "TESS_EXPLAIN_TEXT": 0, "TESS_EXPLAIN_PROGRAM": 1, "TESS_EXPLAIN_STORAGE": 2, "TESS_EXPLAIN_JSON": 3,
    "TESS_EXPLAIN_JSON_PROGRAM": 4, "TESS_EXPLAIN_SVG": 5,
    "TESS_GRADIENT": 1, "TESS_NARGS": 4, "TESS_DIMS": 8,
    "TESS_TOLERANCE_AUTO": -1, "TESS_VALUE_EQUAL": 0, "TESS_VALUE_DIFFERENT": 1, "TESS_VALUE_RESHAPED": 2,
    "TESS_VALUE_ONLY_FIRST": 3, "TESS_VALUE_ONLY_SECOND": 4,
}


class Struct(ctypes.Structure):
    """A struct of the ABI: struct tess_<the name of its class in lower case with underscores>."""

    c_name = ""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        if "size" in [name for name, *_ in self._fields_[:2]]:
            self.size = ctypes.sizeof(self)


class SessionOptions(Struct):
    c_name = "tess_session_options"
    _fields_ = [
        ("size", c_uint32), ("threads", c_int32), ("plan", c_char_p), ("overrides", POINTER(c_char_p)),
        ("ignore_unexpected", c_int32), ("kv_dtype", c_int32), ("kv_memory", c_uint64), ("positions", c_int64),
        ("weights", c_int32), ("math", c_int32), ("values", c_char_p), ("offload_weights", c_int32), ("reserved", c_int32),
    ]


class Sampling(Struct):
    c_name = "tess_sampling"
    _fields_ = [
        ("temperature", c_double), ("top_p", c_double), ("min_p", c_double), ("repetition_penalty", c_double),
        ("top_k", c_int64), ("seed", c_uint64),
    ]


class SessionInfo(Struct):
    c_name = "tess_session_info"
    _fields_ = [
        ("size", c_uint32), ("replica", c_int32), ("nreplicas", c_int32), ("reserved", c_int32),
        ("vocabulary", c_int64), ("positions", c_int64), ("max_tokens", c_int64), ("sampling", Sampling),
        ("weight_bytes", c_uint64), ("kv_bytes", c_uint64), ("step_bytes", c_uint64), ("kv_used_bytes", c_uint64),
        ("kv_limit", c_uint64), ("mapped_bytes", c_uint64), ("offloaded_bytes", c_uint64),
    ]


class Request(Struct):
    c_name = "tess_request"
    _fields_ = [
        ("size", c_uint32), ("flags", c_int32), ("text", c_char_p), ("ntext", c_uint64), ("ids", POINTER(c_int32)),
        ("nids", c_int64), ("sequence", c_void_p), ("sampling", POINTER(Sampling)), ("stop", POINTER(c_int32)),
        ("nstop", c_int64), ("max_tokens", c_int64), ("chat", c_void_p),
        ("stop_texts", POINTER(c_char_p)), ("nstop_texts", c_int64),
    ]


class Result(Struct):
    c_name = "tess_result"
    _fields_ = [
        ("size", c_uint32), ("finish", c_int32), ("status", c_int32), ("reserved", c_int32), ("sentence", c_char_p),
        ("prompt", POINTER(c_int32)), ("nprompt", c_int64), ("ntokens", c_int64), ("prefill", c_double),
        ("decode", c_double),
    ]


ON_TOKEN = CFUNCTYPE(c_int, c_void_p, c_int64, c_int32, POINTER(c_float), POINTER(ctypes.c_char), c_uint64)
ON_LOGITS = CFUNCTYPE(c_int, c_void_p, c_int64, POINTER(c_float), c_int64)
ON_END = CFUNCTYPE(c_int, c_void_p, c_int64, POINTER(Result), POINTER(ctypes.c_char), c_uint64)
ON_STEP = CFUNCTYPE(c_int, c_void_p)


class Generation(Struct):
    c_name = "tess_generation"
    _fields_ = [
        ("size", c_uint32), ("batch", c_int32), ("chunk", c_int64), ("self", c_void_p), ("on_token", ON_TOKEN),
        ("on_logits", ON_LOGITS), ("on_end", ON_END), ("on_step", ON_STEP),
    ]


class TrainerOptions(Struct):
    c_name = "tess_trainer_options"
    _fields_ = [
        ("size", c_uint32), ("threads", c_int32), ("plan", c_char_p), ("overrides", POINTER(c_char_p)),
        ("ignore_unexpected", c_int32), ("optimizer", c_int32), ("beta1", c_double), ("beta2", c_double),
        ("eps", c_double), ("momentum", c_double), ("weight_decay", c_double), ("clip", c_double),
        ("balance", c_double), ("dropout", c_double), ("seed", c_uint64), ("bucket", c_uint64),
        ("recompute", POINTER(c_char_p)), ("positions", c_int64), ("values", c_char_p),
        ("pipeline_schedule", c_char_p), ("micro_batches", c_int64),
        ("offload_optimizer", c_char_p), ("offload_weights", c_char_p), ("tile", c_uint64),
        ("math", c_int32), ("reserved", c_int32),
    ]


class Strategy(Struct):
    c_name = "tess_strategy"
    _fields_ = [
        ("size", c_uint32), ("threads", c_int32), ("plan", c_char_p), ("mesh", c_char_p), ("overrides", POINTER(c_char_p)),
        ("micro_batches", c_int64), ("pipeline_schedule", c_char_p), ("recompute", POINTER(c_char_p)), ("bucket", c_uint64),
        ("predicted", c_char_p), ("name", c_char_p),
        ("offload_optimizer", c_char_p), ("offload_weights", c_char_p), ("tile", c_uint64),
    ]


class Batch(Struct):
    c_name = "tess_batch"
    _fields_ = [
        ("nsequences", c_int64), ("lengths", POINTER(c_int64)), ("ids", POINTER(c_int32)), ("labels", POINTER(c_int32)),
    ]


class TrainingResult(Struct):
    c_name = "tess_training_result"
    _fields_ = [
        ("size", c_uint32), ("updated", c_int32), ("loss", c_double), ("balance", c_double), ("norm", c_double),
        ("ntokens", c_int64), ("nlabels", c_int64), ("seconds", c_double), ("communication", c_double),
        ("offload_read", c_uint64), ("offload_written", c_uint64),
    ]


class Trained(Struct):
    c_name = "tess_trained"
    _fields_ = [
        ("name", c_char_p), ("dtype", c_int32), ("ndim", c_int32), ("shape", c_int64 * 3), ("size", c_int64),
        ("trained", c_int32), ("reserved", c_int32),
    ]


class Coll(Struct):
    c_name = "tess_coll"
    _fields_ = [
        ("size", c_uint32), ("kind", c_int32), ("dtype", c_int32), ("op", c_int32), ("mem", c_int32), ("peer", c_int32),
        ("fingerprint", c_uint64), ("src", c_void_p), ("dst", c_void_p), ("count", c_uint64),
        ("send_counts", POINTER(c_uint64)), ("recv_counts", POINTER(c_uint64)), ("stream", c_void_p),
        ("deadline", c_int64), ("where", c_char_p),
    ]


class Place(Struct):
    c_name = "tess_place"
    _fields_ = [("kind", c_int32), ("dim", c_int32), ("op", c_int32), ("reserved", c_int32)]


class Storage(Struct):
    c_name = "tess_storage"
    _fields_ = [("kind", c_int32), ("dtype", c_int32), ("location", c_int32), ("reserved", c_int32)]


class ParamPlace(Struct):
    c_name = "tess_param_place"
    _fields_ = [("use", Place), ("rest", Storage), ("state", Storage)]


class Io(Struct):
    c_name = "tess_io"
    _fields_ = [("in", Place * CONSTANTS["TESS_NARGS"]), ("out", Place * CONSTANTS["TESS_NARGS"])]


class Site(Struct):
    c_name = "tess_site"
    _fields_ = [
        ("size", c_uint32), ("nranks", c_int32), ("training", c_int32), ("data", c_int32), ("host", c_void_p),
        ("module", c_char_p), ("kind", c_char_p), ("config", c_char_p), ("state", c_void_p), ("style", c_char_p),
    ]


class Param(Struct):
    c_name = "tess_param"
    _fields_ = [
        ("size", c_uint32), ("dtype", c_int32), ("ndim", c_int32), ("out_dim", c_int32), ("in_dim", c_int32),
        ("expert_dim", c_int32), ("name", c_char_p), ("shape", POINTER(c_int64)), ("units", POINTER(c_int64)),
        ("parts", POINTER(POINTER(c_int64))),
    ]


LAYOUT = CFUNCTYPE(c_int32, POINTER(Site), POINTER(Io))
PARTITION_PARAM = CFUNCTYPE(c_int32, POINTER(Site), POINTER(Param), POINTER(ParamPlace))


class Style(Struct):
    c_name = "tess_style"
    _fields_ = [
        ("size", c_uint32), ("begins_stage", c_int32), ("name", c_char_p), ("summary", c_char_p),
        ("aliases", POINTER(c_char_p)), ("layout", LAYOUT), ("partition_param", PARTITION_PARAM),
        ("prepare_input", c_void_p), ("prepare_output", c_void_p), ("open", c_void_p), ("close", c_void_p),
        ("expert_rows", c_int32), ("reserved", c_int32),
    ]


class Plugin(Struct):
    c_name = "tess_plugin"
    _fields_ = [
        ("abi", c_uint32), ("size", c_uint32), ("name", c_char_p), ("version", c_char_p), ("license", c_char_p),
        ("summary", c_char_p), ("needs", c_uint64), ("needs_nn", c_uint64), ("backends", c_void_p), ("devices", c_void_p),
        ("styles", POINTER(POINTER(Style))), ("models", c_void_p), ("options", c_void_p), ("init", c_void_p),
        ("quit", c_void_p),
    ]


class DtensorPart(Struct):
    c_name = "tess_dtensor_part"
    _fields_ = [("axis", c_int32), ("reserved", c_int32), ("size", c_int64), ("units", c_int64)]


class DtensorSpec(Struct):
    c_name = "tess_dtensor_spec"
    _fields_ = [
        ("size", c_uint32), ("dtype", c_int32), ("ndim", c_int32), ("nparts", c_int32), ("shape", POINTER(c_int64)),
        ("places", POINTER(Place)), ("parts", POINTER(DtensorPart)), ("name", c_char_p),
    ]


class Value(Struct):
    c_name = "tess_value"
    _fields_ = [
        ("size", c_uint32), ("dtype", c_int32), ("name", c_char_p), ("data", c_void_p), ("shape", c_int64 * CONSTANTS["TESS_DIMS"]),
        ("ndim", c_int32), ("reserved", c_int32), ("holders", c_char_p), ("styles", c_char_p),
    ]


class ValueComparison(Struct):
    c_name = "tess_value_comparison"
    _fields_ = [
        ("name", c_char_p), ("state", c_int32), ("rank", c_int32), ("row", c_int64), ("column", c_int64), ("a", c_double),
        ("b", c_double), ("ulps", c_uint64), ("ndifferent", c_int64), ("largest", c_double), ("allowed", c_double),
        ("styles", c_char_p),
    ]


class Comparison(Struct):
    c_name = "tess_comparison"
    _fields_ = [
        ("values", POINTER(POINTER(ValueComparison))), ("nvalues", c_int64), ("ncompared", c_int64), ("ndifferent", c_int64),
        ("first", c_int64), ("tolerance", c_double),
    ]


RANK_FUNCTION = CFUNCTYPE(c_int32, c_void_p, c_void_p)

P = c_void_p
STATUS = "tess_status"
# name: (result, arguments); STATUS: a failure is raised
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "tess_error": (c_char_p, []),
    "tess_fail": (c_int32, [c_int32, c_char_p]),  # and what the format names
    "tess_version": (c_char_p, []),
    "tess_crash_reports_enable": (STATUS, []),
    "tess_crash_reports_redirect": (STATUS, [c_int32]),
    "tess_option_get": (c_char_p, [c_char_p]),
    "tess_option_set": (STATUS, [c_char_p, c_char_p]),
    "tess_registry_add": (STATUS, [POINTER(Plugin)]),
    "tess_world_open": (STATUS, [POINTER(P)]),
    "tess_world_spawn": (STATUS, [c_int32, RANK_FUNCTION, P]),
    "tess_world_rank": (c_int32, [P]),
    "tess_world_size": (c_int32, [P]),
    "tess_world_backend": (c_char_p, [P]),
    "tess_world_fail": (None, [P, c_int32, c_char_p]),
    "tess_world_close": (None, [P]),
    "tess_world_group": (P, [P]),
    "tess_group_rank": (c_int32, [P]),
    "tess_group_size": (c_int32, [P]),
    "tess_group_member": (c_int32, [P, c_int32]),
    "tess_group_name": (c_char_p, [P]),
    "tess_group_split": (STATUS, [P, c_int32, c_int32, c_char_p, POINTER(P)]),
    "tess_group_close": (None, [P]),
    "tess_group_run": (STATUS, [P, POINTER(Coll)]),
    "tess_barrier": (STATUS, [P, c_char_p]),
    "tess_mesh_open": (STATUS, [P, c_char_p, POINTER(P)]),
    "tess_mesh_count_ranks": (STATUS, [c_char_p, POINTER(c_int32)]),
    "tess_mesh_group": (P, [P, c_char_p]),
    "tess_mesh_rank": (c_int32, [P, c_char_p]),
    "tess_mesh_close": (None, [P]),
    "tess_session_open": (STATUS, [P, c_char_p, POINTER(SessionOptions), POINTER(P)]),
    "tess_session_close": (None, [P]),
    "tess_session_get_info": (None, [P, POINTER(SessionInfo)]),
    "tess_session_check": (STATUS, [c_char_p, c_char_p, c_int32, POINTER(SessionOptions), POINTER(SessionInfo)]),
    "tess_session_generate": (STATUS, [P, POINTER(POINTER(Request)), c_int64, POINTER(Generation)]),
    "tess_tokenizer_open": (STATUS, [c_char_p, POINTER(P)]),
    "tess_tokenizer_close": (None, [P]),
    "tess_tokenizer_encode": (STATUS, [P, c_char_p, c_size_t, ctypes.c_bool, POINTER(P), POINTER(c_size_t)]),
    "tess_tokenizer_decode": (STATUS, [P, POINTER(c_int32), c_size_t, ctypes.c_bool, POINTER(P), POINTER(c_size_t)]),
    "tess_trainer_open": (STATUS, [P, c_char_p, POINTER(TrainerOptions), POINTER(P)]),
    "tess_trainer_close": (None, [P]),
    "tess_trainer_compute_gradients": (STATUS, [P, POINTER(Batch), c_int64, POINTER(TrainingResult)]),
    "tess_trainer_count_tensors": (c_int64, [P]),
    "tess_trainer_get_tensor": (POINTER(Trained), [P, c_int64]),
    "tess_trainer_gather": (STATUS, [P, c_int32, c_int64, c_int64, c_int64, c_int32, P]),
    "tess_strategy_read": (STATUS, [c_char_p, POINTER(POINTER(Strategy))]),
    "tess_strategy_free": (None, [POINTER(Strategy)]),
    "tess_strategy_check_ranks": (STATUS, [POINTER(Strategy), c_int32]),
    "tess_explain": (STATUS, [c_char_p, c_char_p, c_int32, c_int64, POINTER(SessionOptions), POINTER(P)]),
    "tess_explain_training": (STATUS, [c_char_p, c_char_p, c_int32, c_int64, c_int64, POINTER(TrainerOptions), POINTER(P)]),
    "tess_explanation_format": (STATUS, [P, c_int32, c_char_p, c_int64, POINTER(P)]),
    "tess_dtensor_from_local": (STATUS, [P, POINTER(DtensorSpec), P, POINTER(P)]),
    "tess_dtensor_distribute": (STATUS, [P, POINTER(DtensorSpec), c_int32, P, POINTER(P)]),
    "tess_dtensor_redistribute": (STATUS, [P, POINTER(Place), POINTER(P)]),
    "tess_dtensor_full": (STATUS, [P, P]),
    "tess_dtensor_local": (P, [P]),
    "tess_dtensor_get_spec": (POINTER(DtensorSpec), [P]),
    "tess_dtensor_get_local_shape": (STATUS, [P, c_int32, POINTER(c_int64)]),
    "tess_dtensor_list_ranges": (c_int64, [P, c_int32, c_int32, P, c_int64]),
    "tess_dtensor_free": (None, [P]),
    "tess_explanation_free": (None, [P]),
    "tess_session_take_values": (STATUS, [P, POINTER(P)]),
    "tess_trainer_take_values": (STATUS, [P, POINTER(P)]),
    "tess_values_new": (STATUS, [POINTER(P)]),
    "tess_values_add": (STATUS, [P, POINTER(Value)]),
    "tess_values_count": (c_int64, [P]),
    "tess_values_get": (STATUS, [P, c_int64, POINTER(Value)]),
    "tess_values_find": (c_int64, [P, c_char_p]),
    "tess_values_load": (STATUS, [c_char_p, POINTER(P)]),
    "tess_values_save": (STATUS, [P, c_char_p]),
    "tess_values_compare": (STATUS, [P, P, c_double, POINTER(POINTER(Comparison))]),
    "tess_values_free": (None, [P]),
    "tess_comparison_free": (None, [POINTER(Comparison)]),
}
