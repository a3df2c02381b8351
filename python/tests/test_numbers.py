# SPDX-License-Identifier: MIT
"""Numbers of callers: whole ones are whole and fit, and 0 is not None."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any

import numpy as np

import loci

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

X = np.ones((1, 2, 4, 8), np.float32)
LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
FAR = 2**64  # C sees this as 0, and what is beyond it as small


def attend(**options: Any) -> Any:
    return loci.attention(X, X, X, "rope:pairing=half", **options)


def cache(**options: Any) -> loci.Cache:
    made = loci.Cache("nope", **{"heads": 2, "dim": 8, "capacity": 64, **options})
    if made.batch == 1:
        made.append(X, X)
    return made


def plan(**options: Any) -> loci.Plan:
    return loci.Plan("nope", **{"heads": 2, "dim": 8, **options})


# What takes a whole number, under which name, and whether None is the word for the usual one.
WHOLE: list[tuple[str, Callable[[Any], Any], bool]] = [
    ("threads", loci.set_num_threads, False),
    ("window_size", lambda n: attend(window_size=(n, 0)), False),
    ("window_size", lambda n: plan(window_size=(0, n)), False),
    ("window_size", lambda n: cache(window_size=[n, 0]), False),
    ("max_len", lambda n: attend(max_len=n), True),
    ("max_len", lambda n: loci.rotate(X, "rope:pairing=half", max_len=n), True),
    ("max_len", lambda n: loci.embed(X[0], "sinusoidal", max_len=n), True),
    ("heads", lambda n: plan(heads=n), False),
    ("kv_heads", lambda n: plan(kv_heads=n), True),
    ("dim", lambda n: plan(dim=n), False),
    ("value_dim", lambda n: plan(value_dim=n), True),
    ("model_dim", lambda n: loci.Plan("sinusoidal", model_dim=n, stage="embed"), True),
    ("max_len", lambda n: plan(max_len=n), True),
    ("seed", lambda n: plan().init(n), False),
    ("max_distance", lambda n: plan().prepared(max_distance=n), False),
    ("capacity", lambda n: cache(capacity=n), False),
    ("batch", lambda n: cache(batch=n), False),
    ("kv_heads", lambda n: cache(kv_heads=n), True),
    ("length", lambda n: cache().truncate(n), False),
    ("entry", lambda n: cache().truncate(1, n), False),
    ("entry", lambda n: cache().length(n), False),
    ("first", lambda n: cache().remove(n, 1), False),
    ("count", lambda n: cache().remove(0, n), False),
    ("entry", lambda n: cache().remove(0, 1, n), False),
    ("layer", lambda n: loci.rope.from_config(LLAMA, layer=n), False),
    ("rows", lambda n: loci.rope.table("rope:pairing=half", n), False),
    ("from_", lambda n: loci.layers.temperature(X, 0.1, 8, n), False),
    ("heads", lambda n: loci.layers.tape_start(1, n, 4, 8), False),
]
if torch is not None:
    WHOLE += [
        ("kv_heads", lambda n: loci.nn.Attention(16, 2, "nope", kv_heads=n), True),
        ("rows", lambda n: loci.distributed.share_out(n, 2), False),
    ]


class Numbers(unittest.TestCase):
    def tearDown(self) -> None:
        loci.set_num_threads(2)

    def test_far_ones_do_not_wrap(self) -> None:
        for name, call, _ in WHOLE:
            for n in (FAR, FAR + 3, -FAR, FAR // 2 - 1 if name in ("heads", "dim") else FAR):
                with self.subTest(name=name, n=n), self.assertRaisesRegex(loci.Error, name):
                    call(n)

    def test_others_than_whole_ones(self) -> None:
        for name, call, usual in WHOLE:
            for x in (3.7, 3.0, "3", True, *(() if usual or name == "entry" else (None,))):
                with self.subTest(name=name, x=x), self.assertRaisesRegex(TypeError, name):
                    call(x)

    def test_zero_is_not_none(self) -> None:
        for name, call, usual in WHOLE:
            if usual:
                with self.subTest(name=name), self.assertRaisesRegex(loci.Error, f"{name} must be from 1 to .*None"):
                    call(0)

    def test_whole_ones_of_others(self) -> None:
        for two in (np.int64(2), np.array(2), *(() if torch is None else (torch.tensor(2),))):
            self.assertTrue(np.array_equal(attend(window_size=(two, 0)), attend(window_size=(2, 0))))
            made = cache()
            made.truncate(two)
            self.assertEqual(len(made), 2)
            self.assertEqual(plan(kv_heads=two).kv_heads, 2)
        self.assertTrue(np.array_equal(attend(window_size=np.array([2, 0])), attend(window_size=(2, 0))))

    def test_a_cache_keeps_its_keys(self) -> None:
        made = cache()
        for call in (lambda: made.truncate(FAR + 1), lambda: made.remove(FAR + 1, 1), lambda: made.truncate(1.5)):
            with self.assertRaises((loci.Error, TypeError)):
                call()
        self.assertEqual(len(made), 4)

    def test_positions_beyond_int64(self) -> None:
        far = np.array([0, 1, 2, FAR - 5], np.uint64)
        for name in ("pos", "seg"):
            with self.assertRaisesRegex(loci.Error, f"{name} has 18446744073709551611, which is beyond int64"):
                attend(**{name: far})
        near = np.arange(4, dtype=np.uint64)
        self.assertTrue(np.array_equal(attend(pos=near), attend()))

    def test_scale(self) -> None:
        for call in (attend, cache, plan):
            for zero in (0, 0.0, -0.0, np.float32(0)):
                with self.assertRaisesRegex(loci.Error, "scale must not be 0: give None"):
                    call(scale=zero)
            with self.assertRaisesRegex(TypeError, "scale must be a number"):
                call(scale="much")
        self.assertTrue(np.array_equal(attend(scale=np.float64(0.5)), attend(scale=0.5)))

    @unittest.skipIf(torch is None, "there is no torch")
    def test_tensors_as_numbers(self) -> None:
        """They are read once, so that a later change counts, and have no gradient."""
        s = torch.tensor(0.5)
        want = [attend(scale=0.5), attend(scale=2.0)]
        first = attend(scale=s)
        s.fill_(2.0)
        self.assertTrue(np.array_equal(first, want[0]) and np.array_equal(attend(scale=s), want[1]))
        for name in ("scale", "softcap"):
            with self.assertRaisesRegex(loci.Error, f"{name} requires a gradient"):
                attend(**{name: torch.tensor(0.5, requires_grad=True)})

    def test_windows(self) -> None:
        with self.assertRaisesRegex(TypeError, r"window_size must be \(left, right\), not 3; \(n, 0\)"):
            attend(window_size=3)
        for wrong in ((3,), (1, 2, 3), "12", (None, 0)):
            with self.assertRaisesRegex(TypeError, "window_size must be"):
                attend(window_size=wrong)
        with self.assertRaisesRegex(loci.Error, "window_size must be distances"):
            attend(window_size=(-2, 0))


if __name__ == "__main__":
    unittest.main()
