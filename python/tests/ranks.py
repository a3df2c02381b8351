# SPDX-License-Identifier: MIT
"""What test_distributed.py runs in each of several processes: one attention over them has the bits of one process."""

from __future__ import annotations

import ctypes as c
import datetime
import faulthandler
import itertools
import os
import sys
import unittest
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

import loci
from loci import _c, distributed

from . import encodings

HEADS, KV_HEADS, DIM, BATCH = 2, 1, 8, 2
NAMES = ("rope", "alibi", "t5", "fox", "cope", "fire", "sba", "tape", "liere", "xl", "cape")
TIMEOUT = datetime.timedelta(seconds=240)


def bits(x: Any) -> Any:
    x = torch.as_tensor(x).detach().contiguous()
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


class Whole:
    """A problem in one process, which every rank has the same."""

    def __init__(self, text: str, rows: int, dtype: Any, *, batch: int = BATCH, keys: int | None = None) -> None:
        self.text, self.rows = text, rows
        keys = rows if keys is None else keys
        generator = torch.Generator().manual_seed(rows + keys)
        sizes = ((HEADS, rows), (KV_HEADS, keys), (KV_HEADS, keys))
        self.arrays = [torch.randn(batch, h, n, DIM, generator=generator).to(dtype) for h, n in sizes]
        name = str(dtype).removeprefix("torch.")
        self.plan = loci.Plan(text, HEADS, DIM, kv_heads=KV_HEADS, dtype=name, max_len=keys)
        made = {**self.plan.init(1), **encodings.inputs(self.plan, batch, rows, keys)}
        self.tensors = {name: torch.from_numpy(x) for name, x in made.items()}
        axes = self.plan.axes
        self.coords = torch.randint(0, 9, (axes, keys), generator=generator) if axes > 1 else None
        self.axis = {  # of rows or keys, in inputs
            t.name: next(i for i, z in enumerate(sizes) if z in ("queries", "keys"))
            for t, sizes in zip(self.plan.tensors, self.plan.sizes, strict=True)
            if t.role == "input"
        }

    def options(self, shares: Any = None) -> dict[str, Any]:
        """All of it, or what this rank has of it."""
        tensors, coords = dict(self.tensors), self.coords
        if shares is not None:
            tensors.update({name: shares.take(tensors[name], axis) for name, axis in self.axis.items()})
            coords = None if coords is None else shares.take(coords, 1)
        return {"tensors": tensors, "coords": coords, "max_len": self.rows, "return_lse": True}

    def attention(self, arrays: Any, shares: Any = None, **more: Any) -> Any:
        return loci.attention(*arrays, self.text, **self.options(shares), shares=shares, **more)


class Ranks(unittest.TestCase):
    group: distributed.Group

    @classmethod
    def setUpClass(cls) -> None:
        cls.group = distributed.Group()

    def same(self, got: Any, want: Any, what: str) -> None:
        self.assertEqual((got.shape, got.dtype), (want.shape, want.dtype), what)
        self.assertTrue(torch.equal(bits(got), bits(want)), what)


