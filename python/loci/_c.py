# SPDX-License-Identifier: MIT
"""The C library: where it is, its structs, its functions.  Nothing else in the package knows ctypes' side of C."""

from __future__ import annotations

import ctypes as c
import os
import re
import struct
import sys
from typing import Any

VERSION = (0, 3)

PAGE = 64  # tables, work and caches start on as many bytes
BROADCAST = -(1 << (8 * c.sizeof(c.c_ssize_t) - 1))  # as a stride: the same numbers again and again
NONE = -1

F32, F64, BF16, F16 = range(4)
DTYPES = {"float32": F32, "float64": F64, "bfloat16": BF16, "float16": F16}
STORED = {"bfloat16": BF16, "float16": F16, "q8_0": 4}  # of keys and values beside queries of another type
SIZES = {F32: 4, F64: 8, BF16: 2, F16: 2}
STAGES = {"attention": 0, "rotate": 1, "embed": 2, "linear_attention": 3}
ROLES = ("learned", "fixed", "input")
SOURCES = ("other", "log gate", "keys", "states", "unit", "strength")
STATUS = ("ok", "bad_arg", "unsupported", "no_memory", "cancelled", "transport", "device")
PLACES = ("embed", "rotate", "score", "mix", "weight", "value", "state", "sum")
KINDS = ("number", "whole", "word", "list")
SEEN, ADDED = 1, 2  # kinds of masks
WHICH = {"query": 0, "key": 1, "cache": 2, "value": 3}
UNKNOWN = {-1: "batch", -2: "queries", -3: "keys"}  # in a tensor's shape

# What C calls something else.
WORDS = {
    "q_starts": "cu_seqlens_q",
    "k_starts": "cu_seqlens_k",
    "q_coord": "q_coords",
    "k_coord": "k_coords",
    "value_dim": "the width of v",
    "last: node": "node",
    "loci_tree_forward": "tree",
    "must be NULL": "must be None",
    "must not be NULL": "must not be None",
    "added to the embeddings, in stage embed": "added to the embeddings, by loci.embed() or loci.nn.Embedding",
}


class Error(ValueError):
    """An argument or problem that loci refuses, with the reason in one sentence.

    Parameters
    ----------
    text : str
        The sentence.
    status : str
        Kind of error: bad_arg, unsupported, no_memory and others.
    """

    status: str

    def __init__(self, text: str, status: str = "bad_arg") -> None:
        self.args = (text,)  # without super().__init__(), which torch.compile does not trace
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return (Error, (str(self), self.status))


# ---- Structs -------------------------------------------------------------------------------------


class View(c.Structure):
    _fields_ = [("data", c.c_void_p), ("batch", c.c_ssize_t), ("head", c.c_ssize_t), ("row", c.c_ssize_t)]


class CError(c.Structure):
    _fields_ = [("status", c.c_int), ("text", c.c_char * 512)]


class Tensor(c.Structure):
    _fields_ = [
        ("encoding", c.c_char_p),
        ("name", c.c_char_p),
        ("role", c.c_int),
        ("rank", c.c_int),
        ("shape", c.c_ssize_t * 5),
    ]


class Desc(c.Structure):
    _fields_ = [
        ("size", c.c_size_t),
        ("encoding", c.c_char_p),
        ("stage", c.c_int),
        ("heads", c.c_int),
        ("kv_heads", c.c_int),
        ("dim", c.c_int),
        ("value_dim", c.c_int),
        ("model_dim", c.c_int),
        ("dtype", c.c_int),
        ("fast", c.c_int),
        ("full", c.c_int),
        ("window_left", c.c_int64),
        ("window_right", c.c_int64),
        ("scale", c.c_double),
        ("max_len", c.c_ssize_t),
        ("keys_rotated", c.c_int),
        ("isa", c.c_char_p),
        ("tensors", c.POINTER(Tensor)),
        ("tensor_count", c.c_int),
        ("padding", c.c_int),
        ("k_dtype", c.c_int),
        ("v_dtype", c.c_int),
        ("values_in_keys", c.c_int),
    ]


RUN = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_void_p, c.c_void_p)
ASK = c.CFUNCTYPE(c.c_int, c.c_void_p)


