# SPDX-License-Identifier: MIT
"""Attention with an encoding on arrays of numpy: forward, gradients, decode from a cache."""

import numpy as np

import loci

rng = np.random.default_rng(0)
q = rng.standard_normal((1, 8, 512, 64), np.float32)  # batch, heads, tokens, width
k, v = (rng.standard_normal((1, 2, 512, 64), np.float32) for _ in range(2))  # 4 query heads share one of k and v

# Turned by rope, with a learned bias by distance on top: one pass, no 512 x 512 matrix anywhere.
encoding = "rope:pairing=half+t5:bidirectional=0"
tensors = loci.Plan(encoding, heads=8, dim=64, kv_heads=2).init(seed=1)
o, lse = loci.attention(q, k, v, encoding, tensors=tensors, return_lse=True)
print("result", o.shape, o.dtype)

# Gradients, of q, k, v and of what the encoding learns.
dout = rng.standard_normal(o.shape, np.float32)
dq, dk, dv, dtensors = loci.attention_backward(dout, q, k, v, o, lse, encoding, tensors=tensors)
print("gradients", dq.shape, dk.shape, {name: x.shape for name, x in dtensors.items()})

# Token by token from a cache: the bits of the whole pass.
cache = loci.Cache(encoding, heads=8, dim=64, kv_heads=2, capacity=512, tensors=tensors)
rows = [cache.step(q[:, :, i : i + 1], k[:, :, i : i + 1], v[:, :, i : i + 1]) for i in range(32)]
assert np.array_equal(np.concatenate(rows, 2), o[:, :, :32])
print("decode", len(cache), "tokens, the same bits")