class Forward(Ranks):
    def examples(self) -> Any:
        for e in encodings.attending():
            if e.name in NAMES:
                yield e.example

    def test_every_encoding(self) -> None:
        tried = 0
        for text in self.examples():
            for dtype in (torch.float32, torch.bfloat16):
                whole = Whole(text, 330, dtype)
                want = whole.attention(whole.arrays)
                for layout in ("zigzag", "contiguous"):
                    shares = self.group.share_out(330, layout)
                    own = [shares.take(x, 2) for x in whole.arrays]
                    for gather in (False, True):
                        said = f"{text}, {dtype}, {layout}, gather {gather}, rank {self.group.rank}"
                        got = whole.attention(own, shares, gather=gather)
                        for a, b in zip(got, want, strict=True):
                            self.same(a, shares.take(b, 2), said)
                        tried += 1
        self.assertEqual(tried, 8 * len(NAMES))

    def test_chunks_that_come_by(self) -> None:
        whole = Whole("alibi", 9000, torch.float32, batch=1)
        want = whole.attention(whole.arrays)[0]
        for layout in ("zigzag", "contiguous"):
            shares = self.group.share_out(9000, layout)
            group = distributed.Group(ahead=1, check_tables=True)
            o = whole.attention([shares.take(x, 2) for x in whole.arrays], shares, group=group)[0]
            self.same(o, shares.take(want, 2), layout)
            self.same(distributed.collect(o, shares, 2), want, layout)
            told = group.report
            each = 2 * DIM * 4  # bytes of a key and its value
            own = sum(s.count for s in shares.own)
            seen = max((s.first + s.count for s in shares.own), default=0)
            self.assertGreaterEqual(told.received, each * (seen - own))
            self.assertLessEqual(told.received, each * (9000 - own))
            self.assertGreater(told.attention, 0)
            self.assertEqual(distributed.report(), told)

    def test_dropout(self) -> None:
        """The weights that one process drops, forward and backward; and one seed, though each rank draws its own."""
        rows = 2100
        whole = Whole("t5", rows, torch.float32)
        shares = distributed.Shares([(0, 1024, self.group.ranks - 1), (1024, rows - 1024, 0)])

        def call(shares: Any, gather: bool, seed: Any) -> list[Any]:
            cut = whole.arrays if shares is None else [shares.take(x, 2) for x in whole.arrays]
            q, k, v = (x.clone().requires_grad_() for x in cut)
            more = {} if shares is None else {"shares": shares, "gather": gather}
            o = loci.attention(q, k, v, "t5", tensors=whole.tensors, dropout_p=0.4, dropout_seed=seed, **more)
            (o * o.detach()).sum().backward()
            return [o.detach(), q.grad, k.grad, v.grad]

        want = call(None, False, 2**64 - 2)
        for gather in (False, True):
            for a, b in zip(call(shares, gather, 2**64 - 2), want, strict=True):
                self.same(a, shares.take(b, 2), f"gather {gather}")
        torch.manual_seed(self.group.rank)
        drawn = [int(torch.randint(0, 2**63 - 1, (1,))) for _ in range(2)]
        seeds = distributed.collect(torch.tensor([drawn]), [(r, 1, r) for r in range(self.group.ranks)], 0)
        torch.manual_seed(self.group.rank)
        for seed in seeds.max(0).values.tolist():
            o = call(shares, False, None)[0]
            self.same(o, shares.take(call(None, False, seed)[0], 2), "a seed of all ranks")
        with self.assertRaisesRegex(loci.Error, "ranks differ in dropout_seed" if self.group.ranks > 1 else "alone"):
            if self.group.ranks == 1:
                raise loci.Error("alone")
            call(shares, False, self.group.rank)

    def test_numpy_layouts_and_positions(self) -> None:
        whole = Whole("rope:pairing=half+alibi", 300, torch.float32)
        arrays = [x.transpose(1, 2).contiguous().numpy() for x in whole.arrays]
        at = np.arange(300) * 3 + 7
        all_on_one = distributed.Shares([(0, 300, self.group.ranks - 1)])
        for shares, pos in ((self.group.share_out(300), at), (all_on_one, None), (all_on_one, at)):
            want = loci.attention(*arrays, whole.text, layout="blhd", pos=pos)
            own = [shares.take(x, 1) for x in arrays]
            made = np.full(own[0].shape, np.nan, np.float32)
            options = {"layout": "blhd", "pos": None if pos is None else shares.take(pos, 0)}
            o = loci.attention(*own, whole.text, **options, out=made, group=dist.group.WORLD, shares=shares)
            self.assertIs(o, made)
            self.assertTrue(np.array_equal(o, shares.take(want, 1)))
            self.assertTrue(np.array_equal(distributed.collect(o, list(shares), 1), want))

    def test_keys_of_others(self) -> None:
        whole = Whole("t5:bidirectional=1", 200, torch.float32, keys=270)
        want = loci.attention(*whole.arrays, whole.text, tensors=whole.tensors, causal=False)
        rows, keys = self.group.share_out(200), self.group.share_out(270, "contiguous")
        q, (k, v) = rows.take(whole.arrays[0], 2), (keys.take(x, 2) for x in whole.arrays[1:])
        with distributed.sharing(rows, key_shares=keys, gather=True):
            o = loci.attention(q, k, v, whole.text, tensors=whole.tensors, causal=False)
        self.same(o, rows.take(want, 2), "cross attention")


