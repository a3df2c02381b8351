# SPDX-License-Identifier: MIT
"""Plans, tables, workspaces and threads.  No library of arrays is known here but numpy, which holds bytes."""

from __future__ import annotations

import ctypes as c
import functools
import itertools
import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _c, _gpu, _html, _table_memo
from ._arrays import read_placed
from ._c import Error
from ._numbers import INT, real, scale_of, whole, whole_or_none, window_of
from ._types import ArrayLike, DTypeLike, Tensors

# ---- Memory --------------------------------------------------------------------------------------

KEPT = 256 << 20  # bytes of a workspace that stays for the next call


def aligned(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes that start where tables, workspaces and caches may."""
    room = np.empty(size + _c.PAGE, np.uint8)
    start = -room.ctypes.data % _c.PAGE
    return room[start : start + size]


class _Thread(threading.local):
    """What each thread has of its own: where errors are said, and memory to work in."""

    def __init__(self) -> None:
        self.error = _c.CError()
        self.error_at = c.pointer(self.error)
        self.bytes: Any = None
        self.size = 0
        self.at = 0

    def work(self, size: int) -> int:
        """The address of a workspace of so many bytes, for one call."""
        if size > self.size:
            self.bytes = aligned(size)
            self.size, self.at = size, self.bytes.ctypes.data
        return self.at

    def done(self) -> None:
        """A large one is not kept."""
        if self.size > KEPT:
            self.release()

    def release(self) -> None:
        self.bytes, self.size, self.at = None, 0, 0


thread = _Thread()

# ---- Threads -------------------------------------------------------------------------------------

POOLS = 4  # that stay for later calls, each of another number of threads
_lock = threading.Lock()
_pools: dict[tuple[int, bool], Any] = {}  # by threads, and whether they are torch's
_serials = itertools.count(1)
_told: int | None = None


def _threads_of_environment() -> int | None:
    text = os.environ.get("LOCI_NUM_THREADS")
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise Error(f"LOCI_NUM_THREADS must be a whole number from 1 on, not '{text}'")
    return int(text)


_ENVIRONMENT = _threads_of_environment()


def set_num_threads(threads: int) -> None:
    """Set how many threads a call may use. The environment variable LOCI_NUM_THREADS takes precedence.

    Parameters
    ----------
    threads : int
        From 1 to 256.
    """
    global _told
    _told = whole(threads, "threads", 1, 256)


def get_num_threads() -> int:
    """Return how many threads a call may use.

    The first of: LOCI_NUM_THREADS, the number given to `set_num_threads()`, torch's number if torch is loaded, the
    CPUs of this process.

    Returns
    -------
    int
        From 1 to 256.
    """
    if _ENVIRONMENT is not None:
        return _ENVIRONMENT
    if _told is not None:
        return _told
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return min(int(torch.get_num_threads()), 256)
    try:
        return min(len(os.sched_getaffinity(0)), 256)
    except AttributeError:
        return min(os.cpu_count() or 1, 256)


class _Pool(_c.Host):
    """Threads that C has started.  They end with the last reference, and each call that uses them holds one: ctypes
    keeps what a call's `host` points to."""

    def __del__(self) -> None:
        if _c is not None:  # modules may be gone when the interpreter ends
            _c.lib.pool_destroy(c.byref(self))


_forked = False


@functools.cache
def _openmp() -> Any:
    """GOMP_parallel() of the OpenMP runtime that this process has loaded for torch, or None."""
    try:
        return c.cast(c.CDLL(None).GOMP_parallel, c.c_void_p)
    except (AttributeError, OSError):
        return None


def torch_runs(threads: int) -> bool:
    """Whether a call may run on torch's threads: they spin after each of its operations, for longer than a short call
    takes, and others would wait for a core meanwhile.  OpenMP's threads do not survive a fork, and its runtime may hang
    in the child."""
    torch = sys.modules.get("torch")
    if torch is None or _forked or os.name != "posix" or not hasattr(torch, "get_num_threads"):
        return False
    if threads != torch.get_num_threads() or not torch.backends.openmp.is_available():
        return False
    return _openmp() is not None


def _start(threads: int, openmp: bool) -> Any:
    pool = _Pool()
    if openmp:
        status = _c.lib.pool_create_openmp(c.byref(pool), threads, _openmp())
    else:
        status = _c.lib.pool_create(c.byref(pool), threads)
    if status:
        raise Error(f"{threads} threads cannot be started", _c.STATUS[status])
    pointer: Any = c.POINTER(_c.Host)(pool)
    pointer.serial = next(_serials)  # unlike an address, it is never used again
    return pointer


def host() -> Any:
    """The pool of as many threads, or None for the calling thread alone.  Hold it for as long as a call runs."""
    threads = get_num_threads()
    if threads == 1:
        return None
    return pool_of(threads, torch_runs(threads))


def pool_of(threads: int, openmp: bool) -> Any:
    """A pool of threads of its own, or of torch's."""
    pool = _pools.get((threads, openmp))
    if pool is None:
        dropped = []  # destroyed when this function returns, without the lock
        with _lock:
            pool = _pools.get((threads, openmp))
            if pool is None:
                while len(_pools) >= POOLS:
                    dropped.append(_pools.pop(next(iter(_pools))))
                pool = _pools[threads, openmp] = _start(threads, openmp)
    return pool


def _forget_pools() -> None:
    """Threads do not survive a fork, and a lock may have been held by one of them."""
    global _lock, _forked
    _lock = threading.Lock()
    _forked = True
    _pools.clear()
    _forget_locks()
    _table_memo.forget_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)


