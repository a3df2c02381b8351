# SPDX-License-Identifier: MIT
"""Keys in pages: the bits of keys in one piece, for every kind of array and layout."""

from __future__ import annotations

import itertools
import unittest
from typing import Any

import numpy as np

import loci

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]


class Pages(unittest.TestCase):
    batch, per, length = 3, 4, 5

    def setUp(self) -> None:
        rng = np.random.default_rng(1)
        self.k = rng.standard_normal((15, 2, self.length, 8), np.float32)
        self.v = rng.standard_normal((15, 2, self.length, 6), np.float32)
        self.table = rng.permutation(15)[:12].reshape(self.batch, self.per)
        self.lens = np.array([20, 1, 9])
        self.rng = rng

    def rows(self, n: int) -> Any:
        return self.rng.standard_normal((self.batch, 4, n, 8), np.float32)

    def whole(self, x: Any) -> Any:
        """[batch, heads, keys, width]"""
        return np.ascontiguousarray(x[self.table].swapaxes(1, 2).reshape(self.batch, 2, -1, x.shape[-1]))

    def test_bits(self) -> None:
        unread = np.where(np.arange(self.per) * self.length < self.lens[:, None], self.table, -3)
        for text, n, causal in itertools.product(("nope", "alibi", "rope:pairing=half+alibi"), (1, 7), (False, True)):
            q = self.rows(n)
            whole = loci.attention(q, self.whole(self.k), self.whole(self.v), text, causal=causal)
            got = loci.attention(q, self.k, self.v, text, causal=causal, pages=self.table)
            np.testing.assert_array_equal(got, whole)
            keys = self.whole(self.k), self.whole(self.v)
            o, lse = loci.attention(q, *keys, text, causal=causal, k_lens=self.lens, return_lse=True)
            for pages in (self.table, unread, unread.astype(np.int32), unread.tolist()):
                options = {"causal": causal, "k_lens": self.lens, "pages": pages}
                got = loci.attention(q, self.k, self.v, text, **options, return_lse=True)
                np.testing.assert_array_equal(got[0], o)
                np.testing.assert_array_equal(got[1], lse)
                other = [x.swapaxes(1, 2) for x in (q, self.k, self.v)]  # strides as they are
                got = loci.attention(*other, text, **options, layout="blhd")
                np.testing.assert_array_equal(got.swapaxes(1, 2), o)

    def test_entries_share_pages(self) -> None:
        q, table = self.rows(3), np.array([[4, 4], [4, 0], [0, 4]])
        got = loci.attention(q, self.k, self.v, pages=table)
        for entry, (a, b) in enumerate(table):
            k, v = (np.concatenate((x[a], x[b]), 1)[None] for x in (self.k, self.v))
            np.testing.assert_array_equal(got[entry : entry + 1], loci.attention(q[entry : entry + 1], k, v))

    def test_with_ranges_and_masks(self) -> None:
        q, seen = self.rows(6), self.rng.random((1, 1, 6, 20)) > 0.3
        options = {"k_first": [[2], [0], [3]], "mask": seen, "k_lens": self.lens}
        whole = loci.attention(q, self.whole(self.k), self.whole(self.v), "alibi", **options)
        np.testing.assert_array_equal(loci.attention(q, self.k, self.v, "alibi", pages=self.table, **options), whole)

    def test_errors(self) -> None:
        q, k, v = self.rows(2), self.k, self.v
        far = self.table.copy()
        far[1, 2] = 15
        for sentence, arrays, options in (
            ("pages: entry 1 has page 15, and k has 15 pages", (q, k, v), {"pages": far}),
            ("pages: entry 0 has page -1, and k has 15 pages", (q, k, v), {"pages": self.table * 0 - 1}),
            ("pages has 1 dimensions", (q, k, v), {"pages": self.table[0]}),
            ("pages has 2 rows, and q a batch of 3", (q, k, v), {"pages": self.table[:2]}),
            ("pages must be whole numbers", (q, k, v), {"pages": self.table + 0.5}),
            ("v has 14 pages and k 15", (q, k, v[:14]), {"pages": self.table}),
            ("v has pages of 4 rows and k of 5", (q, k, v[:, :, :4]), {"pages": self.table}),
            ("k has pages of 0 rows", (q, k[:, :, :0], v[:, :, :0]), {"pages": self.table}),
            ("k_lens: entry 0 has 21 keys", (q, k, v), {"pages": self.table, "k_lens": [21, 1, 1]}),
        ):
            with self.subTest(sentence), self.assertRaisesRegex(loci.Error, sentence):
                loci.attention(*arrays, **options)
        with self.assertRaisesRegex(loci.Error, "pages are of batch entries"):
            loci.attention(q[0], k[0], v[0], pages=self.table, layout="thd", cu_seqlens_q=[0, 4])

    @unittest.skipUnless(torch, "there is no torch")
    def test_torch(self) -> None:
        q, k, v = (torch.from_numpy(x) for x in (self.rows(2), self.k, self.v))
        wanted = loci.attention(q.numpy(), self.k, self.v, pages=self.table)
        for dtype in (torch.int32, torch.int64):
            table = torch.from_numpy(self.table).to(dtype)
            np.testing.assert_array_equal(loci.attention(q, k, v, pages=table).numpy(), wanted)
            attend = torch.compile(lambda q, table=table: loci.attention(q, k, v, pages=table), backend="aot_eager")
            np.testing.assert_array_equal(attend(q).numpy(), wanted)
        q.requires_grad_()
        with self.assertRaisesRegex(loci.Error, "keys in pages have no gradient"):
            loci.attention(q, k, v, pages=table)
        with torch.no_grad():
            np.testing.assert_array_equal(loci.attention(q, k, v, pages=table).numpy(), wanted)


if __name__ == "__main__":
    unittest.main()