@unittest.skipUnless(hasattr(_c.lib, "parallel_backward"), "libloci has no gradients over ranks")
class Backward(Ranks):
    def grads(self, whole: Whole, shares: Any = None, **more: Any) -> dict[str, Any]:
        """Of everything, from gradients of all outputs."""
        taken = [x if shares is None else shares.take(x, 2) for x in whole.arrays]
        arrays = [x.clone().requires_grad_() for x in taken]
        options = whole.options(shares)
        roles = {t.name: t.role for t in whole.plan.tensors}
        learns = {n: x.clone().requires_grad_() for n, x in options["tensors"].items() if roles[n] != "fixed"}
        options["tensors"] = {**options["tensors"], **learns}
        outputs = loci.attention(*arrays, whole.text, **options, shares=shares, **more)
        generator = torch.Generator().manual_seed(5)
        douts = []
        for o in outputs:
            shape = list(o.shape)
            shape[2] = whole.rows
            dout = torch.randn(shape, generator=generator).to(o.dtype)
            douts.append(dout if shares is None else shares.take(dout, 2))
        wanted = dict(zip(("q", "k", "v"), arrays, strict=True)) | learns
        made = torch.autograd.grad(outputs, list(wanted.values()), douts)
        return dict(zip(wanted, made, strict=True))

    def test_every_encoding(self) -> None:
        ranks = self.group.ranks
        rows = 1024 * (2 * ranks - 1) + 40  # in pieces of 1024, which gradients want, and one that is less
        owners = {"zigzag": [*range(ranks), *reversed(range(ranks))], "contiguous": sorted([*range(ranks)] * 2)}
        layouts = {
            layout: distributed.Shares((1024 * i, min(1024, rows - 1024 * i), rank) for i, rank in enumerate(list_))
            for layout, list_ in owners.items()
        }
        tried = 0
        for i, text in enumerate(Forward.examples(Forward())):
            dtype = torch.bfloat16 if i % 3 == 2 else torch.float32
            whole = Whole(text, rows, dtype, batch=1)
            want = self.grads(whole)
            for j, (layout, shares) in enumerate(layouts.items()):
                got = self.grads(whole, shares, gather=bool((i + j) % 2))
                for name, x in want.items():
                    axis = 2 if name in "qkv" else whole.axis.get(name)
                    part = x if axis is None else shares.take(x, axis)
                    self.same(got[name], part, f"{text}, {dtype}, {layout}, d{name}, rank {self.group.rank}")
                tried += 1
        self.assertEqual(tried, 2 * len(NAMES))

    def test_chunks_that_come_by(self) -> None:
        whole = Whole("alibi+sink", 9000, torch.float32, batch=1)
        want = self.grads(whole)
        parts = [(4096 * i, min(4096, 9000 - 4096 * i), (i + 1) % self.group.ranks) for i in range(3)]
        for shares in (self.group.share_out(9000), distributed.Shares(parts)):
            for gather in (False, True):
                got = self.grads(whole, shares, gather=gather)
                for name, x in want.items():
                    part = shares.take(x, 2) if name in "qkv" else x
                    self.same(got[name], part, f"{shares}, gather {gather}, d{name}, rank {self.group.rank}")

    def test_who_is_given_what_is_learned(self) -> None:
        rows = 2048 * self.group.ranks
        whole = Whole("fox+t5:bidirectional=0", rows, torch.float32, batch=1)
        want, shares = self.grads(whole), self.group.share_out(rows)
        got = self.grads(whole, shares, group=distributed.Group(whole_gradients=False))
        self.assertIn("fox.log_f", got)
        for name, x in want.items():
            if name != "t5.table":
                self.same(got[name], shares.take(x, 2), name)
        table = want["t5.table"]
        self.same(got["t5.table"], torch.zeros_like(table) if self.group.rank else table, "t5.table")

    def test_numpy(self) -> None:
        rows = 2048 * self.group.ranks
        whole = Whole("t5:bidirectional=0", rows, torch.float32, batch=1)
        arrays = [x.numpy() for x in whole.arrays]
        tensors = {name: x.numpy() for name, x in whole.tensors.items()}
        dout = np.random.default_rng(3).standard_normal(arrays[0].shape, np.float32)
        o, lse = loci.attention(*arrays, whole.text, tensors=tensors, return_lse=True)
        want = loci.attention_backward(dout, *arrays, o, lse, whole.text, tensors=tensors)
        shares = self.group.share_out(rows, "contiguous")
        own = [shares.take(x, 2) for x in (dout, *arrays, o, lse)]
        got = loci.attention_backward(*own, whole.text, tensors=tensors, shares=shares)
        for a, b in zip(got[:3], want[:3], strict=True):
            self.assertTrue(np.array_equal(a, shares.take(b, 2)))
        self.assertEqual(list(got[3]), list(want[3]))
        for name, x in want[3].items():
            self.assertTrue(np.array_equal(got[3][name], x), name)

    def test_modules_and_sums(self) -> None:
        """A layer's parameters have the gradient of one process, whoever sums up."""
        from loci import nn

        rows = 2048 * self.group.ranks
        torch.manual_seed(1)
        layer = nn.Attention(16, HEADS, "t5:bidirectional=0", kv_heads=KV_HEADS)
        x = torch.randn(1, rows, 16)
        layer(x).square().sum().backward()
        want = {name: p.grad for name, p in layer.named_parameters()}
        layer.register_parameter("unused", unused := torch.nn.Parameter(torch.zeros(3)))
        shares = self.group.share_out(rows)
        for group in (self.group, distributed.Group(whole_gradients=False)):
            layer.zero_grad()
            with distributed.sharing(shares, group=group):
                layer(shares.take(x, 1)).square().sum().backward()
            table = layer.encoding.tensors()["t5.table"]
            if group.whole_gradients or not group.rank:
                self.same(table.grad, want["encoding.t5.table"], "whole")
            else:
                self.assertFalse(table.grad.any())
            distributed.sum_gradients(layer, group)
            self.assertIsNone(unused.grad)
            self.same(table.grad, want["encoding.t5.table"], "summed")
            self.near(layer, want)
        # the wrapper of torch sums up everything and divides by the ranks
        layer.zero_grad()
        wrapped = torch.nn.parallel.DistributedDataParallel(layer, find_unused_parameters=True)
        with distributed.sharing(shares, group=distributed.Group(whole_gradients=False)):
            (wrapped(shares.take(x, 1)).square().sum() * self.group.ranks).backward()
        self.near(layer, want)

    def near(self, layer: Any, want: Any) -> None:
        for name, p in layer.named_parameters():
            if name in want:
                self.assertLess((p.grad - want[name]).abs().max(), 1e-4 * want[name].abs().max(), name)