class Host(c.Structure):
    _fields_ = [("run", c.c_void_p), ("cancelled", c.c_void_p), ("user", c.c_void_p), ("threads", c.c_int)]


class Pages(c.Structure):
    _fields_ = [("table", c.c_void_p), ("length", c.c_ssize_t), ("entry", c.c_ssize_t)]


class Tree(c.Structure):
    _fields_ = [
        ("size", c.c_size_t),
        ("entry", c.c_void_p),
        ("branch", c.c_void_p),
        ("room", c.c_ssize_t),
        ("nodes", c.c_void_p),
        ("parents", c.c_void_p),
    ]


class Call(c.Structure):
    _fields_ = [
        ("size", c.c_size_t),
        ("batch", c.c_ssize_t),
        ("q_len", c.c_ssize_t),
        ("k_len", c.c_ssize_t),
        ("q", View),
        ("k", View),
        ("v", View),
        ("o", View),
        ("lse", c.c_void_p),
        ("rem", c.c_void_p),
        ("ae", c.c_void_p),
        ("q_pos", c.c_void_p),
        ("k_pos", c.c_void_p),
        ("q_coord", c.c_void_p),
        ("k_coord", c.c_void_p),
        ("q_seg", c.c_void_p),
        ("k_seg", c.c_void_p),
        ("per_batch", c.c_int),
        ("k_lens", c.c_void_p),
        ("pages", c.POINTER(Pages)),
        ("cache", c.c_void_p),
        ("q_starts", c.c_void_p),
        ("k_starts", c.c_void_p),
        ("sequences", c.c_ssize_t),
        ("tensors", c.c_void_p),
        ("host", c.POINTER(Host)),
        ("error", c.POINTER(CError)),
        ("work_bytes", c.c_size_t),
        ("tables_bytes", c.c_size_t),
        ("k_first", c.c_void_p),
        ("k_last", c.c_void_p),
        ("mask_kind", c.c_int),
        ("mask", View),
        ("dropout", c.c_double),
        ("dropout_seed", c.c_uint64),
        ("dropout_offset", c.c_uint64),
        ("mask_key", c.c_ssize_t),
        ("q_lens", c.c_void_p),
    ]


class Grad(c.Structure):
    _fields_ = [
        ("size", c.c_size_t),
        ("dout", View),
        ("dlse", c.c_void_p),
        ("drem", c.c_void_p),
        ("dae", c.c_void_p),
        ("dq", View),
        ("dk", View),
        ("dv", View),
        ("dtensors", c.c_void_p),
        ("dmask", View),
    ]


class Option(c.Structure):
    _fields_ = [
        ("name", c.c_char_p),
        ("kind", c.c_int),
        ("required", c.c_int),
        ("default_value", c.c_double),
        ("min", c.c_double),
        ("max", c.c_double),
        ("words", c.c_char_p),
        ("help", c.c_char_p),
    ]


class Info(c.Structure):
    _fields_ = [
        ("name", c.c_char_p),
        ("cite", c.c_char_p),
        ("brief", c.c_char_p),
        ("places", c.c_int),
        ("causal_only", c.c_int),
        ("option_count", c.c_int),
        ("options", c.POINTER(Option)),
        ("tolerance", c.c_double),
        ("example", c.c_char_p),
    ]


class Layer(c.Structure):
    _fields_ = [
        ("size", c.c_size_t),
        ("dtype", c.c_int),
        ("batch", c.c_ssize_t),
        ("rows", c.c_ssize_t),
        ("heads", c.c_int),
        ("width", c.c_int),
        ("host", c.POINTER(Host)),
        ("error", c.POINTER(CError)),
    ]


