# SPDX-License-Identifier: MIT
"""Trees of tokens: a node has the bits of decoding its path, and what is kept goes on with the same bits."""

from __future__ import annotations

import copy
import pickle
import unittest
from collections.abc import Sequence
from typing import Any

import numpy as np

import loci
from loci.cache import _again

from . import encodings

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

HEADS, DIM = 4, 32
PROMPT = 62  # paths cross the border of a tile
PARENTS = [-1, 0, 0, 1, 2, -1, 5, 3, 7]
LEAVES = 3
KEPT = 7  # an inner node
LENGTH = PROMPT + len(PARENTS) + 3


def path_of(parents: Sequence[int], node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path


def parts(x: Any) -> tuple[Any, ...]:
    """o, or o and the averages."""
    return x if isinstance(x, tuple) else (x,)


class Tokens:
    """Rows and inputs of `count` tokens, of which a call has some."""

    def __init__(self, text: str, batch: int = 1, count: int = LENGTH, seed: int = 1, **options: Any) -> None:
        self.text, self.options = text, options
        plan = loci.Plan(text, HEADS, DIM, kv_heads=2, max_len=128)
        rng = np.random.default_rng(seed)
        self.arrays = [rng.standard_normal((batch, heads, count, DIM), np.float32) for heads in (HEADS, 2, 2)]
        self.inputs = encodings.inputs(plan, batch, count, count)
        self.axes = {t.name: s.index(self.by(s)) for t, s in zip(plan.tensors, plan.sizes, strict=True) if self.by(s)}
        self.coords = rng.integers(0, 50, (plan.axes, count)) if plan.axes > 1 else None
        self.tensors = plan.init(2)

    @staticmethod
    def by(sizes: Any) -> Any:
        return next((size for size in sizes if size in ("queries", "keys")), None)

    def cache(self, batch: int = 1, **more: Any) -> loci.Cache:
        options = {"kv_heads": 2, "capacity": 128, "tensors": self.tensors, "max_len": 128, **self.options, **more}
        return loci.Cache(self.text, HEADS, DIM, batch=batch, **options)

    def at(self, which: Any) -> tuple[list[Any], dict[str, Any]]:
        """q, k and v, and what a call is told besides."""
        inputs = {name: np.take(x, which, self.axes[name]) for name, x in self.inputs.items()}
        coords = None if self.coords is None else self.coords[:, which]
        return [x[:, :, which] for x in self.arrays], {"inputs": inputs or None, "coords": coords}

    def step(self, cache: loci.Cache, which: Any) -> Any:
        arrays, told = self.at(which)
        return parts(cache.step(*arrays, **told))

    def tree(self, cache: loci.Cache, parents: Any = PARENTS, first: int = PROMPT, **more: Any) -> Any:
        arrays, told = self.at(np.arange(first, first + np.shape(parents)[-1]))
        return parts(cache.tree(*arrays, parents, **told, **more))

    def prompted(self, batch: int = 1 + LEAVES, **more: Any) -> loci.Cache:
        """A cache whose first sequence has the prompt: a prompt is a tree of one path."""
        cache = self.cache(batch, **more)
        self.tree(cache, range(-1, PROMPT - 1), 0)
        cache.keep(PROMPT - 1)
        return cache


class Trees(unittest.TestCase):
    def same(self, got: Any, want: Any) -> None:
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)

    def alike(self, tokens: Tokens) -> None:
        """Rows of a tree, of the prompt, and after a node that is kept, against decode of one sequence."""
        alone, cache = tokens.cache(), tokens.cache(1 + LEAVES)
        prompt = tokens.tree(cache, range(-1, PROMPT - 1), 0)
        cache.keep(PROMPT - 1)
        self.same(prompt, tokens.step(alone, np.arange(PROMPT)))
        for _ in range(2):  # again, in entries that have a path already
            made = tokens.tree(cache)
        for leaf in (4, 6, 8):
            other = alone.copy()
            for node in path_of(PARENTS, leaf):
                one = slice(node, node + 1)
                self.same([x[:, :, one] for x in made], tokens.step(other, [PROMPT + node]))
        self.assertEqual(len(cache), PROMPT)
        cache.keep(KEPT)
        path = path_of(PARENTS, KEPT)
        self.assertEqual(len(cache), PROMPT + len(path))
        tokens.step(alone, [PROMPT + node for node in path])
        rest = np.arange(LENGTH - 3, LENGTH)
        arrays, told = tokens.at(rest)  # for all entries, and the others get none
        all_, told["inputs"] = (
            [np.repeat(x, 1 + LEAVES, 0) for x in arrays],
            {name: np.repeat(x, 1 + LEAVES, 0) for name, x in (told["inputs"] or {}).items()},
        )
        made = parts(cache.step(*all_, **told, k_lens=[3, *[0] * LEAVES]))
        self.same([x[:1] for x in made], tokens.step(alone, rest))

    def test_every_encoding(self) -> None:
        tried = 0
        for e in encodings.attending():
            with self.subTest(encoding=e.example):
                self.alike(Tokens(e.example))
                tried += 1
        self.assertGreater(tried, 15)

    def test_stored_types(self) -> None:
        for text in ("rope:pairing=half", "fox"):
            for stored in ("q8_0", "bfloat16", "float16"):
                with self.subTest(encoding=text, stored=stored):
                    self.alike(Tokens(text, k_dtype=stored, v_dtype=stored))

    def test_two_trees(self) -> None:
        """Each is as alone, in the entries that it takes; the first has fewer nodes than rows."""
        chain, fork = [-1, 0, 99, 99], [-1, 0, 0, 1]
        both = Tokens("rope:pairing=half+fox", batch=2)
        caches = [both.cache(2), both.cache(6)]
        both.step(caches[0], np.arange(PROMPT))
        both.tree(caches[1], range(-1, PROMPT - 1), 0)
        caches[1].keep([PROMPT - 1, PROMPT - 1])
        for more in ({}, {"entry": [0, 1], "branch": [4, 2]}):
            made = both.tree(caches[1], [chain, fork], nodes=[2, 4], **more)[0]
            for b, parents in ((0, chain[:2]), (1, fork)):
                for node in range(len(parents)):
                    other = caches[0].copy()
                    for i in path_of(parents, node):
                        want = both.step(other, [PROMPT + i])[0]
                    np.testing.assert_array_equal(made[b, :, node], want[b, :, 0])
            self.assertFalse(made[0, :, 2:].any())
        caches[1].keep([-1, 3])
        self.assertEqual(caches[1].lengths[:2], [PROMPT, PROMPT + 3])
        # the second sequence alone, in the entries behind it
        q, k, v = (x[1:, :, -2:] for x in both.arrays)
        inputs = {"fox.log_f": both.inputs["fox.log_f"][1:, :, -2:]}
        made = caches[1].tree(q, k, v, [-1, 0], entry=1, inputs=inputs)
        other = caches[0]
        for at in (PROMPT, PROMPT + 1, PROMPT + 3, LENGTH - 2, LENGTH - 1):
            want = both.step(other, [at])[0]
        np.testing.assert_array_equal(made[0, :, 1], want[1, :, 0])
        caches[1].keep(-1)
        self.assertEqual(caches[1].lengths[:2], [PROMPT, PROMPT + 3])

    def test_positions(self) -> None:
        """Nodes have those that are given, and then every call gives them."""
        q, k, v = Tokens("alibi").arrays
        pos = np.array([3 * (len(path_of(PARENTS, node)) - 1) for node in range(len(PARENTS))])
        cache, alone = (loci.Cache("alibi", HEADS, DIM, kv_heads=2, batch=b, capacity=128) for b in (4, 1))
        at = slice(0, len(PARENTS))
        made = cache.tree(q[:, :, at], k[:, :, at], v[:, :, at], PARENTS, pos=pos)
        for node in path_of(PARENTS, 8):
            one = slice(node, node + 1)
            want = alone.step(q[:, :, one], k[:, :, one], v[:, :, one], pos=pos[one])
            np.testing.assert_array_equal(made[:, :, one], want)
        cache.keep(8)
        other = loci.Cache("alibi", HEADS, DIM, kv_heads=2, batch=4, capacity=128)
        other.tree(q[:, :, :1], k[:, :, :1], v[:, :, :1], [-1])
        other.keep(0)
        with self.assertRaisesRegex(loci.Error, "k_pos must be None: entry 0 has 1 keys that were appended without"):
            other.tree(q[:, :, at], k[:, :, at], v[:, :, at], PARENTS, pos=pos)
        self.assertEqual(len(other), 1)
        level = pos.copy()
        level[7] = pos[3]  # a row would see the node after it
        with self.assertRaisesRegex(loci.Error, "node 7 of tree 0 is at position 6, .* must rise along a path"):
            cache.tree(q[:, :, at], k[:, :, at], v[:, :, at], PARENTS, pos=level)
        with self.assertRaisesRegex(loci.Error, "k_pos must be given, as it was for earlier keys"):
            cache.tree(q[:, :, at], k[:, :, at], v[:, :, at], PARENTS)
        with self.assertRaisesRegex(loci.Error, "distances up to 4994, .*; make the cache with max_distance="):
            cache.tree(q[:, :, at], k[:, :, at], v[:, :, at], PARENTS, pos=pos + 4988)
        self.assertEqual(len(cache), 5)
        cache.tree(q[:, :, at], k[:, :, at], v[:, :, at], PARENTS, pos=pos + 15)
        with self.assertRaisesRegex(loci.Error, "make the cache with max_distance="):
            cache.tree(k[:, [0, 0, 1, 1], 9:18], k[:, :, 9:18], v[:, :, 9:18], PARENTS, pos=pos + 4988)
        with self.assertRaisesRegex(loci.Error, "there is none"):
            cache.keep(8)  # its paths have keys of the other tree
        again = cache.tree(q[:, :, at], k[:, :, at], v[:, :, at], PARENTS, pos=pos + 15)  # in entries that are free
        for node in path_of(PARENTS, 6):
            one = slice(node, node + 1)
            want = alone.step(q[:, :, one], k[:, :, one], v[:, :, one], pos=pos[one] + 15)
            np.testing.assert_array_equal(again[:, :, one], want)

    def test_layouts_strides_and_out(self) -> None:
        tokens = Tokens("rope:pairing=half+t5:bidirectional=0")
        want = tokens.tree(tokens.prompted())[0]
        arrays, _ = tokens.at(np.arange(PROMPT, PROMPT + len(PARENTS)))
        turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in arrays]
        made = tokens.prompted().tree(*(x.swapaxes(1, 2) for x in turned), PARENTS)
        np.testing.assert_array_equal(made, want)
        backward = [np.ascontiguousarray(x[..., ::-1])[..., ::-1] for x in arrays]
        np.testing.assert_array_equal(tokens.prompted().tree(*backward, PARENTS), want)
        cache = tokens.cache(1 + LEAVES, layout="blhd")
        prompt, _ = tokens.at(np.arange(PROMPT))
        cache.tree(*(x.swapaxes(1, 2) for x in prompt), range(-1, PROMPT - 1))
        cache.keep(PROMPT - 1)
        np.testing.assert_array_equal(cache.tree(*turned, PARENTS).swapaxes(1, 2), want)
        room = np.full((1, HEADS, 2, len(PARENTS) + 1, DIM), 7, np.float32)
        out = room[:, :, 1, :-1]
        made = tokens.prompted().tree(*arrays, PARENTS, nodes=6, out=out)
        self.assertIs(made, out)
        np.testing.assert_array_equal(out[:, :, :6], want[:, :, :6])
        out[:, :, :6] = 7
        self.assertTrue((room == 7).all())

    def test_none(self) -> None:
        """No nodes, no trees, no node that is kept: nothing changes but what paths took."""
        tokens = Tokens("alibi")
        cache = tokens.prompted()
        before = cache.memory.copy()
        for parents in ([], np.zeros((1, 0), int)):
            self.assertEqual(tokens.tree(cache, parents)[0].shape, (1, HEADS, 0, DIM))
            cache.keep(-1)
        q, k, v = (x[:0] for x in tokens.arrays)
        self.assertEqual(cache.tree(q, k, v, range(-1, LENGTH - 1)).shape, (0, HEADS, LENGTH, DIM))
        cache.keep([])
        self.assertTrue(tokens.tree(cache, PARENTS, nodes=0)[0].shape[2])
        cache.keep(-1)
        np.testing.assert_array_equal(cache.memory, before)
        want = tokens.tree(cache)[0]
        cache.keep(-1)
        self.assertEqual(len(cache), PROMPT)
        self.same(tokens.tree(cache), [want])
        with self.assertRaisesRegex(loci.Error, "q has a batch of 1 and the cache of 4"):  # which looks like the tree
            tokens.step(cache, np.arange(PROMPT, PROMPT + len(PARENTS)))

    def test_parents_of_all_kinds(self) -> None:
        tokens = Tokens("alibi")
        cache = tokens.prompted()
        want = tokens.tree(cache)
        kinds: list[Any] = [tuple(PARENTS), [PARENTS], *(np.array(PARENTS, t) for t in (np.int8, np.int32, ">i8"))]
        kinds.append(np.array([PARENTS, PARENTS]).T[:, 0])  # with a stride
        if torch is not None:
            kinds += [torch.tensor(PARENTS), torch.tensor([PARENTS], dtype=torch.int16)]
        for parents in kinds:
            with self.subTest(parents=parents):
                self.same(tokens.tree(cache, parents), want)
        mine = np.array(PARENTS)
        self.same(tokens.tree(cache, mine), want)
        mine[:] = 99  # a cache has its own
        cache.keep(np.int8(KEPT))
        self.assertEqual(len(cache), PROMPT + len(path_of(PARENTS, KEPT)))

    def test_what_paths_take(self) -> None:
        """By default no keys are lost but those of earlier trees."""
        tokens = Tokens("alibi")
        cache = tokens.prompted()
        tokens.tree(cache)
        cache.keep(KEPT)
        tokens.tree(cache)  # entries with paths are free
        cache.truncate(PROMPT)
        tokens.tree(cache)
        row = [np.repeat(x[:, :, :1], 1 + LEAVES, 0) for x in tokens.arrays]
        cache.append(*row[1:], k_lens=[0, 0, 1, 0])
        lengths = cache.lengths
        with self.assertRaisesRegex(loci.Error, f"entry 2 has {lengths[2]} keys, which a path of the tree would repl"):
            tokens.tree(cache)
        self.assertEqual(cache.lengths, lengths)
        tokens.tree(cache, range(-1, 4))  # one path, in entry 1
        self.assertEqual(cache.lengths[1:], [PROMPT + 5, *lengths[2:]])
        tokens.tree(cache, [-1], branch=2)
        self.assertEqual(cache.lengths[1:], [PROMPT + 5, PROMPT + 1, lengths[3]])
        tokens.tree(cache)  # now it is one of a tree
        cache.fork(0, 3)
        with self.assertRaisesRegex(loci.Error, f"entry 3 has {PROMPT} keys"):
            tokens.tree(cache)
        cache.truncate(0, 3)
        tokens.tree(cache)
        tokens.tree(cache, [-1, 0], entry=2)  # a path is a sequence now
        with self.assertRaisesRegex(loci.Error, "entry 2 has "):
            tokens.tree(cache)
        cache.step(*row)
        with self.assertRaisesRegex(loci.Error, "entry 1 has "):
            tokens.tree(cache)

    def test_any_change_forgets_the_tree(self) -> None:
        tokens = Tokens("alibi")
        row = [np.repeat(x[:, :, :1], 1 + LEAVES, 0) for x in tokens.arrays]

        def keeps(change: Any, node: int = 1) -> None:
            cache = tokens.prompted()
            tokens.tree(cache)
            change(cache)
            cache.keep(node)

        keeps(lambda cache: cache.attend(row[0]))  # which changes nothing
        for change in (
            lambda cache: cache.step(*row),
            lambda cache: cache.append(*row[1:]),
            lambda cache: cache.truncate(PROMPT - 1, 0),
            lambda cache: cache.truncate(PROMPT, 0),
            lambda cache: cache.remove(3, 2, 0),
            lambda cache: cache.fork(0, 2),
            lambda cache: cache.keep(-1),
        ):
            with self.assertRaisesRegex(loci.Error, "there is none, or the cache has changed since"):
                keeps(change)
        with self.assertRaisesRegex(loci.Error, "there is none"):
            tokens.cache(4).keep(-1)
        # what was refused has changed nothing
        cache = tokens.prompted()
        tokens.tree(cache)
        for refused in (
            lambda: cache.truncate(PROMPT + 1, 0),
            lambda: cache.fork(0, 0),
            lambda: cache.remove(PROMPT, 1, 0),
            lambda: tokens.tree(cache, [0]),
            lambda: cache.append(row[1], row[2][:, :1]),
            lambda: cache.keep(len(PARENTS)),
        ):
            with self.assertRaises(loci.Error):
                refused()
        cache.keep(KEPT)
        self.assertEqual(len(cache), PROMPT + len(path_of(PARENTS, KEPT)))
        # as a whole, behind the back of keep()
        other = tokens.prompted()
        tokens.tree(other)
        other.memory[:] = cache.memory
        with self.assertRaisesRegex(loci.Error, "entry 1 has 65 keys, .*: keep the trees of the last tree()"):
            other.keep(0)

    def test_copies_keep_their_own(self) -> None:
        tokens = Tokens("rope:pairing=half")
        cache = tokens.prompted()
        tokens.tree(cache)
        others = [cache.copy(), copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))]
        cache.keep(KEPT)
        want = tokens.tree(cache)
        for other in others:
            self.assertEqual(len(other), PROMPT)
            other.keep(KEPT)
            self.same(tokens.tree(other), want)
        old = cache._state()  # as 0.2 had it
        del old["trees"], old["paths"]
        with self.assertRaisesRegex(loci.Error, "there is none"):
            _again(old).keep(0)

    def test_what_is_wrong_changes_nothing(self) -> None:
        tokens = Tokens("fox")
        cache = tokens.prompted()
        (q, k, v), told = tokens.at(np.arange(PROMPT, PROMPT + 4))
        given: dict[str, Any] = {"q": q, "k": k, "v": v, "parents": [-1, 0, 0, 1], **told}
        two = {name: np.repeat(x, 2, 0) for name, x in (("q", q), ("k", k), ("v", v))}
        two["inputs"] = {"fox.log_f": np.repeat(told["inputs"]["fox.log_f"], 2, 0)}  # type: ignore[assignment]
        pair: dict[str, Any] = {**two, "parents": [-1, 0, 1, 2]}
        five = {name: np.repeat(x, 5, 0) for name, x in (("q", q), ("k", k), ("v", v))}
        more: dict[str, Any] = {**five, "inputs": {"fox.log_f": np.repeat(told["inputs"]["fox.log_f"], 5, 0)}}
        before = cache.memory.copy()
        for other, sentence in (
            ({"parents": [-1, 1, 0, 0]}, "^parents: node 1 comes after 1, not after an earlier node or -1$"),
            ({"parents": [-1, 0, -2, 0]}, "^parents: node 2 comes after -2, not after"),
            ({"parents": [-1, 2**62, 0, 0]}, "^parents: node 1 comes after 4611686018427387904, not after"),
            ({**pair, "parents": [[-1] * 4, [-1, 0, 5, 0]]}, "^parents: node 2 of tree 1 comes after 5, not after"),
            ({"parents": [-1, 0, 0]}, r"parents has the shape \[3\], not \[4\] or \[1, 4\]"),
            ({**pair, "parents": [[-1, 0], [-1]]}, "parents must be one list, or lists of one length"),
            ({"parents": [-1, 0.5, 0, 0]}, "parents must be whole numbers, not float64"),
            ({"parents": None}, "parents must be whole numbers"),
            ({"parents": [True] * 4}, "parents must be whole numbers, not bool"),
            (
                {"parents": [-1] * 4},
                "has 4 paths, and room for 3: each leaf .* make the cache with batch=5, or give br",
            ),
            ({**pair, "parents": [-1, -1, 0, 0]}, "tree 0 has 3 paths, and room for 1: .* batch=8"),
            (more, "tree 0 has 2 paths, and room for 0: .* batch=15"),
            ({"entry": 3}, "tree 0 has 2 paths, and room for 0: .* or give branch="),
            ({"entry": 4}, "entry must be from 0 to 3, not 4"),
            ({"entry": -1}, "entry must be from 0 to 3, not -1"),
            ({"entry": [0, 1]}, r"entry has the shape \[2\], not \[1\] or \[\]"),
            ({"entry": 0.0}, "entry must be whole numbers"),
            ({**pair, "entry": 2}, "trees 0 and 1 continue the same entry 2|room for 0"),
            ({**pair, "entry": 2, "branch": [0, 1]}, "trees 0 and 1 continue the same entry 2"),
            ({**pair, "branch": 2}, "trees 0 and 1 have the same entries for their paths"),
            ({**pair, "entry": [0, 2], "branch": [1, 0]}, "a tree continues an entry that paths may take: 0"),
            ({"branch": 0}, "a tree continues an entry that paths may take: 0"),
            ({"branch": 3}, "tree 0: 2 entries from 3 on must be entries of the cache, which has 4"),
            ({"branch": -1}, "tree 0: 2 entries from -1 on must be entries of the cache"),
            ({"branch": 2**62}, "tree 0: 2 entries from 4611686018427387904 on must be entries"),
            ({"nodes": 5}, "nodes: tree 0 has 5 nodes, and q has 4 rows"),
            ({"nodes": -1}, "nodes: tree 0 has -1 nodes, and q has 4 rows"),
            ({"nodes": [1, 2]}, r"nodes has the shape \[2\]"),
            ({"q": q.astype(np.float64)}, "q is float64 and the cache float32"),
            ({"k": k[..., :8]}, "k has 2 heads of 8, and the cache wants 2 of 32"),
            ({"k": np.repeat(k, 2, 0)}, "k has a batch of 2 and q of 1"),
            ({"v": v[:, :, :3]}, "v has 3 rows and q 4"),
            ({"q": q[0]}, "layout 'bhld' has 4 dimensions"),
            ({"q": q.tolist()}, "must be an array"),
            ({"inputs": None}, "fox.log_f is missing"),
            ({"inputs": {"fox.log_f": tokens.inputs["fox.log_f"]}}, "fox.log_f has the shape"),
            ({"out": np.zeros((1, HEADS, 4, DIM))}, "out is float64 and q float32"),
            ({"out": q[:, :, :3]}, "out has the shape"),
            ({"out": q}, "overlaps"),
        ):
            with self.subTest(sentence=sentence):
                kept = q.copy()
                with self.assertRaisesRegex((loci.Error, TypeError), sentence):
                    cache.tree(**{**given, **other})
                np.testing.assert_array_equal(cache.memory, before)
                np.testing.assert_array_equal(q, kept)
        cache.tree(**given)
        before = cache.memory.copy()
        for node, sentence in (
            (4, "^node 4 of tree 0 must be from -1 to 3$"),
            (-2, "^node -2 of tree 0 must be from -1 to 3$"),
            ([1, 2], r"node has the shape \[2\], not \[1\] or \[\]"),
            (1.0, "node must be whole numbers"),
            (None, "node must be whole numbers"),
            (True, "node must be whole numbers"),
        ):
            with self.subTest(sentence=sentence), self.assertRaisesRegex(loci.Error, sentence):
                cache.keep(node)  # type: ignore[arg-type]
            np.testing.assert_array_equal(cache.memory, before)
        cache.keep(3)
        with self.assertRaisesRegex(
            loci.Error, "tree 0: 66 keys after the 65 of entry 0 do not fit into the cache's 128"
        ):
            tokens.tree(cache, range(-1, 65), 0)
        self.assertEqual(len(cache), 65)

    def test_a_ring(self) -> None:
        q, k, v = Tokens("alibi").arrays
        ring = loci.Cache("alibi", HEADS, DIM, kv_heads=2, batch=2, capacity=128, window_size=(4, 0), ring=True)
        with self.assertRaisesRegex(loci.Error, "a ring has no trees") as refused:
            ring.tree(q, k, v, range(-1, LENGTH - 1))
        self.assertEqual(refused.exception.status, "unsupported")

    @unittest.skipIf(torch is None, "there is no torch")
    def test_torch(self) -> None:
        for text in ("rope:pairing=half", "alibi", "fox"):
            for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
                with self.subTest(encoding=text, dtype=dtype):
                    self.alike_in_torch(Tokens(text), dtype)

    def alike_in_torch(self, tokens: Tokens, dtype: Any) -> None:
        arrays = [torch.from_numpy(x).to(dtype) for x in tokens.arrays]
        real = torch.float64 if dtype == torch.float64 else torch.float32
        inputs = {name: torch.from_numpy(x).to(real) for name, x in tokens.inputs.items()}

        def told(which: Any) -> tuple[list[Any], dict[str, Any]]:
            return [x[:, :, which] for x in arrays], {"inputs": {name: x[:, :, which] for name, x in inputs.items()}}

        caches = [tokens.cache(batch, dtype=dtype) for batch in (1, 1 + LEAVES)]
        prompt, more = told(slice(0, PROMPT))
        caches[0].step(*prompt, **more)
        caches[1].tree(*prompt, torch.arange(-1, PROMPT - 1), **more)
        caches[1].keep(torch.tensor(PROMPT - 1))
        rows, more = told(slice(PROMPT, PROMPT + len(PARENTS)))
        made = caches[1].tree(*rows, torch.tensor(PARENTS), **more)
        self.assertEqual(made.dtype, dtype)
        for leaf in (4, 6, 8):
            other = caches[0].copy()
            for node in path_of(PARENTS, leaf):
                one, more = told(slice(PROMPT + node, PROMPT + node + 1))
                self.assertTrue(torch.equal(made[:, :, node : node + 1], other.step(*one, **more)))
        caches[1].keep(8)
        one, more = told(slice(LENGTH - 1, LENGTH))
        self.assertTrue(torch.equal(caches[1].tree(*one, [-1], **more), other.step(*one, **more)))

    @unittest.skipIf(torch is None, "there is no torch")
    def test_gradients_are_refused(self) -> None:
        tokens = Tokens("alibi")
        cache = tokens.prompted()
        rows = [torch.from_numpy(x) for x in tokens.at(np.arange(PROMPT, PROMPT + 9))[0]]
        for name in range(3):
            leaves = [x.clone().requires_grad_(i == name) for i, x in enumerate(rows)]
            for _ in range(2):  # the second looks like one that was without a gradient
                with self.assertRaisesRegex(loci.Error, "a cache has no gradient; use torch.no_grad()"):
                    cache.tree(*leaves, PARENTS)
                with torch.no_grad():
                    made = cache.tree(*leaves, PARENTS)
                self.assertFalse(made.requires_grad)
        with self.assertRaisesRegex(loci.Error, "out requires a gradient"):
            cache.tree(*rows, PARENTS, out=torch.zeros_like(rows[0], requires_grad=True))
        out = torch.zeros_like(rows[0])
        version = out._version
        self.assertIs(cache.tree(*rows, PARENTS, out=out), out)
        self.assertGreater(out._version, version)
        self.assertTrue(torch.equal(out, made))
        with self.assertRaisesRegex(loci.Error, "k is an array of numpy, and q of torch"):
            cache.tree(rows[0], rows[1].numpy(), rows[2], PARENTS)
        with self.assertRaises(loci.Error):
            torch.func.vmap(lambda q: cache.tree(q, *rows[1:], PARENTS))(rows[0][None])


if __name__ == "__main__":
    unittest.main()