class Decode(Ranks):
    def test_arrays(self) -> None:
        keys = 4096 * (self.group.ranks - 1) + 70
        shares = distributed.Shares((4096 * r, min(4096, keys - 4096 * r), r) for r in range(self.group.ranks))
        for text in Forward.examples(Forward()):
            with self.subTest(encoding=text):
                whole = Whole(text, 3, torch.float32, batch=1, keys=keys)
                options = {**whole.options(), "max_len": keys}
                q_coords = whole.coords[:, -3:] if whole.coords is not None else None
                at = {} if whole.coords is None else {"q_coords": q_coords, "k_coords": whole.coords}
                del options["coords"]
                want = loci.attention(*whole.arrays, text, **options, **at)
                by_key = {
                    t.name: sizes.index("keys")
                    for t, sizes in zip(whole.plan.tensors, whole.plan.sizes, strict=True)
                    if "keys" in sizes
                }
                own = {name: shares.take(x, by_key[name]) if name in by_key else x for name, x in whole.tensors.items()}
                if at:
                    at["k_coords"] = shares.take(whole.coords, 1)
                k, v = (shares.take(x, 2) for x in whole.arrays[1:])
                options["tensors"] = own
                got = distributed.decode(whole.arrays[0], k, v, text, shares=shares, **options, **at)
                for a, b in zip(got, want, strict=True):
                    self.same(a, b, text)

    def test_caches(self) -> None:
        ranks = self.group.ranks
        length = 4096 * (ranks - 1)
        for text in ("rope:pairing=half+alibi", "t5:bidirectional=0", "cope", "sba"):
            whole = Whole(text, length + 60, torch.float32, batch=1)
            gates = {name: axis for name, axis in whole.axis.items() if name.startswith("cope.")}
            learned = {name: x for name, x in whole.tensors.items() if name not in gates}
            want = whole.attention(whole.arrays)[0]
            options = {"kv_heads": KV_HEADS, "tensors": learned, "max_len": whole.rows}
            cache = distributed.Cache(text, HEADS, DIM, capacity=4096 * ranks, **options)
            self.assertEqual(cache.shares(length + 60).rows, length + 60)

            def piece(begin: int, end: int, whole: Whole = whole, gates: Any = gates) -> Any:
                inputs = {name: whole.tensors[name].narrow(axis, begin, end - begin) for name, axis in gates.items()}
                return [x[:, :, begin:end] for x in whole.arrays], inputs or None

            # a prompt that each rank has its own part of, then tokens, of which some go to two ranks
            prompt = length - 9
            parts = cache.shares(prompt)
            (_, k, v), inputs = piece(0, prompt)
            own = None if inputs is None else {name: parts.take(x, gates[name]) for name, x in inputs.items()}
            cache.fill(parts.take(k, 2), parts.take(v, 2), prompt, inputs=own)
            for begin, end in ((prompt, prompt + 4), (prompt + 4, prompt + 40), (prompt + 40, prompt + 41)):
                arrays, inputs = piece(begin, end)
                o = cache.step(*arrays, inputs=inputs)
                self.same(o, want[:, :, begin:end], f"{text}, {begin} to {end}")
            self.assertEqual((len(cache), len(cache.own)), (prompt + 41, cache.shares()[self.group.rank].count))
            cache.truncate(prompt)
            arrays, inputs = piece(prompt, prompt + 12)
            self.same(cache.step(*arrays, inputs=inputs), want[:, :, prompt : prompt + 12], text)

            # what fails on one rank fails on all, and changes nothing
            q, k, v = arrays
            with self.assertRaisesRegex(loci.Error, "v has 11 rows and k 12"):
                cache.step(q, k, v[:, :, :11], inputs=inputs)
            last = self.group.rank == ranks - 1
            with self.assertRaisesRegex(
                loci.Error, "wants 2 of 8" if last else f"rank {ranks - 1} failed before it called"
            ):
                cache.step(q[..., :4] if last else q, k, v, inputs=inputs)
            self.assertEqual((len(cache), cache.own.length()), (prompt + 12, cache.shares()[self.group.rank].count))