class Rope(c.Structure):
    _fields_ = [
        ("encoding", c.c_char_p),
        ("attention", c.c_char_p),
        ("rotates", c.c_int),
        ("interleaved", c.c_int),
        ("head_dim", c.c_int),
        ("dim", c.c_int),
        ("offset", c.c_int),
        ("heads", c.c_int),
        ("base", c.c_double),
        ("frequency", c.POINTER(c.c_double)),
        ("attention_factor", c.c_double),
        ("softmax_factor", c.c_double),
        ("sections", c.c_int * 3),
        ("spread", c.c_int),
        ("layer", c.c_char_p),
        ("scaling", c.c_char_p),
        ("trained_length", c.c_double),
        ("warmth", c.c_double),
        ("warm_length", c.c_double),
        ("warm_shift", c.c_double),
        ("scale", c.c_double),
        ("softcap", c.c_double),
        ("sink", c.c_int),
        ("window", c.c_int64),
        ("chunk", c.c_int64),
        ("values", c.c_int),
        ("slopes", c.POINTER(c.c_double)),
        ("note", c.c_char_p),
    ]


class Share(c.Structure):
    _fields_ = [("first", c.c_int64), ("count", c.c_int64), ("rank", c.c_int)]


BEGIN = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int, c.c_int, c.c_void_p, c.c_size_t, c.POINTER(c.c_void_p))
END = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(c.c_void_p))
AGREE = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_int)


class Transport(c.Structure):
    _fields_ = [
        ("size", c.c_size_t),
        ("rank", c.c_int),
        ("ranks", c.c_int),
        ("send", BEGIN),
        ("receive", BEGIN),
        ("wait", END),
        ("test", END),
        ("highest", AGREE),
        ("user", c.c_void_p),
    ]


class ParallelReport(c.Structure):
    _fields_ = [
        ("size", c.c_size_t),
        ("attention", c.c_double),
        ("waited", c.c_double),
        ("sent", c.c_uint64),
        ("received", c.c_uint64),
    ]


class Parallel(c.Structure):
    _fields_ = [
        ("size", c.c_size_t),
        ("transport", c.POINTER(Transport)),
        ("shares", c.POINTER(Share)),
        ("key_shares", c.POINTER(Share)),
        ("count", c.c_int),
        ("key_count", c.c_int),
        ("gather", c.c_int),
        ("ahead", c.c_int),
        ("check_tables", c.c_int),
        ("report", c.POINTER(ParallelReport)),
    ]


class GpuInfo(c.Structure):
    _fields_ = [
        ("id", c.c_char * 32),
        ("name", c.c_char * 128),
        ("driver", c.c_char * 64),
        ("memory", c.c_uint64),
        ("units", c.c_int),
    ]


class GpuTables(c.Structure):
    _fields_ = [("host", c.c_void_p), ("device", c.c_void_p)]


class GpuCacheBytes(c.Structure):
    _fields_ = [("host", c.c_size_t), ("device", c.c_size_t)]


STRUCTS = {
    "loci_view": View,
    "loci_error": CError,
    "loci_tensor": Tensor,
    "loci_desc": Desc,
    "loci_host": Host,
    "loci_pages": Pages,
    "loci_tree": Tree,
    "loci_call": Call,
    "loci_grad": Grad,
    "loci_option": Option,
    "loci_encoding_info": Info,
    "loci_layer": Layer,
    "loci_rope": Rope,
    "loci_share": Share,
    "loci_transport": Transport,
    "loci_parallel_report": ParallelReport,
    "loci_parallel": Parallel,
    "loci_gpu_info": GpuInfo,
    "loci_gpu_tables": GpuTables,
    "loci_gpu_cache_bytes": GpuCacheBytes,
}

VIEWS = struct.Struct("@PnnnPnnnPnnnPnnn")  # q, k, v and o lie side by side in a call
VIEWS_AT = Call.q.offset
ADDRESS = struct.Struct("@P")
HOST_AT = Call.host.offset

# ---- The library ---------------------------------------------------------------------------------

_P, _I, _N, _Z, _D = c.c_void_p, c.c_int, c.c_ssize_t, c.c_size_t, c.c_double
_E = c.POINTER(CError)
_CALL = c.POINTER(Call)
_TREE = c.POINTER(Tree)
_LAYER = c.POINTER(Layer)
_ALL = c.POINTER(Parallel)