def release() -> None:
    """Free threads, this thread's workspace, plans and tables that loci holds between calls. Running calls are not
    affected.
    """
    thread.release()
    with _lock:
        pools = list(_pools.values())
        _pools.clear()
    del pools  # without the lock
    _gpu.release()
    _table_memo.release()
    with _kept_lock:
        _plans.clear()
        _forms.clear()


# ---- Descriptions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tensor:
    """A tensor that an encoding learns or reads.

    Attributes
    ----------
    name : str
        Name with the encoding in front, such as `"t5.table"`.
    role : {"learned", "fixed", "input"}
        Learned in training, fixed after `Plan.init()`, or given with each call.
    shape : tuple of int or None
        None is a size that each call decides: batch, queries or keys.
    source : {"other", "log gate", "keys", "states", "unit", "strength"}
        What a layer makes an input of: log sigmoid of a number per head and key, a projection in the shape of keys, or
        states that go from layer to layer.
    low : float
        The least value that training keeps a learned tensor at, by clamping after each step.
    """

    name: str
    role: str
    shape: tuple[int | None, ...]
    source: str = field(default="other", repr=False)
    low: float = field(default=-math.inf, repr=False)


def dtype_name(dtype: Any) -> str:
    """float32 and the like, from a name or a dtype of numpy or torch."""
    text = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or str(dtype)
    if not isinstance(text, str) or isinstance(dtype, type):
        try:
            text = np.dtype(dtype).name
        except TypeError:
            raise TypeError(f"a dtype is a name or a dtype of numpy or torch, not {dtype!r}") from None
    text = text.removeprefix("torch.")
    if text not in _c.DTYPES:
        raise Error(f"dtype must be one of {', '.join(_c.DTYPES)}, not {text}")
    return text


def stored_name(dtype: Any, own: str, what: str) -> str:
    """The type that keys or values are stored in; None is that of queries."""
    if dtype is None:
        return own
    name = dtype if isinstance(dtype, str) and dtype in _c.STORED else dtype_name(dtype)
    if name != own and name not in _c.STORED:
        raise Error(f"{what} must be one of {', '.join(_c.STORED)}, or {own} as queries are, not {name}")
    return name


def window(window_size: Sequence[int], causal: bool) -> tuple[int, int]:
    """flash-attention's (left, right), -1 being open and 0 the own position, as C says it."""
    left, right = window_of(window_size)

    def as_c(distance: int) -> int:
        return _c.NONE if distance == 0 else max(distance, 0)

    # With a causal mask nothing lies ahead, whatever is said of it.
    return as_c(left), 0 if causal else as_c(right)


SINKS = "sink.logit"  # the tensor that the argument sinks= is


