# SPDX-License-Identifier: MIT
"""loci.hf.patch() on XLNet: small models with random weights, against their own eager attention."""

from __future__ import annotations

import copy
import unittest
import warnings
from typing import Any

try:
    import torch
    import transformers as tf
except ImportError:
    raise unittest.SkipTest("there is no torch or no transformers") from None

import loci
import loci.hf
from tests.test_hf import Case, Largest, everything, randomise

ROWS, WORDS = 11, 40
# The model computes angles in float32, loci in double: this is what is left of it in double.
ANGLES = 1e-5


def words(rows: int = ROWS, batch: int = 2) -> torch.Tensor:
    return torch.randint(0, WORDS, (batch, rows), generator=torch.Generator().manual_seed(5))


def segments(count: int = 2, rows: int = ROWS) -> torch.Tensor:
    """The second entry's are not in order."""
    made = torch.arange(rows) * count // rows
    return torch.stack((made, made.flip(0).roll(2)))


def padding(side: str) -> torch.Tensor:
    mask = torch.ones(2, ROWS, dtype=torch.int64)
    mask[1, slice(0, 3) if side == "left" else slice(ROWS - 4, ROWS)] = 0
    return mask


def eager(dtype: torch.dtype = torch.float64, kind: Any = tf.XLNetModel, **options: Any) -> Any:
    sizes = {"vocab_size": WORDS, "d_model": 24, "n_layer": 2, "n_head": 4, "d_inner": 32, "dropout": 0.0}
    return randomise(kind(tf.XLNetConfig(**{**sizes, **options}))).to(dtype)