# name: result, arguments.  A result of None is a status.
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "plan_create": (_I, [c.POINTER(_P), c.POINTER(Desc), _E]),
    "plan_destroy": (None, [_P]),
    "plan_text": (c.c_char_p, [_P]),
    "axes": (_I, [_P]),
    "frequencies": (_I, [_P, _P, _I, c.POINTER(_D)]),
    "tensors": (_I, [_P, c.POINTER(Tensor), _I]),
    "tensor_source": (_I, [_P, _I]),
    "tensor_low": (_D, [_P, _I]),
    "tensor_init": (None, [_P, _I, c.c_uint64, _P]),
    "tables_size": (_Z, [_P, _N]),
    "prepare_on": (_I, [c.POINTER(Host), _P, _N, _P, _P, _E]),
    "pool_create": (_I, [c.POINTER(Host), _I]),
    "pool_create_openmp": (_I, [c.POINTER(Host), _I, _P]),
    "pool_destroy": (None, [c.POINTER(Host)]),
    "workspace": (_Z, [_P, _CALL, _I]),
    "forward": (_I, [_P, _P, _P, _CALL]),
    "backward": (_I, [_P, _P, _P, _CALL, c.POINTER(Grad)]),
    "weights": (_I, [_P, _P, _P, _CALL, View]),
    "rotate": (_I, [_P, _P, _P, _CALL, _I, View, View]),
    "rotate_backward": (_I, [_P, _P, _P, _CALL, _I, View, View, View, _P]),
    "linear_state": (_Z, [_P, _N]),
    "linear_forward": (_I, [_P, _P, _P, _CALL, _P, _P]),
    "linear_backward": (_I, [_P, _P, _P, _CALL, c.POINTER(Grad)]),
    "embed": (_I, [_P, _P, _CALL, View, View]),
    "embed_backward": (_I, [_P, _P, _P, _CALL, View, _P]),
    "encodings": (_I, [c.POINTER(c.POINTER(Info))]),
    "isas": (_I, [c.POINTER(c.c_char_p), _I]),
    "version": (_I, []),
    "version_text": (c.c_char_p, []),
    "share_out": (_I, [_I, c.c_int64, _I, c.POINTER(Share), _I]),
    "parallel_workspace": (_Z, [_P, _CALL, _ALL, _I]),
    "parallel_forward": (_I, [_P, _P, _P, _CALL, _ALL]),
    "parallel_backward": (_I, [_P, _P, _P, _CALL, c.POINTER(Grad), _ALL]),
    "parallel_decode_workspace": (_Z, [_P, _CALL, _ALL]),
    "parallel_decode": (_I, [_P, _P, _P, _CALL, _ALL]),
    "cache_size": (_Z, [_P, _N, _N]),
    "cache_create": (_I, [c.POINTER(_P), _P, _N, _N, _I, _P, _E]),
    "cache_open": (_I, [c.POINTER(_P), _P, _P, _Z, _E]),
    "cache_append": (_I, [_P, _P, _P, _P, _CALL]),
    "cache_length": (c.c_int64, [_P, _N]),
    "cache_truncate": (_I, [_P, _N, c.c_int64, _E]),
    "cache_remove": (_I, [_P, _P, _P, _P, _N, c.c_int64, c.c_int64, _CALL]),
    "cache_fork": (_I, [_P, _P, _P, _P, _N, _N, c.c_int64, _CALL]),
    "tree_paths": (_N, [_P, _N]),
    "tree_workspace": (_Z, [_P, _P, _TREE, _CALL]),
    "tree_forward": (_I, [_P, _P, _P, _P, _TREE, _CALL]),
    "tree_keep": (_I, [_P, _P, _P, _P, _TREE, _P, _CALL]),
    "rmsnorm": (_I, [_LAYER, View, _P, _D, View]),
    "rmsnorm_backward": (_I, [_LAYER, View, _P, _D, View, View, _P]),
    "shift": (_I, [_LAYER, View, View, _P, _I, _P, _P, View]),
    "shift_backward": (_I, [_LAYER, View, View, _P, _I, View, View, View]),
    "log_gate": (_I, [_LAYER, View, View]),
    "log_gate_backward": (_I, [_LAYER, View, View, View]),
    "gate": (_I, [_LAYER, _I, View, View, View]),
    "gate_backward": (_I, [_LAYER, _I, View, View, View, View, View]),
    "temperature": (_I, [_LAYER, _D, _D, _I, _P, _I, View, View]),
    "running_angles": (_I, [_LAYER, View, _P, _I, _P, _I, _P, _P, View]),
    "running_angles_backward": (_I, [_LAYER, View, _P, _I, _P, _I, View, _P, View, _P, _P]),
    "tape_start": (_I, [_LAYER, _D, _D, _P, _I, View]),
    "tape_attention_update": (_I, [_LAYER, _I, View, View, _P, View]),
    "tape_attention_update_backward": (_I, [_LAYER, _I, View, _P, View, View, _P]),
    "tape_mlp_update": (_I, [_LAYER, _I, View, View, _P, _P, View]),
    "tape_mlp_update_backward": (_I, [_LAYER, _I, View, View, _P, _P, View, View, View, _P, _P]),
}
UPLOAD, DOWNLOAD = 0, 1  # kinds of copies
_ON_DEVICE = [_P, c.POINTER(GpuTables), _P, _CALL]
GPU_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "gpu_devices": (_I, [c.POINTER(GpuInfo), _I]),
    "gpu_open": (_I, [c.POINTER(_P), c.c_char_p, _E]),
    "gpu_adopt": (_I, [c.POINTER(_P), c.c_char_p, _P, _P, _E]),
    "gpu_close": (None, [_P]),
    "gpu_alloc": (_I, [_P, _Z, c.POINTER(_P), _E]),
    "gpu_free": (None, [_P, _P]),
    "gpu_copy": (_I, [_P, _P, _P, _Z, _I, _E]),
    "gpu_wait": (_I, [_P, _E]),
    "gpu_plan_create": (_I, [c.POINTER(_P), _P, _P, _E]),
    "gpu_plan_destroy": (None, [_P]),
    "gpu_workspace": (_Z, [_P, _CALL, _I]),
    "gpu_forward": (_I, _ON_DEVICE),
    "gpu_backward": (_I, [*_ON_DEVICE, c.POINTER(Grad)]),
    "gpu_linear_forward": (_I, [*_ON_DEVICE, _P, _P]),
    "gpu_linear_backward": (_I, [*_ON_DEVICE, c.POINTER(Grad)]),
    "gpu_rotate": (_I, [*_ON_DEVICE, _I, View, View]),
    "gpu_rotate_backward": (_I, [*_ON_DEVICE, _I, View, View, View, _P]),
    "gpu_embed": (_I, [*_ON_DEVICE, View, View]),
    "gpu_embed_backward": (_I, [*_ON_DEVICE, View, _P]),
    "gpu_cache_size": (GpuCacheBytes, [_P, _N, _N]),
    "gpu_cache_create": (_I, [c.POINTER(_P), _P, _N, _N, _I, _P, _P, _E]),
    "gpu_cache_append": (_I, [_P, c.POINTER(GpuTables), _P, _P, _CALL]),
    "gpu_cache_remove": (_I, [_P, c.POINTER(GpuTables), _P, _P, _N, c.c_int64, c.c_int64, _CALL]),
    "gpu_cache_fork": (_I, [_P, _P, _N, _N, c.c_int64, _E]),
    "gpu_tree_workspace": (_Z, [_P, _P, _TREE, _CALL]),
    "gpu_tree_forward": (_I, [_P, c.POINTER(GpuTables), _P, _P, _TREE, _CALL]),
    "gpu_tree_keep": (_I, [_P, _P, _TREE, _P, _CALL]),
}
FILE_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "model_open": (_I, [c.POINTER(_P), c.c_char_p, _E]),
    "model_parse": (_I, [c.POINTER(_P), c.c_char_p, _Z, _E]),
    "model_close": (None, [_P]),
    "model_layers": (_I, [_P]),
    "model_type": (c.c_char_p, [_P]),
    "model_rope": (_I, [_P, _I, _D, c.POINTER(Rope), _E]),
    "rope_free": (None, [c.POINTER(Rope)]),
}
LAB_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "lab_open": (_I, [c.POINTER(_P), c.c_char_p, _I, c.c_char_p, _E]),
    "lab_close": (None, [_P]),
    "lab_set": (_I, [_P, c.c_char_p, _D, _E]),
    "lab_check": (_I, [_P, _E]),
    "lab_about": (_Z, [_P, c.c_char_p, _Z]),
    "lab_train": (_I, [_P, c.c_uint64, c.c_int64, _I, _P, _P, _P, _E]),
    "lab_test": (_I, [_P, _I, _I, _I, _P, _P, _P, _E]),
    "lab_validation": (_I, [_P, _I, _I, _I, _P, _P, _P, _E]),
    "lab_show": (None, [_P, _I, c.c_char_p]),
    "lab_normal": (None, [c.c_uint64, c.c_char_p, _D, _N, _P]),
}


