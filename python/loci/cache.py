# SPDX-License-Identifier: MIT
"""Keys and values of sequences that grow: decode."""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _arrays as arrays
from . import _c, _gpu
from ._attend import NOWHERE, known_sizes, take_tensors
from ._c import Error
from ._gpu_cache import Place, read
from ._interrupt import LONG as LONG_CALL
from ._interrupt import run
from ._masks import Masking, batch_in_front, lengths
from ._numbers import LONG, whole, whole_or_none
from ._numpy import Numpy
from ._plan import SINKS, Plan, Tables, aligned, dtype_name, full_text, host, thread
from ._shape import Shape
from ._types import ArrayLike, DTypeLike, IntArrayLike, RealArrayLike, Tensors

if TYPE_CHECKING:
    from .gpu import Device

TILE = 64  # keys that are kept together: a capacity is a multiple


class Cache:
    """Keys and values of sequences that grow, for decoding. Rows have the bits of one pass over all keys.

    `step()` appends new tokens and attends; `tree()` attends from several continuations of a sequence. A cache is for
    one thread at a time. A step that fails leaves it as it was.

    Parameters
    ----------
    encoding : str
        Name and options of one or more encodings, such as `"rope:pairing=half"`.
    heads : int
        Number of query heads.
    dim : int
        Width of queries and keys of one head.
    batch : int
        Number of sequences, and of entries for paths of trees.
    capacity : int
        Most keys of a sequence, rounded up to a multiple of 64.
    kv_heads : int, optional
        Number of key and value heads. By default `heads`.
    value_dim : int, optional
        Width of values of one head. By default `dim`.
    dtype : str or dtype
        Type of queries, keys and values: float32, float64, bfloat16 or float16.
    k_dtype : str or dtype, optional
        Type in which keys are stored: bfloat16, float16 or `"q8_0"`, 8 bits with a scale for 32 numbers. By default
        `dtype`. Keys are rounded when they are appended.
    v_dtype : str or dtype, optional
        The same for values.
    values_in_keys : bool
        Values are the first `value_dim` channels of the keys, which no rotation changes, as in latent attention: v is
        None, and keys alone are stored.
    tensors : mapping of str to array, optional
        Learned and fixed tensors, by name. They are copied; see `refresh()`.
    ring : bool
        Overwrite keys that left the window, so that sequences may outgrow the capacity.
    window_size : (int, int)
        Keys that a row sees to its left and right. -1 leaves a side open; 0 is the own position only.
    scale : float, optional
        Factor on the product of q and k. None is the encoding's own, by default 1/sqrt(dim). 0 is refused.
    softcap : float, optional
        Cap c of the product: c tanh(score / c). None or 0 is no cap.
    sinks : array [heads], optional
        Logit of each head that joins the softmax and takes weight without a value.
    max_len : int, optional
        Context length, for encodings whose rule depends on one.
    max_distance : int, optional
        Largest distance between two positions, where you give `pos`. By default the capacity.
    layout : {"bhld", "blhd"}
        Order of axes: batch (b), heads (h), length (l), width (d).
    device : str or loci.gpu.Device, optional
        Where keys and values are kept and rows are computed: `"cuda:0"`, `"opencl:0"`, `"host"` or `"cpu"`, by default
        the CPU. Bits stay the same. Tensors of torch on that GPU are read there, in torch's current stream; arrays of
        the CPU are copied there and results back. Such a cache has no `copy()` or `memory`, and cannot be pickled.
        In heads wider than 256 `attend` and `step` take up to 8 rows there.

    Raises
    ------
    Error
        An argument has a wrong shape, type or value.

    Examples
    --------
    >>> import numpy as np, loci
    >>> cache = loci.Cache("rope:pairing=half", heads=2, dim=8, capacity=64)
    >>> q = k = v = np.ones((1, 2, 3, 8), np.float32)
    >>> cache.step(q, k, v).shape
    (1, 2, 3, 8)
    >>> len(cache)
    3
    """

    def __init__(
        self,
        encoding: str,
        heads: int,
        dim: int,
        *,
        batch: int = 1,
        capacity: int,
        kv_heads: int | None = None,
        value_dim: int | None = None,
        dtype: DTypeLike = "float32",
        k_dtype: DTypeLike | None = None,
        v_dtype: DTypeLike | None = None,
        values_in_keys: bool = False,
        tensors: Tensors | None = None,
        ring: bool = False,
        window_size: Sequence[int] = (-1, -1),
        scale: float | None = None,
        softcap: float | None = None,
        sinks: ArrayLike | None = None,
        max_len: int | None = None,
        max_distance: int | None = None,
        layout: str = "bhld",
        device: str | Device | None = None,
    ) -> None:
        if layout not in arrays.LAYOUTS[:2]:
            raise Error(f"layout of a cache must be bhld or blhd, not '{layout}'")
        self._encoding = full_text(encoding, softcap, sinks is not None)
        self._layout, self._ring, self.batch = layout, bool(ring), whole(batch, "batch")
        self.capacity = -(-whole(capacity, "capacity") // TILE) * TILE
        if self.capacity > LONG:
            raise Error(f"capacity {capacity} is too large")
        self.max_distance = max(self.capacity, whole_or_none(max_distance, "max_distance") or 0)
        device = getattr(device, "id", device)
        self._place = None if device is None or device == _gpu.CPU else Place(device)
        copies = self._copies(tensors, sinks)
        options: dict[str, Any] = {
            "encoding": self._encoding,
            "heads": heads,
            "dim": dim,
            "kv_heads": kv_heads,
            "value_dim": value_dim,
            "dtype": dtype_name(dtype),
            "k_dtype": k_dtype,
            "v_dtype": v_dtype,
            "values_in_keys": values_in_keys,
            "window_size": window_size,
            "scale": scale,
            "max_len": max_len,
        }
        self._plan = _rotated_plan(options, copies)
        create = _create if self._place is None else self._place.create
        self._at, self._memory = create(self._plan, self.batch, self.capacity, self._ring)
        self._trees: _Trees | None = None  # the last ones, until they are kept or the cache changes
        self._paths: set[int] = set()  # entries that have a path of a tree, which nobody continued
        self._tensors: dict[str, Any] = {}
        self._calls: dict[str, _Laid] = {}  # the last attend, append and step, by names of arrays, and the last tree
        self._learn(copies)

    # ---- Tables --------------------------------------------------------------------------------

    def _distance(self) -> int:
        """Of the two positions that are farthest apart."""
        return self.max_distance

    def _copies(self, tensors: Tensors | None, sinks: Any) -> dict[str, np.ndarray[Any, Any]]:
        """What is learned, as it is now."""
        mapping = dict(tensors or {})
        if sinks is not None:
            mapping[SINKS] = sinks
        return {name: _copied(self._place, x, name) for name, x in mapping.items()}

    def _learn(self, copies: Mapping[str, np.ndarray[Any, Any]]) -> None:
        plan = self._plan
        learned = [t for t in plan.tensors if t.role != "input"]
        inputs = {t.name for t in plan.tensors if t.role == "input"}
        for name in copies:
            if name in inputs:
                raise Error(f"tensors: {name} comes with each step, in inputs=")
        shape = Shape(self.batch, plan.heads, plan.kv_heads, 1, 1, plan.dim, plan.value_dim, self._layout)
        some: Any = _Only(plan, learned)
        checked = take_tensors(Numpy, some, copies, shape)
        self._tensors = {t.name: x for t, x in zip(learned, checked, strict=True)}
        given = [self._tensors.get(t.name) for t in plan.tensors]
        self._given = arrays.pointers(Numpy, given)
        self._tables = Tables(plan, self._distance(), self._given)
        self._calls.clear()

    def refresh(self, tensors: Tensors | None = None, *, sinks: ArrayLike | None = None) -> None:
        """Replace learned tensors. Keys that are in the cache are not rotated again.

        Parameters
        ----------
        tensors : mapping of str to array, optional
            All learned and fixed tensors, by name.
        sinks : array [heads], optional
            Logit of each head that joins the softmax and takes weight without a value.
        """
        self._learn(self._copies(tensors, sinks))

    # ---- Steps ---------------------------------------------------------------------------------

    def _checked(self, given: Mapping[str, Any], trees: bool) -> tuple[Any, dict[str, Any]]:
        """Arrays of one library, without gradients, of the cache's type and sizes, and with as many rows.  Trees may be
        of some sequences only."""
        plan, kind, rows, own_batch = self._plan, None, None, None if trees else self.batch
        heads = {"q": (plan.heads, plan.dim), "k": (plan.kv_heads, plan.dim), "v": (plan.kv_heads, plan.value_dim)}
        made = {}
        for name, x in given.items():
            kind, x = read(self._place, x, name, kind)
            arrays.refuse_mapped(x, name)
            if arrays.check_dtype(kind, x, name) != plan.dtype:
                raise Error(f"{name} is {kind.dtype(x)} and the cache {plan.dtype}")
            batch, has, own_rows, wide = arrays.sizes(x, name, self._layout)
            own_batch = batch if own_batch is None else own_batch
            if batch != own_batch:
                raise Error(f"{name} has a batch of {batch} and {'q' if trees else 'the cache'} of {own_batch}")
            if (has, wide) != heads[name]:
                wants = f"{heads[name][0]} of {heads[name][1]}"
                raise Error(f"{name} has {has} heads of {wide}, and the cache wants {wants}")
            if rows is not None and own_rows != rows:
                first = next(iter(made))
                raise Error(f"{name} has {own_rows} rows and {first} {rows}: they are of the same new tokens")
            rows, made[name] = own_rows, kind.detach(x)
        return kind, made

    def _inputs(self, inputs: Any, shape: Shape, kind: Any) -> dict[str, Any]:
        """Those of the new tokens, as C reads them."""
        wanted = [(i, t) for i, t in enumerate(self._plan.tensors) if t.role == "input"]
        given = dict(inputs or {})
        for name in given:
            if all(name != t.name for _, t in wanted):
                raise Error(f"inputs: {self._plan.encoding} has no input '{name}'")
        made = {}
        for i, t in wanted:
            if given.get(t.name) is None:
                raise Error(f"inputs: {t.name} is missing, for the new tokens")
            own, x = read(self._place, given[t.name], t.name, kind)
            size = known_sizes(self._plan, i, shape)
            if tuple(x.shape) != size:
                raise Error(f"{t.name} has the shape {list(x.shape)}, not {list(size)}")
            self._refuse_gradient(kind, x)
            x = own.detach(x)
            made[t.name] = own.dense(x if own.dtype(x) == self._plan.real else own.cast(x, self._plan.real))
        return made

    def _named(self, k: Any, v: Any) -> dict[str, Any]:
        """Keys and values of new tokens, where values are not channels of the keys."""
        if not self._plan.values_in_keys:
            if v is None:
                raise Error("v is missing; a cache with values_in_keys has values that are channels of the keys")
            return {"k": k, "v": v}
        if v is not None:
            raise Error("v must be None: the cache has values_in_keys, so values are channels of k")
        return {"k": k}

    @staticmethod
    def _refuse_gradient(kind: Any, *some: Any) -> None:
        if kind.name == "torch" and any(kind.wants_gradient(x) for x in some):
            raise Error("a cache has no gradient; use torch.no_grad()")

    def _laid(
        self, given: dict[str, Any], inputs: Any, k_lens: Any, pos: Any, coords: Any, trees: bool = False
    ) -> _Laid:
        """The call of these arrays, which is that of the last ones where they look alike.  Those of another library are
        read."""
        which = "tree" if trees else "".join(given)
        laid = self._calls.get(which)
        if k_lens is not None or pos is not None or coords is not None:
            laid = self._lay(given, inputs, k_lens, pos, coords, trees)
        elif laid is None or not laid.fits(given, inputs):
            laid = self._calls[which] = self._lay(given, inputs, None, None, None, trees)
        else:
            laid.first = None  # the inputs of the call that it was laid out for, if that call was refused
            if laid.grad:
                laid.kind.refuse_untracked(*given.values())
                if laid.kind.grad_enabled():
                    self._refuse_gradient(laid.kind, *given.values())
        return laid

    def _lay(self, given: dict[str, Any], inputs: Any, k_lens: Any, pos: Any, coords: Any, trees: bool) -> _Laid:
        plan = self._plan
        kind, x = self._checked(given, trees)
        self._refuse_gradient(kind, *given.values())
        given.update(x)
        batch, _, rows, _ = arrays.sizes(next(iter(x.values())), "", self._layout)
        keys = rows
        m = Masking()
        shape = Shape(batch, plan.heads, plan.kv_heads, rows, keys, plan.dim, plan.value_dim, self._layout)
        if k_lens is not None:
            m.k_lens = lengths(k_lens, self.batch)
        if pos is not None:
            m.q_pos = m.k_pos = arrays.whole(pos, "pos", ((rows,), (batch, rows)))
        if coords is not None:
            shapes = (plan.axes, rows), (batch, plan.axes, rows)
            m.q_coords = m.k_coords = arrays.reals(coords, "coords", shapes)
        elif plan.axes > 1:
            raise Error(f"coords is missing: the encoding has {plan.axes} axes, so each row wants as many coordinates")
        batch_in_front(shape, m)
        return _Laid(self, kind, x, shape, m, self._inputs(inputs, shape, kind))

    def append(
        self,
        k: ArrayLike,
        v: ArrayLike | None = None,
        *,
        inputs: Tensors | None = None,
        k_lens: int | IntArrayLike | None = None,
        pos: IntArrayLike | None = None,
        coords: RealArrayLike | None = None,
    ) -> None:
        """Append the keys and values of n new tokens.

        Parameters
        ----------
        k : array [batch, kv_heads, n, dim]
            Keys of n new tokens, before any rotation.
        v : array [batch, kv_heads, n, value_dim]
            Values of n new tokens. None if the cache has `values_in_keys`.
        inputs : mapping of str to array, optional
            Tensors that come with each call, by name, for the new tokens.
        k_lens : int or int array [batch], optional
            Number of new tokens of each sequence, where they differ.
        pos : int array [n] or [batch, n], optional
            Positions of the new tokens. By default they follow the last ones.
        coords : array [axes, n] or [batch, axes, n], optional
            Coordinates of the new tokens, for encodings of several axes.

        Raises
        ------
        Error
            An argument has a wrong shape, type or value.
        """
        given = self._named(k, v)
        laid = self._laid(given, inputs, k_lens, pos, coords)
        laid.call.q_len = 0
        if self._place is not None:
            self._place.run(self, laid, given, inputs)
            return
        pool = laid.use(host())
        alive = laid.place(given, None, inputs)
        before = self._count(laid)
        try:
            self._append(laid, thread.work(laid.room or laid.measure()))
        except BaseException:
            self._take_back(laid, before)
            raise
        finally:
            thread.done()
        del alive, pool

    def _append(self, laid: _Laid, work: int) -> None:
        error = _c.lib.cache_append(self._plan._handle, self._tables.at, work, self._at, laid.at)
        if error:
            raise self._failure(error)
        self._appended(laid)

    def _appended(self, laid: _Laid) -> None:
        """Sequences have grown: trees of before are no more, and neither are paths that were continued."""
        self._trees = None
        if self._paths:
            k_lens = laid.masking.k_lens
            self._paths -= set(range(self.batch) if k_lens is None else np.flatnonzero(k_lens).tolist())

    def _failure(self, status: int) -> Error:
        failed = _c.failure(status, thread.error)
        if "the tables were prepared for" not in str(failed):
            return failed
        return Error(f"{failed}; make the cache with max_distance=", failed.status)

    def attend(
        self,
        q: ArrayLike,
        *,
        inputs: Tensors | None = None,
        k_lens: int | IntArrayLike | None = None,
        pos: IntArrayLike | None = None,
        coords: RealArrayLike | None = None,
        out: ArrayLike | None = None,
    ) -> Any:
        """Attend from the tokens that were appended last to all keys.

        Parameters
        ----------
        q : array [batch, heads, n, dim]
            Queries of n new tokens, in the order of axes of the cache's `layout`.
        inputs : mapping of str to array, optional
            Tensors that come with each call, by name, for the new tokens.
        k_lens : int or int array [batch], optional
            Number of new tokens of each sequence, where they differ.
        pos : int array [n] or [batch, n], optional
            Positions of the new tokens. By default they follow the last ones.
        coords : array [axes, n] or [batch, axes, n], optional
            Coordinates of the new tokens, for encodings of several axes.
        out : array, optional
            Array for the result. It must be writable, have the shape and type of the result, and be dense along its
            last axis.

        Returns
        -------
        o : array [batch, heads, n, value_dim]
            Of the library and type of q.
        ae : array [batch, heads, n, dim / 2, 2]
            With `tape` only: the averages of its states.

        Raises
        ------
        Error
            An argument has a wrong shape, type or value.
        """
        given = {"q": q}
        return self._attend(self._laid(given, inputs, k_lens, pos, coords), given, inputs, out)

    def _attend(self, laid: _Laid, given: dict[str, Any], inputs: Any, out: Any) -> Any:
        """With keys that go to the cache before, if there are any."""
        o, averages = self._outputs(laid, given["q"], out, laid.kind.empty)
        if out is not None:
            laid.kind.bump_version(o)
        if self._place is not None:
            self._place.run(self, laid, given, inputs, o, averages)
            return o if averages is None else (o, averages)
        pool = laid.use(host())
        alive = laid.place(given, o, inputs)
        before = self._count(laid)
        try:
            work = thread.work(laid.room or laid.measure())
            if "k" in given:
                self._append(laid, work)
            error = self._forward(laid, work)
            if error:
                raise self._failure(error)
        except BaseException:  # Ctrl-C as well
            self._take_back(laid, before)
            raise
        finally:
            thread.done()
        del alive, pool
        return o if averages is None else (o, averages)

    def _outputs(self, laid: _Laid, q: Any, out: Any, make: Any) -> tuple[Any, Any]:
        """Arrays for o and for averages, if there are any.  `make` is empty() or zeros()."""
        plan, kind = self._plan, laid.kind
        o = make(laid.shape_of_o, q) if out is None else arrays.check_out(kind, out, laid.shape_of_o, plan.dtype)
        averages = None
        if plan.averages:
            averages = make((laid.call.batch, plan.heads, laid.rows, plan.dim // 2, 2), q, plan.real)
            laid.call.ae = kind.pointer(averages)
        return o, averages

    def _forward(self, laid: _Laid, work: int) -> int:
        forward, given = _c.lib.forward, (self._plan._handle, self._tables.at, work, laid.at)
        if laid.products < LONG_CALL:
            status: int = forward(*given)
            return status
        return run(forward, laid.call, laid.products * max(self.lengths) / self.capacity, *given)

    def _count(self, laid: _Laid) -> Any:
        """Keys before an append, of the first entry, or of all where k_lens may add nothing to some."""
        return _c.lib.cache_length(self._at, 0) if laid.masking.k_lens is None else self.lengths

    def _take_back(self, laid: _Laid, before: Any) -> None:
        """What a call that failed has appended, if anything."""
        if laid.masking.k_lens is None:
            added = self.length() - before
            before = [length - added for length in self.lengths]
        for entry, length in enumerate(before):
            if self.length(entry) != length:
                self.truncate(length, entry)

    def step(
        self,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike | None = None,
        *,
        inputs: Tensors | None = None,
        k_lens: int | IntArrayLike | None = None,
        pos: IntArrayLike | None = None,
        coords: RealArrayLike | None = None,
        out: ArrayLike | None = None,
    ) -> Any:
        """Append n new tokens and attend from them to all keys: `append()` and `attend()` in one call.

        Parameters
        ----------
        q : array [batch, heads, n, dim]
            Queries of n new tokens, in the order of axes of the cache's `layout`.
        k : array [batch, kv_heads, n, dim]
            Keys of n new tokens, before any rotation.
        v : array [batch, kv_heads, n, value_dim]
            Values of n new tokens. None if the cache has `values_in_keys`.
        inputs : mapping of str to array, optional
            Tensors that come with each call, by name, for the new tokens.
        k_lens : int or int array [batch], optional
            Number of new tokens of each sequence, where they differ.
        pos : int array [n] or [batch, n], optional
            Positions of the new tokens. By default they follow the last ones.
        coords : array [axes, n] or [batch, axes, n], optional
            Coordinates of the new tokens, for encodings of several axes.
        out : array, optional
            Array for the result. It must be writable, have the shape and type of the result, and be dense along its
            last axis.

        Returns
        -------
        o : array [batch, heads, n, value_dim]
            Of the library and type of q.
        ae : array [batch, heads, n, dim / 2, 2]
            With `tape` only: the averages of its states.

        Raises
        ------
        Error
            An argument has a wrong shape, type or value.
        """
        given = {"q": q, **self._named(k, v)}
        return self._attend(self._laid(given, inputs, k_lens, pos, coords), given, inputs, out)

    # ---- Trees of tokens -----------------------------------------------------------------------

    def tree(
        self,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike | None,
        parents: IntArrayLike,
        *,
        entry: int | IntArrayLike | None = None,
        branch: int | IntArrayLike | None = None,
        nodes: int | IntArrayLike | None = None,
        inputs: Tensors | None = None,
        pos: IntArrayLike | None = None,
        coords: RealArrayLike | None = None,
        out: ArrayLike | None = None,
    ) -> Any:
        """Attend from the nodes of a tree of tokens, which continues a sequence, for speculative decoding.

        Node i comes after node `parents[i]`, or right after the sequence. Its row sees the keys of the sequence and of
        the nodes above it, and has the bits of decoding these tokens one by one. The sequence stays as it is until
        `keep()` appends the nodes down to one of them.

        Each path from the sequence to a leaf takes an entry of the cache, so make the cache with a larger `batch`. The
        keys that these entries had are lost.

        Parameters
        ----------
        q : array [trees, heads, n, dim]
            Queries of the n nodes of each tree, in the order of axes of the cache's `layout`.
        k : array [trees, kv_heads, n, dim]
            Keys of the nodes, before any rotation.
        v : array [trees, kv_heads, n, value_dim]
            Values of the nodes. None if the cache has `values_in_keys`.
        parents : int array [n] or [trees, n]
            The node before each node, which has a smaller number; -1 is the sequence.
        entry : int or int array [trees], optional
            Index of the sequence that each tree continues. By default 0, 1, 2 and so on.
        branch : int or int array [trees], optional
            First of the entries that the paths of each tree take, one for each leaf. By default the entries behind
            the sequences, in equal parts; an entry with keys that are no path of an earlier tree is then refused.
        nodes : int or int array [trees], optional
            Number of nodes of each tree, its first ones, where they differ. Rows of others are 0, and are left as they
            are in `out`.
        inputs : mapping of str to array, optional
            Tensors that come with each call, by name, for the nodes.
        pos : int array [n] or [trees, n], optional
            Positions of the nodes, which rise along each path. By default they follow the last key before them.
        coords : array [axes, n] or [trees, axes, n], optional
            Coordinates of the nodes, for encodings of several axes.
        out : array, optional
            Array for the result. It must be writable, have the shape and type of the result, and be dense along its
            last axis.

        Returns
        -------
        o : array [trees, heads, n, value_dim]
            Of the library and type of q.
        ae : array [trees, heads, n, dim / 2, 2]
            With `tape` only: the averages of its states.

        Raises
        ------
        Error
            An argument has a wrong shape, type or value.
        """
        if self._ring:
            raise Error("a ring has no trees: it cannot be forked", "unsupported")
        given = {"q": q, **self._named(k, v)}
        laid = self._laid(given, inputs, None, pos, coords, trees=True)
        trees, taken = self._trees_of(laid, parents, entry, branch, nodes)
        o, averages = self._outputs(laid, given["q"], out, laid.kind.empty if nodes is None else laid.kind.zeros)
        if out is not None:
            laid.kind.bump_version(o)
        if self._place is not None:
            self._place.tree(self, laid, given, inputs, trees, taken, o, averages)
            return o if averages is None else (o, averages)
        pool = laid.use(host())
        alive = laid.place(given, o, inputs)
        plan, tree, products = self._plan, trees.struct(), 0.0
        size = _c.lib.tree_workspace(plan._handle, self._at, tree, laid.at)
        if size:  # else the call says what is wrong
            self._take_paths(trees, taken)
            most = max(map(self.length, trees.entry.tolist()), default=0) + laid.rows
            products = laid.products * most / self.capacity
        try:
            at = plan._handle, self._tables.at, thread.work(size or _c.PAGE), self._at, tree, laid.at
            error = run(_c.lib.tree_forward, laid.call, products, *at)
        finally:
            thread.done()
        if error:
            raise self._failure(error)
        del alive, pool
        self._trees = trees
        return o if averages is None else (o, averages)

    def _take_paths(self, trees: _Trees, taken: set[int]) -> None:
        """Before a call: its paths take entries."""
        self._trees, self._paths = None, (self._paths | taken) - set(trees.entry.tolist())

    def _trees_of(self, laid: _Laid, parents: Any, entry: Any, branch: Any, nodes: Any) -> tuple[_Trees, set[int]]:
        """The trees in arrays of their own, and the entries that their paths take."""
        count, n = laid.call.batch, laid.rows
        before = _spread(arrays.whole(parents, "parents", ((n,), (count, n))), (count, n))
        many = _spread(arrays.whole(n if nodes is None else nodes, "nodes", ((count,), ())), (count,))
        for b, number in enumerate(many.tolist()):
            if not 0 <= number <= n:
                raise Error(f"nodes: tree {b} has {number} nodes, and q has {n} rows")
        numbers = np.arange(n)
        for b, i in np.argwhere((numbers < many[:, None]) & ((before < -1) | (before >= numbers))):
            where = f"of tree {b} " if count > 1 else ""
            raise Error(f"parents: node {i} {where}comes after {before[b, i]}, not after an earlier node or -1")
        paths = [_c.lib.tree_paths(_at(one), number) for one, number in zip(before, many.tolist(), strict=True)]
        most = max(paths, default=0)
        which = np.arange(count, dtype=np.int64)
        if entry is not None:
            which = _spread(arrays.whole(entry, "entry", ((count,), ())), (count,))
            for one in which.tolist():
                whole(one, "entry", 0, self.batch - 1)
        if branch is not None:
            start = _spread(arrays.whole(branch, "branch", ((count,), ())), (count,))
            room = most
        else:
            first = int(which.max(initial=-1)) + 1
            room = max(self.batch - first, 0) // max(count, 1)
            if most > room:
                raise Error(
                    f"tree {paths.index(most)} has {most} paths, and room for {room}: each leaf takes an entry; make "
                    f"the cache with batch={first + count * most}, or give branch="
                )
            start = first + room * np.arange(count, dtype=np.int64)
        taken = {at + i for at, number in zip(start.tolist(), paths, strict=True) for i in range(number)}
        for one in sorted(taken) if branch is None else ():
            if one not in self._paths and self.length(one):
                raise Error(
                    f"entry {one} has {self.length(one)} keys, which a path of the tree would replace; give branch= if "
                    f"it may"
                )
        return _Trees(before, which, start, room, many), taken

    def keep(self, node: int | IntArrayLike) -> None:
        """Append the nodes from the root down to one node of the last `tree()` to its sequence.

        Any other change of the cache forgets the tree.

        Parameters
        ----------
        node : int or int array [trees]
            Number of the last node to keep, of each tree or of all; -1 keeps none.

        Raises
        ------
        Error
            There is no tree, or it has no such node.
        """
        trees = self._trees
        if trees is None:
            raise Error("keep() is for the nodes of the last tree(); there is none, or the cache has changed since")
        plan, (count, n) = self._plan, trees.parents.shape
        last = _spread(arrays.whole(node, "node", ((count,), ())), (count,))
        tree = trees.struct()
        call = _c.Call(size=c.sizeof(_c.Call), batch=count, q_len=n, k_len=n, error=thread.error_at)
        if self._place is not None:
            self._place.keep(self, tree, _at(last), call)
            self._trees = None
            return
        # C wants the arrays of tree(), and neither reads nor writes them
        unread = aligned(8 * max(plan.dim, plan.value_dim))
        unwritten = aligned(count * plan.heads * n * plan.value_dim * _c.SIZES[_c.DTYPES[plan.dtype]])
        x = _c.View(_at(unread), _c.BROADCAST, _c.BROADCAST, _c.BROADCAST)
        call.q = call.k = x
        call.o = _c.View(_at(unwritten))
        if not plan.values_in_keys:
            call.v = x
        pool = host()
        call.host = pool
        size = _c.lib.tree_workspace(plan._handle, self._at, tree, call)
        try:
            at = plan._handle, self._tables.at, thread.work(size or _c.PAGE), self._at
            _c.check(_c.lib.tree_keep(*at, tree, _at(last), call), thread.error)
        finally:
            thread.done()
        del pool
        self._trees = None

    # ---- What is there -------------------------------------------------------------------------

    def length(self, entry: int = 0) -> int:
        """Return the number of keys of one sequence.

        Parameters
        ----------
        entry : int
            Index of the sequence.

        Returns
        -------
        int
            Keys so far.
        """
        return int(_c.lib.cache_length(self._at, whole(entry, "entry", 0, self.batch - 1)))

    def _entries(self, entry: int | None) -> Sequence[int]:
        """One sequence, or all of them.  The shortest comes first: if it has too few keys, no other has changed."""
        if entry is None:
            return sorted(range(self.batch), key=self.length)
        return (whole(entry, "entry", 0, self.batch - 1),)

    @property
    def lengths(self) -> list[int]:
        """Number of keys of each sequence."""
        return [self.length(entry) for entry in range(self.batch)]

    def __len__(self) -> int:
        return self.length(0)

    @property
    def nbytes(self) -> int:
        """Size in bytes, on a device as well."""
        return int(self._memory.size) + (0 if self._place is None else self._place.size)

    @property
    def memory(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """All bytes of the cache, without a copy."""
        if self._place is not None:
            raise self._place.refuse("has its keys there; memory is of caches on the CPU")
        return self._memory

    @property
    def plan(self) -> Plan:
        """The plan that the cache was made with."""
        return self._plan

    def truncate(self, length: int, entry: int | None = None) -> None:
        """Drop the keys from an index on.

        Parameters
        ----------
        length : int
            Number of keys to keep.
        entry : int, optional
            Index of one sequence of the batch. By default all sequences.
        """
        length = whole(length, "length")
        entries = self._entries(entry)
        # A ring refuses lengths whose keys are gone, which may concern any of its sequences.
        before = self._memory.copy() if self._ring and len(entries) > 1 else None
        for one in entries:
            status = _c.lib.cache_truncate(self._at, one, length, thread.error_at)
            if status and before is not None:
                self._memory[:] = before
            _c.check(status, thread.error)
            self._trees = None

    def remove(self, first: int, count: int, entry: int | None = None) -> None:
        """Drop keys in the middle. Later keys move up, and their positions with them.

        Parameters
        ----------
        first : int
            Index of the first key to drop.
        count : int
            Number of keys to drop.
        entry : int, optional
            Index of one sequence of the batch. By default all sequences.
        """
        first, count = whole(first, "first"), whole(count, "count")
        entries = self._entries(entry)
        if self._place is not None:
            self._place.remove(self, entries, first, count)
            return
        call = self._edit_call()
        size = self._measured(call)
        try:
            for one in entries:
                work = thread.work(size)
                at = self._plan._handle, self._tables.at, work, self._at
                _c.check(_c.lib.cache_remove(*at, one, first, count, call), thread.error)
                self._trees = None
        finally:
            thread.done()

    def fork(self, source: int, target: int, length: int | None = None) -> None:
        """Make one sequence a copy of the first keys of another. Both then grow on their own.

        They share memory in tiles of 64 keys until one of them writes such a tile, so this costs little. Sequences
        that share keys and are neighbours in the batch read these once in `attend`.

        Parameters
        ----------
        source : int
            Index of the sequence that is copied.
        target : int
            Index of the sequence that is replaced.
        length : int, optional
            Number of keys to copy. By default all.
        """
        source, target = whole(source, "source"), whole(target, "target")
        length = self.length(source) if length is None else whole(length, "length")
        if self._place is not None:
            self._place.fork(self, source, target, length)
            self._trees = None
            self._paths.discard(target)
            return
        call = self._edit_call()
        try:
            at = self._plan._handle, self._tables.at, thread.work(self._measured(call)), self._at
            _c.check(_c.lib.cache_fork(*at, source, target, length, call), thread.error)
            self._trees = None
            self._paths.discard(target)
        finally:
            thread.done()

    def _edit_call(self) -> Any:
        """A call that edits the cache."""
        call = _c.Call(
            size=c.sizeof(_c.Call), batch=self.batch, cache=self._at, host=host(), error=thread.error_at, q_len=0
        )
        call.tensors = c.addressof(self._given)
        return call

    def _measured(self, call: Any) -> int:
        """The bytes of its workspace."""
        size = int(_c.lib.workspace(self._plan._handle, call, 0))
        if not size:
            _c.check(thread.error.status or 1, thread.error)
        return size

    # ---- Copies --------------------------------------------------------------------------------

    def copy(self) -> Cache:
        """Return an independent copy.

        Returns
        -------
        Cache
            With the same keys.
        """
        return _again(self._state())

    def _state(self) -> dict[str, Any]:
        if self._place is not None:
            raise self._place.refuse("cannot be copied or pickled; fork() copies a sequence within the cache")
        return {
            "plan": self._plan,
            "tensors": dict(self._tensors),
            "memory": self._memory.tobytes(),
            "encoding": self._encoding,
            "layout": self._layout,
            "ring": self._ring,
            "batch": self.batch,
            "capacity": self.capacity,
            "max_distance": self.max_distance,
            "trees": self._trees,
            "paths": set(self._paths),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return (_again, (self._state(),))

    def __copy__(self) -> Cache:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Cache:
        return self.copy()


class _Trees(NamedTuple):
    """Trees of a call, in arrays that nobody else has. Lists have a number for each tree."""

    parents: np.ndarray[Any, np.dtype[np.int64]]  # [trees, n]
    entry: np.ndarray[Any, np.dtype[np.int64]]
    branch: np.ndarray[Any, np.dtype[np.int64]]
    room: int
    nodes: np.ndarray[Any, np.dtype[np.int64]]

    def struct(self) -> _c.Tree:
        """As C reads them; this tuple must live as long."""
        lists = {name: _at(getattr(self, name)) for name in ("entry", "branch", "nodes", "parents")}
        return _c.Tree(size=c.sizeof(_c.Tree), room=self.room, **lists)


def _spread(x: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A copy in this shape."""
    return np.array(np.broadcast_to(x, shape), np.int64, order="C")


class _Laid:
    """A call for C, which stays while arrays look alike: only where they are is written anew."""

    def __init__(self, cache: Cache, kind: Any, x: dict[str, Any], shape: Shape, m: Masking, inputs: Any) -> None:
        plan = cache._plan
        self.plan, self.kind, self.layout, self.rows = plan, kind, cache._layout, shape.rows
        self.grad = kind.name == "torch"
        self.shape_of_o = shape.of("o")
        self.signatures = {name: kind.signature(a) for name, a in x.items()}
        self.dense = {name: kind.dense_strides(shape.of(name), next(iter(x.values()))) for name in "qkvo"}
        self.strides = {
            name: arrays.strides_for(shape.of(name), arrays.dense_strides(shape.of(name)), self.layout, name == "o")
            for name in "qkvo"
        }
        self.bytes = _c.SIZES[_c.DTYPES[plan.dtype]]
        self.inputs = {t.name: i for i, t in enumerate(plan.tensors) if t.role == "input"}
        self.input_signatures = {name: kind.signature(a) for name, a in inputs.items()}
        self.input_strides = {name: kind.dense_strides(tuple(a.shape), a) for name, a in inputs.items()}
        self.list = (c.c_void_p * max(len(plan.tensors), 1))(*cache._given)
        for name, a in inputs.items():
            self.list[self.inputs[name]] = kind.pointer(a)
        self.first, self.masking = inputs, m  # which must live
        products = shape.batch * plan.heads * shape.rows * cache.capacity * (plan.dim + plan.value_dim)
        self.products = float(products)  # when the cache is full
        self.room = 0  # bytes of the workspace, when it has been asked
        self.pool = 0  # the serial number of the pool, which each call holds anew
        self.error = thread.error_at
        self.call = _c.Call(
            size=c.sizeof(_c.Call),
            batch=shape.batch,
            q_len=shape.rows,
            k_len=shape.keys,
            q_pos=_at(m.q_pos),
            k_pos=_at(m.k_pos),
            q_coord=_at(m.q_coords),
            k_coord=_at(m.k_coords),
            per_batch=m.per_batch,
            k_lens=_at(m.k_lens),
            tensors=c.addressof(self.list),
            cache=cache._at,
            error=self.error,
        )
        self.at = c.pointer(self.call)

    def fits(self, given: Mapping[str, Any], inputs: Any) -> bool:
        """Do these arrays look like those of this call?"""
        kind = self.kind
        signature = kind.signature
        try:
            for name, x in given.items():
                if signature(x) != self.signatures[name]:
                    return False
            if not self.inputs:
                return not inputs
            if inputs is None or inputs.keys() != self.inputs.keys():
                return False
            for name, x in inputs.items():
                if signature(x) != self.input_signatures[name] or kind.raw_strides(x) != self.input_strides[name]:
                    return False
                if self.grad and kind.wants_gradient(x):
                    return False
        except AttributeError:  # of another library
            return False
        return True

    def _view(self, name: str, x: Any, alive: list[Any]) -> tuple[int, int, int, int]:
        kind = self.kind
        x = arrays.in_place(kind, kind.detach(x))
        alive.append(x)
        return (kind.pointer(x), *arrays.strides_for(x.shape, kind.strides(x), self.layout, name == "o"))

    def place(self, given: dict[str, Any], o: Any, inputs: Any) -> list[Any]:
        """Writes where arrays are; gives back what must live as long as the call."""
        alive: list[Any] = []
        pointer, strides, dense = self.kind.pointer, self.kind.raw_strides, self.dense
        numbers: list[int] = []
        for name in "qkvo":
            x = o if name == "o" else given.get(name)
            if x is None:
                numbers += NOWHERE
                continue
            at = pointer(x)
            if strides(x) == dense[name] and at % self.bytes == 0:
                numbers.append(at)
                numbers += self.strides[name]
            else:
                numbers += self._view(name, x, alive)
        _c.VIEWS.pack_into(self.call, _c.VIEWS_AT, *numbers)
        if self.error is not thread.error_at:  # another thread's
            self.error = self.call.error = thread.error_at
        if self.first is None:
            for name, i in self.inputs.items():
                self.list[i] = self.kind.pointer(inputs[name])
        else:
            alive.append(self.first)  # the first time they may be copies
            self.first = None
        return alive

    def use(self, pool: Any) -> Any:
        """Sets the call's threads; the caller holds them while it runs."""
        serial = 0 if pool is None else pool.serial
        if serial != self.pool:
            address = 0 if pool is None else c.addressof(pool.contents)
            _c.ADDRESS.pack_into(self.call, _c.HOST_AT, address)
            self.pool, self.room = serial, 0
        return pool

    def measure(self) -> int:
        size = int(_c.lib.workspace(self.plan._handle, self.at, 0))
        if not size:
            _c.check(thread.error.status or 1, thread.error)
        self.room = size
        return size


def _at(x: Any) -> Any:
    return None if x is None else x.ctypes.data


class _Only:
    """A plan as take_tensors() sees it, with some of its tensors."""

    def __init__(self, plan: Plan, some: list[Any]) -> None:
        self._plan, self._some = plan, some
        self.tensors, self.encoding, self.real, self.dtype = tuple(some), plan.encoding, plan.real, plan.dtype
        self.sizes = tuple(plan.sizes[plan.tensors.index(t)] for t in some)


def _create(plan: Plan, batch: int, capacity: int, ring: bool) -> tuple[Any, np.ndarray[Any, Any]]:
    """A cache, and its memory."""
    size = _c.lib.cache_size(plan._handle, batch, capacity)
    if not size:
        raise Error(f"a cache for a batch of {batch} and a capacity of {capacity} cannot be")
    memory, at = aligned(size), c.c_void_p()
    given = plan._handle, batch, capacity, ring, memory.ctypes.data
    _c.check(_c.lib.cache_create(c.byref(at), *given, thread.error_at), thread.error)
    return at, memory


def _copied(place: Place | None, x: Any, name: str) -> np.ndarray[Any, Any]:
    """In memory of the CPU."""
    kind, x = read(place, x, name)
    if kind.away:
        x = kind.host(x)
    x = kind.detach(x)
    if kind.dtype(x) in ("bfloat16", "float16"):
        x = kind.cast(x, "float32")
    return np.array(kind.to_numpy(x), copy=True)


def _rotated_plan(options: dict[str, Any], copies: Mapping[str, Any]) -> Plan:
    """Keys are kept turned; where nothing turns that says nothing. Keys that turn differently for near and far rows are
    kept as they are."""
    from ._attend import other_forms

    turned = True
    try:
        plan = Plan(**options, keys_rotated=True)
    except Error:
        turned = False
        plan = Plan(**options)
    forms = other_forms(plan, copies)
    return plan if forms is None else Plan(**options, keys_rotated=turned, shapes=forms)


def _again(state: dict[str, Any]) -> Cache:
    cache = Cache.__new__(Cache)
    cache._place = None
    cache._plan, cache._encoding, cache._layout = state["plan"], state["encoding"], state["layout"]
    cache._ring, cache.batch, cache.capacity = state["ring"], state["batch"], state["capacity"]
    cache.max_distance = state.get("max_distance", cache.capacity)  # 0.2 had none
    cache._memory = aligned(len(state["memory"]))
    cache._memory[:] = memoryview(state["memory"])
    at = c.c_void_p()
    status = _c.lib.cache_open(
        c.byref(at), cache._plan._handle, cache._memory.ctypes.data, cache.nbytes, thread.error_at
    )
    _c.check(status, thread.error)
    cache._at, cache._calls = at, {}
    cache._trees, cache._paths = state.get("trees"), set(state.get("paths", ()))
    cache._learn(state["tensors"])
    return cache
