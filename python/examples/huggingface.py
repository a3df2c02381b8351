# SPDX-License-Identifier: MIT
"""loci as the attention of transformers' models: a tiny Llama by its name, a tiny T5 that is patched so that its table
of biases is used as it is, and what falls back.  Weights are random; nothing is loaded."""

import copy
import warnings

import torch
import transformers

import loci.hf

loci.hf.register()
torch.manual_seed(0)

# A model that asks for an attention by name needs nothing else.
config = transformers.LlamaConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    bos_token_id=1,
    eos_token_id=None,
)
llama = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager").eval()
fused = copy.deepcopy(llama)
fused.set_attn_implementation("loci")  # or from_pretrained(path, attn_implementation="loci")

tokens = torch.randint(2, 64, (2, 40))
mask = torch.ones_like(tokens)
mask[0, :9] = 0  # padding on the left
with torch.no_grad():
    difference = (llama(tokens, attention_mask=mask).logits - fused(tokens, attention_mask=mask).logits)[mask.bool()]
print(f"llama: logits differ from eager attention's by {difference.abs().max():.1e}")
assert difference.abs().max() < 1e-5

options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
assert torch.equal(llama.generate(tokens, **options), fused.generate(tokens, **options))
print("llama: generate() gives the same tokens;", loci.hf.stats())

# T5 adds a learned bias to every score.  Patched, its table of 32 numbers a head takes the place of rows times keys.
sizes = {"vocab_size": 64, "d_model": 64, "d_kv": 8, "d_ff": 96, "num_layers": 2, "num_heads": 8}
config = transformers.T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0)
t5 = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation="eager")
patched = loci.hf.patch(copy.deepcopy(t5))

loci.hf.reset_stats()
for model in (t5, patched):
    model(input_ids=tokens, attention_mask=mask, labels=tokens).loss.backward()
one, other = (m.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.grad for m in (t5, patched))
difference = (one - other).abs().max() / one.abs().max()
print(f"t5: the gradient of the table of biases differs by {difference:.1e} of it;", loci.hf.stats())
assert difference < 1e-4

# What loci does not compute, torch does, and says so once.
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    weights = fused(tokens, output_attentions=True).attentions
print("llama:", str(caught[0].message))
assert len(weights) == 2