def _file_of(name: str) -> str:
    if sys.platform == "win32":
        return f"{name}.dll"
    return f"lib{name}.0.dylib" if sys.platform == "darwin" else f"lib{name}.so.0"


def _find() -> str:
    """The library's file: what LOCI_LIBRARY says, or the one that came with the package."""
    told = os.environ.get("LOCI_LIBRARY")
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_lib", _file_of("loci"))
    if told:
        if os.path.isfile(told):
            return told
        raise ImportError(f"LOCI_LIBRARY is {told}, where no file is")
    if os.path.isfile(own):
        return own
    raise ImportError(f"there is no libloci: LOCI_LIBRARY is not set, and {own} is not there")


def _load(path: str, functions: dict[str, tuple[Any, list[Any]]]) -> Any:
    """The library with its functions by their names, without loci_ in front."""
    try:
        library = c.CDLL(path)
    except OSError as error:
        raise ImportError(f"{path} cannot be loaded: {error}") from None
    for name, (result, arguments) in functions.items():
        try:
            function = getattr(library, "loci_" + name)
        except AttributeError:
            raise ImportError(f"{path} has no loci_{name}: it is no libloci {VERSION[0]}.{VERSION[1]}") from None
        function.restype, function.argtypes = result, arguments
        setattr(library, name, function)
    return library