class Models(Ranks):
    """Of transformers: each rank has its own tokens, and says where they are."""

    def model(self, window: int | None = None) -> Any:
        try:
            import transformers
        except ImportError:
            raise unittest.SkipTest("there is no transformers") from None
        import loci.hf

        loci.hf.register(fallback="error")
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 32}
        heads = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": DIM}
        torch.manual_seed(3)
        if window is None:
            config: Any = transformers.LlamaConfig(**sizes, **heads)
            return transformers.LlamaForCausalLM._from_config(config, attn_implementation="loci")
        config = transformers.MistralConfig(**sizes, **heads, sliding_window=window)
        return transformers.MistralForCausalLM._from_config(config, attn_implementation="loci")

    def test_logits(self) -> None:
        tokens = torch.randint(32, (2, 400), generator=torch.Generator().manual_seed(1))
        shares = self.group.share_out(400)
        mine, at = shares.take(tokens, 1), torch.from_numpy(shares.positions())[None]
        from transformers.masking_utils import create_sliding_window_causal_mask

        for model in (self.model(), self.model(window=260)):  # which is more than a rank has rows
            for cache in (True, False):
                with torch.no_grad():
                    want = model(tokens, use_cache=False).logits
                    with distributed.sharing(shares):
                        got = model(mine, position_ids=at, use_cache=cache).logits
                    whole = distributed.collect(got, shares, 1)
                self.assertLess((whole - want).abs().max(), 1e-5)
        given = {"config": model.config, "inputs_embeds": model.model.embed_tokens(mine), "past_key_values": None}
        with distributed.sharing(shares):
            mask: Any = create_sliding_window_causal_mask(**given, attention_mask=None, position_ids=at)
        self.assertEqual((mask.causal, mask.window, mask.whole), (True, (259, -1), True))

    def test_what_ranks_cannot_have(self) -> None:
        model, shares = self.model(), self.group.share_out(400)
        tokens = torch.zeros(2, shares.positions().size, dtype=torch.int64)
        at = torch.from_numpy(shares.positions())[None]
        padded = torch.ones_like(tokens)
        padded[0, 0] = 0
        packed = torch.arange(tokens.shape[1])[None] % 50
        for options, said in (
            ({"position_ids": at + 1}, "position_ids must be those of this rank's rows"),
            ({"position_ids": at, "attention_mask": padded}, "no padding, packed sequences or chunks"),
            ({"position_ids": packed, "use_cache": False}, "no padding, packed sequences or chunks"),
            ({"position_ids": at, "output_attentions": True}, "this rank has only its own rows"),
        ):
            with distributed.sharing(shares), self.assertRaisesRegex(loci.Error, said):
                model(tokens, **options)
        from transformers.masking_utils import create_chunked_causal_mask

        model.config.attention_chunk_size = 50
        given = {"config": model.config, "inputs_embeds": model.model.embed_tokens(tokens), "past_key_values": None}
        for where in (at, None):
            with (
                distributed.sharing(shares),
                self.assertRaisesRegex(loci.Error, "no padding, packed sequences or chunks"),
            ):
                create_chunked_causal_mask(**given, attention_mask=None, position_ids=where)


