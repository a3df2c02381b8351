# SPDX-License-Identifier: MIT
"""Bad input: one sentence that names the argument, and nothing of numpy, torch or ctypes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import unittest
from typing import Any

import numpy as np

import loci

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

Q = np.zeros((2, 4, 5, 16), np.float32)
K = np.zeros((2, 2, 5, 16), np.float32)
PACKED = np.zeros((5, 4, 16), np.float32)
T5 = np.zeros((32, 4), np.float32)


def shaped(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


# What is given beside q, k, v; the sentence, or how it begins.
CALLS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((Q, shaped(3, 2, 5, 16), K), {}, "k has a batch of 3 and q of 2"),
    ((Q, shaped(2, 2, 5, 8), K), {}, "k is 8 wide and q 16"),
    ((Q, K, shaped(2, 2, 33, 16)), {}, "v has 33 rows and k 5"),
    ((Q, K, shaped(2, 1, 5, 16)), {}, "v has 1 heads and k 2"),
    ((Q, K, shaped(1, 2, 5, 16)), {}, "v has a batch of 1 and q of 2"),
    ((Q, shaped(2, 3, 5, 16), shaped(2, 3, 5, 16)), {}, "kv_heads"),
    ((Q, K.astype(np.float64), K), {}, "k is float64 and q float32"),
    ((Q, K, K.astype(np.float16)), {}, "v is float16 and q float32"),
    ((Q.astype(np.int32), K, K), {}, "q is int32"),
    ((Q.astype(">f4"), K, K), {}, "q is >f4"),
    ((Q[0], K, K), {}, "q has the shape (4, 5, 16); layout 'bhld' has 4 dimensions"),
    ((Q, K, K), {"layout": "hbld"}, "layout must be one of bhld, blhd, thd, not 'hbld'"),
    ((Q, K, K), {"encoding": "ropp"}, "unknown encoding 'ropp'"),
    ((Q, K, K), {"encoding": "rope"}, "rope: the option pairing is required: half|interleaved (half"),
    ((Q, K, K), {"encoding": "rotary"}, "unknown encoding 'rotary'; did you mean 'rope'?"),
    ((Q, K, K), {"encoding": "sinusoidal"}, "sinusoidal does not support stage attention; it is added to the emb"),
    ((Q, K, K), {"encoding": "alibi:slopes=x"}, "alibi: "),
    ((Q, K, K), {"q_pos": [0] * 5}, "k_pos is missing"),
    ((Q, K, K), {"k_seg": [0] * 5}, "q_seg is missing"),
    ((Q, K, K), {"q_coords": [[0] * 5]}, "k_coords is missing"),
    ((Q, K, K), {"pos": [0] * 5, "q_pos": [0] * 5}, "pos stands for both q_pos and k_pos"),
    ((Q, K, K), {"pos": [0] * 6}, "pos has the shape [6], not [5] or [2, 5]"),
    ((Q, K, K), {"pos": [0.5] * 5}, "pos must be whole numbers, not float64"),
    ((Q, K, K), {"seg": [[0] * 5] * 3}, "seg has the shape [3, 5]"),
    ((Q, K, K), {"k_lens": [5, 6]}, "k_lens"),
    ((Q, K, K), {"k_lens": [5]}, "k_lens has the shape [1], not [2]"),
    ((Q, K, K), {"cu_seqlens_q": [0, 5]}, "cu_seqlens_q is for packed sequences"),
    ((Q[:1], K[:1], K[:1]), {"cu_seqlens_k": [0, 5]}, "cu_seqlens_q is missing"),
    ((Q[:1], K[:1], K[:1]), {"cu_seqlens_q": [0, 3, 2, 5]}, "cu_seqlens_q falls"),
    ((Q[:1], K[:1], K[:1]), {"cu_seqlens_q": [0, 4]}, "cu_seqlens_q must go from 0 to the 5 rows of q"),
    ((PACKED, PACKED, PACKED), {"layout": "thd"}, "layout 'thd' is packed: cu_seqlens_q"),
    ((Q, K, K), {"encoding": "rope2d:pairing=half"}, "coords is missing"),
    ((Q, K, K), {"encoding": "rope2d:pairing=half", "coords": [[0] * 5]}, "coords has the shape [1, 5]"),
    ((Q, K, K), {"encoding": "t5"}, "tensors: t5.table is missing, learned, [32, 4]"),
    ((Q, K, K), {"encoding": "t5", "tensors": {"t5.tabel": T5}}, "t5 has no tensor 'tabel' here"),
    ((Q, K, K), {"encoding": "t5", "tensors": {"t5.table": T5[:, :3]}}, "t5"),
    (
        (Q, K, K),
        {"encoding": "t5", "tensors": {"t5.table": T5.astype(np.float64)}},
        "t5.table is float64 and q float32",
    ),
    ((Q, K, K), {"encoding": "nope", "tensors": {"x.y": T5}}, "tensors: nope has no tensor 'x.y'; it has none"),
    ((Q, K, K), {"encoding": "fox"}, "tensors: fox.log_f is missing, input, [2, 4, 5]"),
    ((Q, K, K), {"encoding": "fox", "tensors": {"fox.log_f": shaped(2, 4, 6)}}, "fox.log_f has the shape"),
    ((Q, K, K), {"window_size": (-2, 0)}, "window_size must be distances"),
    ((Q, K, K), {"mask": shaped(5, 6, dtype=bool)}, "mask has the shape [5, 6], which does not spread to [2, 4, 5, 5]"),
    ((Q, K, K), {"mask": shaped(5, 5, dtype=np.int32)}, "mask is int32; it must be of booleans, or of numbers"),
    ((Q, K, K), {"mask": shaped(5, 5, dtype=np.float64)}, "mask is float64 and q float32"),
    ((Q, K, K), {"k_first": [0] * 5, "k_last": [0] * 4}, "k_last has the shape [4], which does not spread to [2, 5]"),
    ((Q, K, K), {"k_first": [[0]] * 3}, "k_first has the shape [3, 1], which does not spread to [2, 5]"),
    ((Q, K, K), {"k_first": 0.5}, "k_first must be whole numbers, not float64"),
    ((Q, K, K), {"k_lens": 6}, "k_lens"),
    ((Q, K, K), {"k_lens": [5, 6], "seg": [0] * 5}, "k_lens: entry 1 has 6 keys, and k has 5"),
    ((Q[..., :0], K[..., :0], K), {}, "q is 0 wide"),
    ((Q, K, K[..., :0]), {}, "v is 0 wide"),
    ((Q, K, K), {"scale": float("nan")}, "scale"),
    ((Q, K, K), {"sinks": shaped(3)}, "sink"),
    ((Q, K, K), {"dropout_p": 1.0, "dropout_seed": 1}, "dropout_p must be from 0 and below 1, not 1.0"),
    ((Q, K, K), {"dropout_p": float("nan"), "dropout_seed": 1}, "dropout_p must be from 0 and below 1, not nan"),
    ((Q, K, K), {"dropout_p": 0.1, "dropout_seed": -1}, "dropout_seed must be from 0 to"),
    ((Q, K, K), {"out": shaped(2, 4, 5, 8)}, "out has the shape [2, 4, 5, 8], not [2, 4, 5, 16]"),
    ((Q, K, K), {"out": shaped(2, 4, 5, 16, dtype=np.float64)}, "out is float64 and q float32"),
]
TYPES: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (([[1.0]], K, K), {}),
    ((Q, "k", K), {}),
    ((Q, K, K), {"encoding": 3}),
    ((Q, K, K), {"window_size": 3}),
    ((Q, K, K), {"dropout": 0.1}),
]


class Errors(unittest.TestCase):
    def test_sentences(self) -> None:
        for arrays, options, sentence in CALLS:
            with self.subTest(sentence=sentence):
                with self.assertRaises(loci.Error) as caught:
                    loci.attention(*arrays, **options)
                self.assertTrue(str(caught.exception).startswith(sentence), str(caught.exception))
                self.assertNotIn("\n", str(caught.exception))
                self.assertIn(caught.exception.status, ("bad_arg", "unsupported"))

    def test_wrong_kinds(self) -> None:
        for arrays, options in TYPES:
            with self.subTest(options=options), self.assertRaises(TypeError):
                loci.attention(*arrays, **options)

    def test_first_contact(self) -> None:
        """What other libraries have leads to what loci has."""
        for name, leads in (
            ("is_causal", "causal"),
            ("attn_mask", "mask"),
            ("attention_mask", "loci.seg.from_mask"),
            ("dropout", "dropout_p"),
            ("softmax_scale", "scale"),
            ("theta", "rope:pairing=half,base="),
            ("rotary", "rope:pairing=half"),
            ("sinusoidal", "loci.embed"),
        ):
            for x in (Q, *(() if torch is None else (torch.from_numpy(Q),))):
                with self.assertRaisesRegex(TypeError, f"has no argument '{name}': .*{leads}"):
                    loci.attention(x, x, x, **{name: None})
        with self.assertRaisesRegex(loci.Error, "loci rope config.json"):
            loci.attention(Q, K, K, "rope")
        with self.assertRaisesRegex(loci.Error, r"loci\.embed\(\) or loci\.nn\.Embedding"):
            loci.attention(Q, K, K, "sinusoidal")

    def test_masked_arrays(self) -> None:
        masked = np.ma.masked_array(Q, mask=Q > 0)
        for call in (
            lambda: loci.attention(masked, K, K),
            lambda: loci.attention(Q, K, np.ma.masked_array(K)),
            lambda: loci.attention(Q, K, K, sinks=np.ma.zeros(4, np.float32)),
            lambda: loci.attention(Q, K, K, pos=np.ma.arange(5)),
            lambda: loci.attention(Q, K, K, out=np.ma.zeros(Q.shape, np.float32)),
            lambda: loci.rotate(masked, "rope:pairing=half"),
            lambda: loci.Cache("nope", 4, 16, batch=2, capacity=64).step(masked, Q, Q),
        ):
            with self.assertRaisesRegex(loci.Error, r"is a masked array, .* give \w+(\.\w+)?\.filled"):
                call()

    def test_no_sentence_is_empty(self) -> None:
        from loci import _c

        self.assertRegex(str(_c.failure(1, _c.CError())), "the call failed .bad_arg. while another thread")

    def test_the_same_for_tensors(self) -> None:
        if torch is None:
            self.skipTest("there is no torch")

        def as_tensor(x: Any) -> Any:
            return torch.from_numpy(x) if isinstance(x, np.ndarray) else x

        for arrays, options, sentence in CALLS:
            if not all(x.dtype.isnative for x in arrays):
                continue
            with self.subTest(sentence=sentence):
                options = {name: as_tensor(x) for name, x in options.items()}
                if "tensors" in options:
                    options["tensors"] = {name: as_tensor(x) for name, x in options["tensors"].items()}
                with self.assertRaises(loci.Error) as caught:
                    loci.attention(*map(as_tensor, arrays), **options)
                self.assertTrue(str(caught.exception).startswith(sentence), str(caught.exception))
        with self.assertRaisesRegex(loci.Error, "k is an array of numpy, and q of torch"):
            loci.attention(torch.from_numpy(Q), K, K)
        with self.assertRaisesRegex(loci.Error, "q is on meta; loci computes on the CPU"):
            loci.attention(torch.from_numpy(Q).to("meta"), torch.from_numpy(K), torch.from_numpy(K))

    @unittest.skipIf(torch is None, "there is no torch")
    def test_signs_to_be_turned(self) -> None:
        q, k = torch.from_numpy(Q), torch.from_numpy(K)
        loci.attention(q, k, k)
        negative = torch.imag(torch.complex(q, q).conj())
        with self.assertRaisesRegex(loci.Error, "q is a view whose signs are still to be turned"):
            loci.attention(negative, k, k)

    @unittest.skipIf(torch is None, "there is no torch")
    def test_mapped(self) -> None:
        """What torch.func.vmap cannot map says so, instead of torch's word on storage."""
        q = torch.ones(3, 1, 2, 4, 8)
        cache = loci.Cache("nope", 2, 8, capacity=64)
        vmap = torch.func.vmap
        for call, name in (
            (lambda: vmap(lambda p: loci.attention(q[0], q[0], q[0], "alibi", pos=p))(torch.ones(3, 4).long()), "pos"),
            (lambda: vmap(lambda x: cache.step(x, x, x))(q), "q"),
            (lambda: vmap(lambda s: loci.attention(q[0], q[0], q[0], scale=s))(torch.ones(3)), "scale"),
        ):
            with self.assertRaisesRegex(loci.Error, f"{name} cannot be mapped by torch.func.vmap"):
                call()

    def test_a_form_that_is_kept_checks_too(self) -> None:
        """A call that looks like an earlier one goes a shorter way, which must not lose what is not in its look."""
        loci.attention(Q, K, K)
        for options, sentence in (({"k_lens": [5, 9]}, "k_lens"), ({"pos": [0] * 4}, "pos has the shape")):
            with self.assertRaisesRegex(loci.Error, sentence):
                loci.attention(Q, K, K, **options)

    def test_pickle(self) -> None:
        error = loci.Error("a sentence", "unsupported")
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((str(again), again.status), ("a sentence", "unsupported"))

    def test_other_functions(self) -> None:
        x = shaped(2, 4, 5, 16)
        for call, sentence in (
            (lambda: loci.rotate(x, "rope:pairing=half", role="output"), "role must be one of"),
            (lambda: loci.rotate(x, "rope:pairing=half", role="value"), "values do not rotate here"),
            (lambda: loci.rotate(x, "alibi"), "alibi"),
            (lambda: loci.rotate(x, "rope:pairing=half", layout="thd"), "layout 'thd' is packed"),
            (lambda: loci.embed(x, "sinusoidal"), "x has 4 dimensions"),
            (lambda: loci.linear_attention(Q, K, K, "t5"), "t5"),
            (lambda: loci.weights(Q, K, rows=[9]), "rows are indices into the 5 rows"),
            (lambda: loci.Plan("nope", 4, 16, stage="attend"), "stage must be one of"),
            (lambda: loci.Plan("nope", 4, 16, dtype="int8"), "dtype must be one of"),
            (lambda: loci.describe("ropo"), "unknown encoding 'ropo'"),
            (lambda: loci.set_num_threads(0), "threads must be from 1"),
            (lambda: loci.Cache("nope", 4, 16, capacity=0), "a cache for a batch of 1 and a capacity of 0"),
        ):
            with self.subTest(sentence=sentence):
                with self.assertRaises(loci.Error) as caught:
                    call()
                self.assertTrue(str(caught.exception).startswith(sentence), str(caught.exception))

    def test_backward_wants_what_forward_gave(self) -> None:
        with self.assertRaisesRegex(loci.Error, "lse is missing: attention"):
            loci.attention_backward(Q, Q, K, K, Q, None)
        with self.assertRaisesRegex(loci.Error, "dout has the shape"):
            loci.attention_backward(Q[:, :1], Q, K, K, Q, shaped(2, 4, 5))

    def test_import(self) -> None:
        """Without a library, or with a file that is none, there is an ImportError that names it; torch stays out."""

        def run(code: str, **environment: str) -> Any:
            whole = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(loci.__file__)), **environment}
            return subprocess.run([sys.executable, "-c", code], env=whole, capture_output=True, text=True, check=False)

        self.assertIn("ImportError: LOCI_LIBRARY is /nowhere", run("import loci", LOCI_LIBRARY="/nowhere").stderr)
        self.assertIn("cannot be loaded", run("import loci", LOCI_LIBRARY=__file__).stderr)
        code = "import sys, loci; loci.layers, loci.seg, loci.rope; sys.exit('torch' in sys.modules)"
        self.assertEqual(run(code).returncode, 0)
        self.assertIn("must be a whole number", run("import loci", LOCI_NUM_THREADS="many").stderr)


if __name__ == "__main__":
    unittest.main()