path = _find()
lib = _load(path, {name: FUNCTIONS[name] for name in ("version", "version_text")})
if (lib.version() // 10000, lib.version() // 100 % 100) != VERSION:
    raise ImportError(f"libloci {lib.version_text().decode()} at {path} does not fit loci {VERSION[0]}.{VERSION[1]}")
lib = _load(path, FUNCTIONS)

_beside: dict[str, Any] = {}


def beside(name: str, functions: dict[str, tuple[Any, list[Any]]], missing: str) -> Any:
    """Another library, which lies beside libloci; it is loaded when somebody asks."""
    if name not in _beside:
        file = os.path.join(os.path.dirname(path), re.sub(r"^(lib)?loci", rf"\g<1>{name}", os.path.basename(path)))
        if not os.path.isfile(file):
            raise Error(f"this build of loci {missing}", "unsupported")
        _beside[name] = _load(file, functions)
    return _beside[name]


def files() -> Any:
    """loci-io."""
    return beside("loci-io", FILE_FUNCTIONS, "does not read models' files")


def lab() -> Any:
    """loci-lab."""
    return beside("loci-lab", LAB_FUNCTIONS, "has no sequences of the lab")


def gpu() -> Any:
    """loci-gpu, which LOCI_GPU_LIBRARY may name."""
    told = os.environ.get("LOCI_GPU_LIBRARY")
    if told and "loci-gpu" not in _beside:
        _beside["loci-gpu"] = _load(told, GPU_FUNCTIONS)
    return beside("loci-gpu", GPU_FUNCTIONS, "has no devices but the CPU")


# ---- Errors --------------------------------------------------------------------------------------


def _in_python(text: str) -> str:
    return re.sub("|".join(WORDS), lambda m: WORDS[m.group()], text)


def failure(status: int, error: CError) -> Error:
    """What a call has said."""
    text = error.text.decode(errors="replace")
    if not text:  # a call's struct was used by two threads, so that another one was told
        text = f"the call failed ({STATUS[status]}) while another thread used the same object, which is one thread's"
    return Error(_in_python(text), STATUS[status])


def check(status: int, error: CError) -> None:
    if status:
        raise failure(status, error)


def address(buffer: Any) -> int:
    """Where a ctypes object is."""
    return c.addressof(buffer)