def patched(model: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", loci.hf.FallbackWarning)
        return loci.hf.patch(copy.deepcopy(model))


KINDS: dict[str, dict[str, Any]] = {
    "both directions": {},
    "order": {"attn_type": "uni"},
    "same length": {"attn_type": "uni", "same_length": True},
    "clamped": {"clamp_len": 4},
    "clamped, order": {"clamp_len": 4, "attn_type": "uni"},
    "entries that are read backwards": {"bi_data": True},
}


class XLNet(Case):
    def test_logits_and_gradients(self) -> None:
        for name, options in KINDS.items():
            one = eager(**options)
            other = patched(one)
            for more in (
                {},
                {"token_type_ids": segments()},
                {"token_type_ids": segments(4), "attention_mask": padding("left")},
                {"input_mask": 1 - padding("right")},
                {"perm_mask": torch.rand(2, ROWS, ROWS).gt(0.6).double(), "attention_mask": padding("left")},
            ):
                given = {"input_ids": words(), **more}
                if "order" in name or "length" in name:  # eager attention has no batch of these with a mask
                    given = {key: x[1:] for key, x in given.items()}
                keep = 1 - given["input_mask"] if "input_mask" in given else given.get("attention_mask")
                with self.subTest(name=name, more=set(more)):
                    # rows of padding see themselves in eager attention, and only words here
                    self.same(one, other, keep, tol=ANGLES, use_mems=False, **given)

    def test_memory(self) -> None:
        """Calls that go on where others ended: rows are the last of more keys, and padding is kept."""
        for name, options in KINDS.items():
            one = eager(mem_len=7, **options)
            other = patched(one)
            for mask in (None,) if "uni" in options.values() else (None, padding("left")):
                found = []
                for model in (one, other):
                    mems, parts = None, []
                    for part in range(3):
                        given = {"attention_mask": mask, "token_type_ids": segments() if part else None}
                        with torch.no_grad():
                            out = model((words() + part) % WORDS, mems=mems, use_mems=True, **given)
                        mems = out.mems
                        parts += [out.last_hidden_state, *mems]
                    found.append(parts)
                for want, got in zip(*found, strict=True):
                    self.assertLess(float((want - got).abs().max()), ANGLES, name)
            self.assertEqual(loci.hf.stats()["fallback"], {})

    def test_heads(self) -> None:
        given = {"input_ids": words(), "token_type_ids": segments(), "attention_mask": padding("left")}
        for kind in (tf.XLNetForSequenceClassification, tf.XLNetForQuestionAnsweringSimple, tf.XLNetLMHeadModel):
            one = eager(kind=kind)
            other = patched(one)
            found = []
            for model in (one, other):
                with torch.no_grad():
                    out = model(**given)
                y = next(iter(out.values()))
                found.append(y[given["attention_mask"].bool()] if y.shape[:2] == (2, ROWS) else y)
            self.assertLess(float((found[0] - found[1]).abs().max()), ANGLES)
            self.assertEqual(loci.hf.stats()["fallback"], {})

    def test_positions_that_are_dropped(self) -> None:
        """Waves of each entry, which the model drops in training, with its segments and gradients."""
        for name, options in KINDS.items():
            one = eager(dropout=0.3, **options).train()
            for layer in one.layer:  # what loci drops is not what torch drops
                layer.rel_attn.dropout.p = 0.0
            other = patched(one)
            padded = {} if "uni" in options.values() else {"attention_mask": padding("left")}
            for more in ({}, {"token_type_ids": segments(3), **padded, "use_mems": False}):
                found = []
                for model in (one, other):
                    torch.manual_seed(7)
                    loci.hf.reset_stats()
                    found.append(everything(model, more.get("attention_mask"), {"input_ids": words(), **more}))
                self.assertEqual(loci.hf.stats(), {"fused": 4, "fallback": {}})
                for key, want in found[0].items():
                    scale = float(want.abs().max()) + 1e-3
                    self.assertLess(float((want - found[1][key]).abs().max()) / scale, ANGLES, f"{name}, {key}")

    def test_dropout(self) -> None:
        """loci drops weights in training: those of a seed, and none in eval()."""
        one = eager(dropout=0.3)
        other = patched(one)
        given = {"input_ids": words(), "token_type_ids": segments()}
        want, got = (everything(model, None, given)["output"] for model in (one, other))
        self.assertLess(float((want - got).abs().max()), ANGLES)
        other.train()
        found = []
        for seed in (7, 7, 8):
            torch.manual_seed(seed)
            found.append(everything(other, None, given))
        for name, x in found[0].items():
            self.assertTrue(torch.equal(x, found[1][name]), name)
        self.assertGreater(float((found[0]["output"] - found[2]["output"]).abs().max()), 1e-4)
        self.assertEqual(loci.hf.stats()["fallback"], {})

    def test_half_precision(self) -> None:
        """No further from the same model in double than eager attention is."""
        given = {"token_type_ids": segments(), "attention_mask": torch.ones(2, ROWS)}
        want = eager()(words(), **given).last_hidden_state
        for dtype in (torch.float32, torch.bfloat16):
            one = eager(dtype)
            with torch.no_grad():
                errors = [(m(words(), **given).last_hidden_state - want).abs().mean() for m in (one, patched(one))]
            self.assertLess(float(errors[1]), 1.5 * float(errors[0]) + 1e-6)

    def test_nothing_of_rows_times_keys(self) -> None:
        """No tensor of a pass has as many numbers as pairs."""
        rows = 600
        mask = torch.ones(2, rows, dtype=torch.int64)
        mask[1, :100] = 0
        for options in ({}, {"attn_type": "uni"}, {"dropout": 0.1}):
            model = patched(eager(**options)).train(bool(options.get("dropout")))
            with Largest() as largest, torch.no_grad():
                model(words(rows), token_type_ids=segments(2, rows), attention_mask=mask, use_mems=False)
            self.assertLess(largest.numbers, rows * rows // 2)

    def test_weights_as_an_output(self) -> None:
        for options in ({}, {"bi_data": True}, {"attn_type": "uni", "clamp_len": 4}):
            one = eager(**options)
            given = {"token_type_ids": segments(), "output_attentions": True, "output_hidden_states": True}
            want, got = (model(words(), **given) for model in (one, patched(one)))
            for name in ("attentions", "hidden_states"):
                for x, y in zip(want[name], got[name], strict=True):
                    self.assertLess(float((x - y).abs().max()), ANGLES)
        self.assertIn("output_attentions", loci.hf.stats()["fallback"])

    def test_two_streams(self) -> None:
        """torch computes them, with a warning."""
        one = eager(torch.float32, tf.XLNetLMHeadModel)
        other = patched(one)
        perm, target = torch.zeros(2, ROWS, ROWS), torch.zeros(2, 1, ROWS)
        perm[:, :, -1], target[:, 0, -1] = 1.0, 1.0
        given = {"perm_mask": perm, "target_mapping": target}
        warnings.simplefilter("always", loci.hf.FallbackWarning)
        with self.assertWarnsRegex(loci.hf.FallbackWarning, "two streams, which target_mapping asks for, is computed"):
            got = other(words(), **given).logits
        self.assertTrue(torch.equal(one(words(), **given).logits, got))
        self.assertEqual(loci.hf.stats(), {"fused": 0, "fallback": {"two_streams": 1}})
        loci.hf.register(fallback="error")
        with self.assertRaisesRegex(loci.Error, "two streams, which target_mapping asks for, is not computed by loci"):
            other(words(), **given)
        loci.hf.register()

    def test_another_implementation(self) -> None:
        """A patched model whose attention is set to another one is as it was, and so are its arguments."""
        one = eager()
        other = patched(one)
        given = (words(), padding("left").double(), None, None, None, segments())
        got = other(*given, None, None, False, None, None, False)[0]
        self.assertEqual(loci.hf.stats()["fused"], 2)
        other.config._attn_implementation = "eager"
        want, same = (model(*given, None, None, False).last_hidden_state for model in (one, other))
        self.assertTrue(torch.equal(want, same))
        self.assertLess(float((want - got)[padding("left").bool()].abs().max()), ANGLES)
        self.assertEqual(loci.hf.stats()["fused"], 2)

    def test_one_process(self) -> None:
        from unittest import mock

        from loci import _ranks

        refused = self.assertRaisesRegex(loci.Error, "XLNet's attention is that of one process")
        with mock.patch.object(_ranks.now, "said", (None, None, None, False)), refused:
            patched(eager())(words())


if __name__ == "__main__":
    unittest.main()