def full_text(encoding: str, softcap: float | None, sinks: bool) -> str:
    """The encoding with what is short for more of it."""
    if not isinstance(encoding, str):
        raise TypeError(f"encoding must be a text such as 'rope:pairing=half', not {type(encoding).__name__}")
    text = encoding
    cap = 0.0 if softcap is None else real(softcap, "softcap")
    if cap:  # of the product, so it stands before what is added; 0 is none, as in flash-attention
        text = f"softcap:cap={cap!r}+{text}"
    return text + "+sink" if sinks else text


class Plan:
    """A problem of attention, validated once: encoding, sizes, options and tensors.

    A plan is immutable, and threads may share it. Pass it as `encoding`, or call its methods.

    Parameters
    ----------
    encoding : str
        Name and options of one or more encodings, such as `"rope:pairing=half+alibi"`.
    heads : int
        Number of query heads. 0 for stage `embed`.
    dim : int
        Width of queries and keys of one head. 0 for stage `embed`.
    kv_heads : int, optional
        Number of key and value heads. By default `heads`.
    value_dim : int, optional
        Width of values of one head. By default `dim`.
    model_dim : int, optional
        Width of hidden states, for encodings that depend on it and for stage `embed`.
    dtype : str or dtype
        Type of rows: float32, float64, bfloat16 or float16.
    stage : {"attention", "linear_attention", "rotate", "embed"}
        Which function the plan is for.
    causal : bool
        Hide later keys from each row. The last row is aligned with the last key.
    window_size : (int, int)
        Keys that a row sees to its left and right. -1 leaves a side open; 0 is the own position only.
    scale : float, optional
        Factor on the product of q and k. None is the encoding's own, by default 1/sqrt(dim). 0 is refused.
    max_len : int, optional
        Context length, for encodings whose rule depends on one.
    keys_rotated : bool
        k is rotated by its positions already, as `rotate(k, role="cache")` returns it.
    fast : bool
        For bfloat16 only: use the CPU's bf16 dot products where it has them. Bits then differ.
    isa : str, optional
        Instruction set, one of `loci.isas()`. By default the best one. Results do not depend on it.
    k_dtype : str or dtype, optional
        Type in which a cache stores keys: bfloat16, float16 or `"q8_0"`. By default `dtype`. No gradients then.
    v_dtype : str or dtype, optional
        The same for values.
    values_in_keys : bool
        Values are the first `value_dim` channels of the keys, which no rotation changes, as in latent attention. v is
        then None, a cache stores keys alone, and there are no gradients.
    shapes : mapping of str to sequence of int, optional
        Shapes of tensors that differ from the usual ones, by name. -1, -2 and -3 are batch, queries and keys.

    Raises
    ------
    Error
        No such problem exists: the sentence says which option or size is wrong.

    Examples
    --------
    >>> import loci
    >>> plan = loci.Plan("t5:bidirectional=0", heads=8, dim=64)
    >>> plan.tensors
    (Tensor(name='t5.table', role='learned', shape=(32, 8)),)
    >>> tensors = plan.init(seed=1)
    """

    def __init__(
        self,
        encoding: str,
        heads: int = 0,
        dim: int = 0,
        *,
        kv_heads: int | None = None,
        value_dim: int | None = None,
        model_dim: int | None = None,
        dtype: DTypeLike = "float32",
        stage: str = "attention",
        causal: bool = True,
        window_size: Sequence[int] = (-1, -1),
        scale: float | None = None,
        max_len: int | None = None,
        keys_rotated: bool = False,
        fast: bool = False,
        isa: str | None = None,
        k_dtype: DTypeLike | None = None,
        v_dtype: DTypeLike | None = None,
        values_in_keys: bool = False,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        if not isinstance(encoding, str):
            raise TypeError(f"encoding must be a text such as 'rope:pairing=half', not {type(encoding).__name__}")
        if stage not in _c.STAGES:
            raise Error(f"stage must be one of {', '.join(_c.STAGES)}, not '{stage}'")
        heads, dim = whole(heads, "heads", 0, INT), whole(dim, "dim", 0, INT)
        kv_heads = whole_or_none(kv_heads, "kv_heads", high=INT)
        value_dim = whole_or_none(value_dim, "value_dim", high=INT)
        model_dim = whole_or_none(model_dim, "model_dim", high=INT)
        max_len, scale, window_size = whole_or_none(max_len, "max_len"), scale_of(scale), window_of(window_size)
        if values_in_keys:
            if value_dim is None or value_dim > dim:
                raise Error(
                    f"value_dim must be from 1 to dim {dim}, not {value_dim}: values_in_keys makes so many channels of "
                    "keys values"
                )
            v_dtype = k_dtype if v_dtype is None else v_dtype
        self._arguments = {
            "encoding": encoding,
            "heads": heads,
            "dim": dim,
            "kv_heads": kv_heads,
            "value_dim": value_dim,
            "model_dim": model_dim,
            "dtype": dtype_name(dtype),
            "stage": stage,
            "causal": bool(causal),
            "window_size": window_size,
            "scale": scale,
            "max_len": max_len,
            "keys_rotated": bool(keys_rotated),
            "fast": bool(fast),
            "isa": isa,
            "k_dtype": stored_name(k_dtype, dtype_name(dtype), "k_dtype"),
            "v_dtype": stored_name(v_dtype, dtype_name(dtype), "v_dtype"),
            "values_in_keys": bool(values_in_keys),
            "shapes": None if shapes is None else {name: tuple(shape) for name, shape in shapes.items()},
        }
        self.encoding, self.stage, self.dtype = encoding, stage, dtype_name(dtype)
        self.real = "float64" if self.dtype == "float64" else "float32"  # of tensors, lse and the like
        self.causal, self.fast, self.isa = bool(causal), bool(fast), isa
        self.k_dtype = stored_name(k_dtype, self.dtype, "k_dtype")
        self.v_dtype = stored_name(v_dtype, self.dtype, "v_dtype")
        self.values_in_keys = bool(values_in_keys)
        if values_in_keys and self.v_dtype != self.k_dtype:
            raise Error(f"v_dtype must be {self.k_dtype} or left out: values_in_keys makes channels of keys values")
        left, right = window(window_size, bool(causal))
        listed = _listed(shapes)
        desc = _c.Desc(
            size=c.sizeof(_c.Desc),
            encoding=encoding.encode(),
            stage=_c.STAGES[stage],
            heads=heads,
            kv_heads=kv_heads or 0,
            dim=dim,
            value_dim=value_dim or 0,
            model_dim=model_dim or 0,
            dtype=_c.DTYPES[self.dtype],
            fast=fast,
            full=not causal,
            window_left=left,
            window_right=right,
            scale=scale or 0,
            max_len=max_len or 0,
            keys_rotated=keys_rotated,
            isa=None if isa is None else isa.encode(),
            tensors=listed,
            tensor_count=0 if listed is None else len(listed),
            k_dtype=0 if self.k_dtype == self.dtype else _c.STORED[self.k_dtype],
            v_dtype=0 if self.v_dtype == self.dtype else _c.STORED[self.v_dtype],
            values_in_keys=self.values_in_keys,
        )
        self._handle: Any = None
        self.there: dict[Any, Any] = {}  # on devices: see _gpu.py
        handle = c.c_void_p()
        _c.check(_c.lib.plan_create(c.byref(handle), c.byref(desc), thread.error_at), thread.error)
        self._handle = handle
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.dim, self.value_dim, self.model_dim = dim, value_dim or dim, model_dim or 0
        self.text: str = _c.lib.plan_text(handle).decode()
        self.axes: int = _c.lib.axes(handle)
        self.tensors, self.sizes = self._tensors()
        self.prepares = any(t.role != "input" for t in self.tensors)  # do tables depend on tensors?
        self._tables: dict[int, Any] = {}
        self._serial = next(_serials)
        each = np.dtype(self.real).itemsize
        self._bytes = [
            0 if t.role == "input" else math.prod(size or 0 for size in t.shape) * each for t in self.tensors
        ]
        self.weighs = acts_on(encoding, "weight")  # rem and no lse
        self.averages = acts_on(encoding, "state")  # and ae

    def __del__(self) -> None:
        # when the interpreter ends, modules may be gone before the last plan is
        if getattr(self, "_handle", None) is not None and _c is not None:
            self.there.clear()
            _c.lib.plan_destroy(self._handle)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, (self._arguments,))

    def __repr__(self) -> str:
        return f"loci.Plan({self.text!r})"

    def _repr_html_(self) -> str:
        return _html.plan(self)

    def _tensors(self) -> tuple[tuple[Tensor, ...], tuple[tuple[str | int, ...], ...]]:
        """The tensors, and their sizes with words for those that a call decides."""
        count = _c.lib.tensors(self._handle, None, 0)
        room = (_c.Tensor * max(count, 1))()
        _c.lib.tensors(self._handle, room, count)
        tensors, sizes = [], []
        for i, t in enumerate(room[:count]):
            own = tuple(_c.UNKNOWN[size] if size < 0 else int(size) for size in t.shape[: t.rank])
            name = f"{t.encoding.decode()}.{t.name.decode()}"
            shape = tuple(None if isinstance(z, str) else z for z in own)
            source, low = _c.SOURCES[_c.lib.tensor_source(self._handle, i)], _c.lib.tensor_low(self._handle, i)
            tensors.append(Tensor(name, _c.ROLES[t.role], shape, source, low))
            sizes.append(own)
        return tuple(tensors), tuple(sizes)

    def init(self, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
        """Create learned and fixed tensors with the initial values of the encodings' papers.

        Parameters
        ----------
        seed : int
            Seed of the random numbers.

        Returns
        -------
        dict of str to numpy.ndarray
            float32, or float64 for a plan of float64.
        """
        made, seed = {}, whole(seed, "seed", 0, (1 << 64) - 1)
        for i, t in enumerate(self.tensors):
            if t.role == "input":
                continue
            x = np.empty(tuple(size or 0 for size in t.shape), self.real)
            _c.lib.tensor_init(self._handle, i, seed, x.ctypes.data)
            made[t.name] = x
        return made

    @property
    def frequencies(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Radians per position of each pair, after any scaling. Empty without rotation or if they are learned."""
        return self._frequencies()[0]

    @property
    def attention_factor(self) -> float:
        """Factor that a scaling of rope puts on rotated q and k; 1 without one."""
        return self._frequencies()[1]

    def _frequencies(self) -> tuple[np.ndarray[Any, np.dtype[np.float64]], float]:
        factor = c.c_double(1)
        count = _c.lib.frequencies(self._handle, None, 0, c.byref(factor))
        list_ = np.empty(count)
        _c.lib.frequencies(self._handle, list_.ctypes.data, count, c.byref(factor))
        return list_, factor.value if count else 1.0

    # ---- Calls ---------------------------------------------------------------------------------

    def prepared(self, tensors: Tensors | None = None, *, max_distance: int) -> Prepared:
        """Precompute tables from learned and fixed tensors.

        Pass the result as `tensors` to later calls. Tables are computed again after torch tensors have changed in
        place; numpy arrays are copied.

        Parameters
        ----------
        tensors : mapping of str to array, optional
            Tensors that the encoding learns or reads, by name (`"t5.table"`). `Plan.tensors` lists names and
            shapes.
        max_distance : int
            Largest distance between two positions in later calls.

        Returns
        -------
        Mapping
            The tensors by name, with their tables.
        """
        return Prepared(self, tensors or {}, max_distance)

    def _call(self, function: str, arrays: tuple[Any, ...], tensors: Any, left: dict[str, Any]) -> Any:
        import loci

        for name in left:
            if name in self._arguments or name in ("softcap", "sinks"):
                raise Error(f"{name} has been decided by the plan")
        return getattr(loci, function)(*arrays, self, tensors=tensors, **left)

    def attention(
        self, q: ArrayLike, k: ArrayLike, v: ArrayLike | None = None, tensors: Tensors | None = None, **left: Any
    ) -> Any:
        """Call `loci.attention()` with this plan.

        Parameters
        ----------
        q : array [batch, heads, rows, dim]
            Queries, in the order of axes that `layout` says.
        k : array [batch, kv_heads, keys, dim]
            Keys. `heads` is a multiple of `kv_heads`.
        v : array [batch, kv_heads, keys, value_dim]
            Values. None if the plan has `values_in_keys`.
        tensors : mapping of str to array, optional
            Tensors that the encoding learns or reads, by name (`"t5.table"`). `Plan.tensors` lists names and
            shapes.
        **left
            Options of the function of the same name that the plan has not decided.

        Returns
        -------
        array or tuple
            As `loci.attention()`.
        """
        return self._call("attention", (q, k, v), tensors, left)

    def weights(self, q: ArrayLike, k: ArrayLike, tensors: Tensors | None = None, **left: Any) -> Any:
        """Call `loci.weights()` with this plan.

        Parameters
        ----------
        q : array [batch, heads, rows, dim]
            Queries, in the order of axes that `layout` says.
        k : array [batch, kv_heads, keys, dim]
            Keys. `heads` is a multiple of `kv_heads`.
        tensors : mapping of str to array, optional
            Tensors that the encoding learns or reads, by name (`"t5.table"`). `Plan.tensors` lists names and
            shapes.
        **left
            Options of the function of the same name that the plan has not decided.

        Returns
        -------
        array
            As `loci.weights()`.
        """
        return self._call("weights", (q, k), tensors, left)

    def linear_attention(
        self, q: ArrayLike, k: ArrayLike, v: ArrayLike, tensors: Tensors | None = None, **left: Any
    ) -> Any:
        """Call `loci.linear_attention()` with this plan.

        Parameters
        ----------
        q : array [batch, heads, rows, dim]
            Queries, in the order of axes that `layout` says.
        k : array [batch, kv_heads, keys, dim]
            Keys. `heads` is a multiple of `kv_heads`.
        v : array [batch, kv_heads, keys, value_dim]
            Values.
        tensors : mapping of str to array, optional
            Tensors that the encoding learns or reads, by name (`"t5.table"`). `Plan.tensors` lists names and
            shapes.
        **left
            Options of the function of the same name that the plan has not decided.

        Returns
        -------
        array or tuple
            As `loci.linear_attention()`.
        """
        return self._call("linear_attention", (q, k, v), tensors, left)

    def rotate(self, x: ArrayLike, tensors: Tensors | None = None, **left: Any) -> Any:
        """Call `loci.rotate()` with this plan.

        Parameters
        ----------
        x : array [batch, heads, rows, dim]
            Queries, keys or values.
        tensors : mapping of str to array, optional
            Tensors that the encoding learns or reads, by name (`"t5.table"`). `Plan.tensors` lists names and
            shapes.
        **left
            Options of the function of the same name that the plan has not decided.

        Returns
        -------
        array
            As `loci.rotate()`.
        """
        return self._call("rotate", (x,), tensors, left)

    def embed(self, x: ArrayLike, tensors: Tensors | None = None, **left: Any) -> Any:
        """Call `loci.embed()` with this plan.

        Parameters
        ----------
        x : array [batch, rows, width]
            Hidden states.
        tensors : mapping of str to array, optional
            Tensors that the encoding learns or reads, by name (`"t5.table"`). `Plan.tensors` lists names and
            shapes.
        **left
            Options of the function of the same name that the plan has not decided.

        Returns
        -------
        array
            As `loci.embed()`.
        """
        return self._call("embed", (x,), tensors, left)

    def options(self) -> dict[str, Any]:
        """Return the options of the plan as keywords of `loci.attention()`.

        Returns
        -------
        dict
            causal, window_size, scale, max_len, keys_rotated and fast.
        """
        names = ("causal", "window_size", "scale", "max_len", "keys_rotated", "fast")
        return {name: self._arguments[name] for name in names}

    def fits(self, stage: str, dtype: str, name: str, **sizes: int) -> None:
        """Check that arrays belong to this plan.

        Parameters
        ----------
        stage : str
            Stage of the call.
        dtype : str
            Type of the arrays.
        name : str
            Name of the first array, for the error.
        **sizes
            Sizes of the arrays by attribute of the plan, such as heads=8.

        Raises
        ------
        Error
            Stage, type or a size differs.
        """
        if stage != self.stage:
            raise Error(f"the plan is one for stage {self.stage}, and this is {stage}")
        if dtype != self.dtype:
            raise Error(f"{name} is {dtype} and the plan {self.dtype}")
        if (self.k_dtype, self.v_dtype) != (dtype, dtype):
            raise Error(f"the plan stores keys as {self.k_dtype} and values as {self.v_dtype}, as only loci.Cache can")
        for size, have in sizes.items():
            if have != getattr(self, size):
                raise Error(f"the arrays have {size} {have} and the plan {getattr(self, size)}")

    # ---- Tables --------------------------------------------------------------------------------

    def tables(self, distance: int, pointers: object) -> Tables:
        """Return tables for distances up to this one. Without tensors they are cached, for the next power of two.
        Those of tensors are cached if calls have the same tensors again.

        Parameters
        ----------
        distance : int
            Largest distance between two positions.
        pointers : ctypes array or None
            Addresses of learned and fixed tensors.

        Returns
        -------
        Tables
            Memory that C reads.
        """
        if self.prepares:
            if _c.lib.tables_size(self._handle, distance) < _table_memo.SMALL:
                return Tables(self, distance, pointers)
            addresses: Any = pointers
            given = [(at or 0, size if at else 0) for at, size in zip(addresses, self._bytes, strict=True)]
            found: Tables = _table_memo.find(self._serial, distance, given, lambda: Tables(self, distance, pointers))
            return found
        rounded = 512
        while rounded < distance:
            rounded *= 2
        tables = self._tables.get(rounded)
        if tables is None:
            tables = self._tables[rounded] = Tables(self, rounded, pointers)
        return tables


class Tables:
    """What learned and fixed tensors become."""

    __slots__ = ("at", "bytes", "distance", "size", "there")

    def __init__(self, plan: Plan, distance: int, pointers: Any) -> None:
        self.size = _c.lib.tables_size(plan._handle, distance)
        if not self.size:
            raise Error(f"{plan.encoding}: tables for distances up to {distance} are too large", "no_memory")
        self.distance = distance
        self.there: dict[Any, Any] = {}  # copies in memory of devices: see _gpu.py
        self.bytes = aligned(self.size)
        self.at = self.bytes.ctypes.data
        status = _c.lib.prepare_on(host(), plan._handle, distance, pointers, self.at, thread.error_at)
        _c.check(status, thread.error)


class Prepared(Mapping[str, Any]):
    """The tensors of a plan, and its tables made of them.  Tables are made again after tensors of torch have changed in
    place.  Arrays of numpy do not tell whether they have: those are copied."""

    def __init__(self, plan: Plan, tensors: Mapping[str, Any], max_distance: int) -> None:
        self.plan, self._distance = plan, whole(max_distance, "max_distance", 1)
        self._tensors: dict[str, Any] = {}
        for name, x in tensors.items():
            kind, x = read_placed(x, name)
            self._tensors[name] = x if kind.version(x) is not None else kind.copy(x)
        self._made = self._prepare()

    def _versions(self) -> list[Any]:
        return [read_placed(x, name)[0].version(x) for name, x in self._tensors.items()]

    def _prepare(self) -> tuple[list[Any], Any, Tables]:
        from ._attend import read_tensors

        versions = self._versions()  # first: a change while tables are made makes them old
        made, pointers = read_tensors(self.plan, self._tensors)
        return versions, made, Tables(self.plan, self._distance, pointers)

    @property
    def tables(self) -> Tables:
        """Of the tensors as they are now."""
        if self._made[0] != self._versions():
            self._made = self._prepare()
        return self._made[2]

    def __getitem__(self, name: str) -> Any:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _restore(arguments: dict[str, Any]) -> Plan:
    return Plan(**arguments)


def _listed(shapes: Mapping[str, Sequence[int]] | None) -> Any:
    if shapes is None:
        return None
    list_ = (_c.Tensor * len(shapes))()
    for t, (name, shape) in zip(list_, shapes.items(), strict=True):
        encoding, _, own = name.partition(".")
        if not own or len(shape) > 5:
            raise Error(f"shapes: '{name}' must be ENCODING.NAME with at most 5 sizes")
        t.encoding, t.name, t.rank = encoding.encode(), own.encode(), len(shape)
        t.shape[: len(shape)] = [whole(size, name, low=-3) for size in shape]
    return list_


# ---- What is kept --------------------------------------------------------------------------------

MOST = 256  # of each kind
_kept_lock = threading.Lock()
_plans: dict[Any, Plan] = {}
_forms: dict[Any, Any] = {}  # of _attend.py


def _forget_locks() -> None:
    """Another thread may have held one when this process was forked."""
    global _kept_lock
    _kept_lock = threading.Lock()


def _find(there: dict[Any, Any], key: Any, make: Any) -> Any:
    """What is kept by this key, made if it is not there; of too many the one used longest ago goes."""
    with _kept_lock:
        found = there.pop(key, None)
        if found is not None:
            there[key] = found
            return found
    made = make()
    with _kept_lock:
        there[key] = made
        while len(there) > MOST:
            del there[next(iter(there))]
    return made


def find_plan(key: tuple[Any, ...], make: Any) -> Plan:
    plan: Plan = _find(_plans, key, make)
    return plan


def kept(key: tuple[Any, ...], make: Any) -> Any:
    """A form."""
    return _find(_forms, key, make)


# ---- What there is -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """An option of an encoding.

    Attributes
    ----------
    name : str
        Name in the text of an encoding.
    kind : str
        Kind of its value.
    required : bool
        It has no default and must be given.
    default : float, str or None
        Value if it is not given. None if it depends on other options.
    min : float
        Smallest value.
    max : float
        Largest value.
    words : tuple of str
        Values, if they are words.
    help : str
        One sentence.
    """

    name: str
    kind: str
    required: bool
    default: float | str | None
    min: float
    max: float
    words: tuple[str, ...]
    help: str


@dataclass(frozen=True)
class Encoding:
    """An encoding, and its options.

    Attributes
    ----------
    name : str
        Name in the text of an encoding.
    brief : str
        One sentence.
    cite : str
        Paper.
    places : tuple of str
        Where it acts, such as rotate or score.
    causal_only : bool
        It is defined for causal attention only.
    options : tuple of Option
        Its options.
    tolerance : float
        Error of float32 relative to 1 + max|exact|.
    example : str
        A text with this encoding.
    """

    name: str
    brief: str
    cite: str
    places: tuple[str, ...]
    causal_only: bool
    options: tuple[Option, ...]
    tolerance: float
    example: str

    def _repr_html_(self) -> str:
        return _html.encoding(self)


class Encodings(list[Encoding]):
    """A list, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return _html.encodings(self)


def _text(bytes_: bytes | None) -> str:
    return bytes_.decode() if bytes_ else ""


def _option(o: Any) -> Option:
    words = tuple(_text(o.words).split("|")) if o.words else ()
    default: float | str | None = float(o.default_value)
    if o.required or o.default_value != o.default_value:
        default = None
    elif words:
        default = words[int(o.default_value)]
    return Option(_text(o.name), _c.KINDS[o.kind], bool(o.required), default, o.min, o.max, words, _text(o.help))


_encodings: dict[str, Encoding] = {}


def encodings() -> dict[str, Encoding]:
    if not _encodings:
        first = c.POINTER(_c.Info)()
        for i in range(_c.lib.encodings(c.byref(first))):
            e = first[i]
            _encodings[_text(e.name)] = Encoding(
                _text(e.name),
                _text(e.brief),
                _text(e.cite),
                tuple(word for bit, word in enumerate(_c.PLACES) if e.places >> bit & 1),
                bool(e.causal_only),
                tuple(_option(e.options[o]) for o in range(e.option_count)),
                e.tolerance,
                _text(e.example),
            )
    return _encodings


def acts_on(encoding: str, place: str) -> bool:
    """Does an encoding of this text act in this place (see Encoding.places)?  Unknown names do not."""
    named = (encodings().get(part.split(":")[0].strip()) for part in encoding.split("+"))
    return any(known is not None and place in known.places for known in named)


def list_encodings() -> Encodings:
    """List all encodings, ordered by kind.

    Returns
    -------
    list of Encoding
        With their options. A notebook shows a table.
    """
    return Encodings(encodings().values())


def describe(name: str) -> Encoding:
    """Describe one encoding.

    Parameters
    ----------
    name : str
        Name without options, such as `"t5"`.

    Returns
    -------
    Encoding
        With its options.

    Raises
    ------
    Error
        No encoding has this name.
    """
    if not isinstance(name, str):
        raise TypeError(f"an encoding has a name, not {type(name).__name__}")
    known = encodings().get(name)
    if known is None:
        Plan(name or " ", 1, 8)  # raises, with the library's hint
        raise Error(f"'{name}' is a text with options; describe() wants the name alone")
    return known


def isas() -> tuple[str, ...]:
    """List the instruction sets that this processor runs, slowest first.

    Returns
    -------
    tuple of str
        Values of `isa` of `Plan`.
    """
    room = (c.c_char_p * 16)()
    return tuple(_text(name) for name in room[: _c.lib.isas(room, 16)])