class Errors(Ranks):
    def problem(self) -> Any:
        shares = self.group.share_out(300)
        return shares, [shares.take(x, 2) for x in Whole("nope", 300, torch.float32).arrays]

    def test_what_is_wrong_on_one_rank_is_told_to_all(self) -> None:
        shares, (q, k, v) = self.problem()
        mine = self.group.rank == 1
        with self.assertRaisesRegex(loci.Error, "^v has 3 rows" if mine else "parallel: rank 1: v has 3 rows"):
            loci.attention(q, k, v[:, :, :3] if mine else v, shares=shares)
        with self.assertRaisesRegex(TypeError if mine else loci.Error, "v must be an array"):
            loci.attention(q, k, 7 if mine else v, shares=shares)
        with self.assertRaisesRegex(loci.Error, "rank 1: q_len .* must be"):
            loci.attention(*((x[:, :, :9] for x in (q, k, v)) if mine else (q, k, v)), shares=shares)
        with self.assertRaisesRegex(loci.Error, "ranks differ in whether positions are given"):
            loci.attention(q, k, v, shares=shares, pos=shares.positions() if mine else None)
        with self.assertRaisesRegex(loci.Error, "the part|axis 2 has 9 rows" if mine else "rank 1: axis 2 has 9 rows"):
            distributed.collect(v[:, :, :9] if mine else v, shares, 2)
        # between the agreement and C
        empty = mock.patch("loci._torch.Torch.empty", side_effect=MemoryError("no room"))
        with self.assertRaisesRegex(MemoryError if mine else loci.Error, "no room" if mine else "rank 1 failed before"):
            if mine:
                empty.start()
            try:
                loci.attention(q, k, v, shares=shares)
            finally:
                mock.patch.stopall()
        loci.attention(q, k, v, shares=shares)

    def test_what_ranks_cannot_have(self) -> None:
        shares, arrays = self.problem()
        rows = arrays[0].shape[2]
        for name, x in (
            ("seg", np.zeros(rows, int)),
            ("k_lens", [rows, rows]),
            ("mask", torch.zeros(rows, rows)),
            ("k_first", np.zeros(rows, int)),
        ):
            more = {"k_last": np.full(rows, rows)} if name == "k_first" else {}
            said = "rows of several processes form one sequence per batch entry"
            with self.subTest(name), self.assertRaisesRegex(loci.Error, said):
                loci.attention(*arrays, shares=shares, **{name: x}, **more)
        with self.assertRaisesRegex(loci.Error, "shares is missing"):
            loci.attention(*arrays, group=self.group)
        with self.assertRaisesRegex(loci.Error, "no process group|must be a process group"):
            loci.attention(*arrays, shares=shares, group="gloo")
        with self.assertRaisesRegex(loci.Error, "share 1 begins at 7"):
            loci.attention(*arrays, shares=[(0, 5, 0), (7, 9, 1)])
        with self.assertRaisesRegex(loci.Error, "cannot be mapped by torch.func.vmap"):
            torch.func.vmap(lambda x: loci.attention(x, *arrays[1:], shares=shares))(torch.stack(arrays[:1]))
        with distributed.sharing(shares):
            for wrong in (
                lambda: loci.linear_attention(*arrays),
                lambda: loci.rotate(arrays[0], "rope:pairing=half"),
                lambda: loci.embed(arrays[0][0, 0], "sinusoidal"),
                lambda: loci.layers.shift(arrays[0], arrays[0][..., 0]),
                lambda: loci.layers.temperature(arrays[0], 0.1, 2.0),
                lambda: loci.layers.running_angles(arrays[0]),
            ):
                with self.assertRaisesRegex(loci.Error, "this rank has only its own rows"):
                    wrong()
            loci.rotate(arrays[0], "rope:pairing=half", pos=shares.positions())

    def test_torch_compile_goes_round_it(self) -> None:
        shares, arrays = self.problem()
        want = loci.attention(*arrays, "alibi", shares=shares) * 2
        compiled = torch.compile(lambda *a: loci.attention(*a, "alibi", shares=shares) * 2, backend="eager")
        self.same(compiled(*arrays), want, "compiled")
        compiled = torch.compile(lambda *a: loci.attention(*a, "alibi") * 2, backend="eager")
        compiled(*arrays)
        with distributed.sharing(shares):
            self.same(compiled(*arrays), want, "compiled before")

    def test_shares(self) -> None:
        shares = distributed.Shares([(0, 3, 0), (3, 0, 1), (3, 4, 1), (7, 2, 0)], rank=0)
        self.assertEqual((shares.rows, len(shares), shares[3].count), (9, 4, 2))
        self.assertEqual(shares.positions().tolist(), [0, 1, 2, 7, 8])
        self.assertEqual(shares.of(1).positions().tolist(), [3, 4, 5, 6])
        self.assertEqual(shares.of(2).positions().tolist(), [])
        x = torch.arange(18.0).reshape(2, 9).requires_grad_()
        parts = [shares.of(r).take(x, -1) for r in range(3)]
        self.assertEqual([p.shape[1] for p in parts], [5, 4, 0])
        self.assertTrue(torch.equal(shares.join(parts, 1), x))
        shares.join(parts, 1).sum().backward()
        self.assertTrue(torch.equal(x.grad, torch.ones(2, 9)))
        for call, said in (
            (lambda: shares.take(x, 0), "axis 0 has 2 rows, and the shares 9"),
            (lambda: shares.join([parts[0], parts[0]], 1), "the part of rank 1 has 5 rows, and its shares 4"),
            (lambda: distributed.share_out(-1, 2), "rows must be from 0 to [0-9]*, not -1"),
            (lambda: distributed.share_out(9, 2, "ring"), "layout must be contiguous or zigzag, not 'ring'"),
        ):
            with self.assertRaisesRegex(loci.Error, said):
                call()


def tearing(real: Any, at: int, error: BaseException, works: list[Any]) -> Any:
    """A function that fails after so many calls, once.  What it has begun goes to a list."""
    calls = itertools.count()

    def torn(*arguments: Any, **options: Any) -> Any:
        if next(calls) == at:
            raise error
        works.append(real(*arguments, **options))
        return works[-1]

    return torn


class Messages(Ranks):
    """The table of functions, as C calls it."""

    def begin(self, what: str, rank: int, tag: int, memory: Any, bytes_: int) -> tuple[int, Any]:
        t, request = self.group.transport.struct, c.c_void_p()
        return getattr(t, what)(None, rank, tag, memory, bytes_, c.byref(request)), request

    def end(self, *requests: Any) -> None:
        for request in requests:
            self.assertEqual(self.group.transport.struct.wait(None, c.byref(request)), 0)
            self.assertIsNone(request.value)
        self.assertEqual(self.group.transport._open, {})

    def test_order_sizes_and_pieces(self) -> None:
        """Of one tag in order, empty ones and those to oneself as well."""
        sizes = [0, 1, 700, 65, 0, 64, 200]
        for piece in (1 << 30, 64):
            with mock.patch("loci._transport.PIECE", piece):
                for to in range(self.group.ranks):
                    turn = [(to + i) % self.group.ranks for i in range(self.group.ranks)]
                    self.exchange(sizes, turn)

    def exchange(self, sizes: list[int], ranks: list[int]) -> None:
        me = self.group.rank
        requests, rooms = [], []
        for rank in ranks:
            for i, size in enumerate(sizes):
                filled = np.full(size + 1, me * 16 + i, np.uint8)
                status, request = self.begin("send", rank, i % 2, filled.ctypes.data if size else None, size)
                self.assertEqual(status, 0)
                if request.value is None:
                    filled[:] = 0  # it has gone
                requests.append(request)
                rooms.append(filled)
        for rank in reversed(ranks):
            for i, size in sorted(enumerate(sizes), key=lambda one: -(one[0] % 2)):  # tag 1 before tag 0
                room = np.zeros(size + 1, np.uint8)
                status, request = self.begin("receive", rank, i % 2, room.ctypes.data if size else None, size)
                self.assertEqual(status, 0)
                requests.append(request)
                rooms.append((room, rank * 16 + i))
        self.end(*requests, c.c_void_p())
        for room, number in rooms[len(ranks) * len(sizes) :]:
            self.assertTrue((room[:-1] == number).all() and room[-1] == 0)

    def test_highest(self) -> None:
        me, ranks = self.group.rank, self.group.ranks
        list_ = np.array([me, -me, -(1 << 63), (1 << 63) - 1 - me, 5 if me == 1 else -7], np.int64)
        self.assertEqual(self.group.transport.struct.highest(None, list_.ctypes.data, len(list_)), 0)
        self.assertEqual(list_.tolist(), [ranks - 1, 0, -(1 << 63), (1 << 63) - 1, 5])
        self.assertEqual(self.group.transport.struct.highest(None, None, 0), 0)

    def test_what_is_raised_stays_out_of_c(self) -> None:
        """One rank fails, in an agreement or at a message, in a forward or a backward pass.  The others find their
        connections closed."""
        shares = self.group.share_out(2048 * self.group.ranks)
        own = [shares.take(x, 2).requires_grad_() for x in Whole("nope", shares.rows, torch.float32, batch=1).arrays]
        tries: Any = [(1, "irecv", ValueError, 1, False), (1, "irecv", KeyboardInterrupt, 2, False)]
        tries += [(0, "isend", OSError, 2, False), (1, "irecv", ValueError, 3, True), (0, "isend", OSError, 3, True)]
        for rank, name, kind, at, backward in tries:
            group = distributed.Group(dist.new_group(timeout=TIMEOUT))
            o = loci.attention(*own, shares=shares, group=group) if backward else None
            mine, error = group.rank == rank, kind("torn")
            works: list[Any] = []
            torn = {way: tearing(getattr(dist, way), -1, error, works) for way in ("isend", "irecv")}
            if mine:
                torn[name] = tearing(getattr(dist, name), at, error, works)
            pieces = mock.patch("loci._transport.PIECE", 1 << 15)
            with (
                pieces,
                mock.patch.multiple("torch.distributed", **torn),
                self.assertRaises((loci.Error, kind)) as caught,
            ):
                if o is None:
                    loci.attention(*own, shares=shares, group=group)
                else:
                    o.sum().backward()
            raised: Any = caught.exception
            if mine and kind is KeyboardInterrupt:
                self.assertIs(raised, error)
            else:
                self.assertEqual(raised.status, "transport")
                self.assertRegex(str(raised), f"the transport of rank {group.rank} failed")
                self.assertIsInstance(raised.__cause__, kind if mine else RuntimeError)
                self.assertNotIn("Timed out", str(raised))
            # nothing is open, and the group is broken for good
            self.assertEqual(group.transport._open, {})
            self.assertTrue(works and all(work.is_completed() for work in works))
            with self.assertRaisesRegex(loci.Error, "failed earlier"):
                loci.attention(*own, shares=shares, group=group)
            dist.barrier()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(500, exit=True)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    loci.set_num_threads(1)
    # who fails ends at once, and the others with it: they would wait
    made = unittest.main(exit=False, failfast=True, argv=[sys.argv[0], *sys.argv[1:]])
    if not made.result.wasSuccessful():
        sys.stderr.flush()
        os._exit(1)
    dist.barrier()
    dist.destroy_process_group()
