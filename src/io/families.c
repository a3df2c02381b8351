/* SPDX-License-Identifier: MIT */
/* families.c -- the model types that are known: one line each, with what their classes decide and their files leave out.
 *
 * `type` alone is a family that turns plain halves of whole heads with base 10000 in every layer, and multiplies q.k by
 * 1/sqrt(head_dim).  A default that a class states as a dictionary stands here as the text that a file would hold. */
#include "io/families.h"

#include <stddef.h>
#include <string.h>

/* ---- Dictionaries that classes have where files have none ------------------------------------------------ */

#define OSS_YARN \
    "{\"rope_type\":\"yarn\",\"factor\":32,\"beta_fast\":32,\"beta_slow\":1,\"truncate\":false," \
    "\"original_max_position_embeddings\":4096,\"rope_theta\":150000}"
#define MINISTRAL3_YARN \
    "{\"rope_type\":\"yarn\",\"rope_theta\":1000000,\"factor\":16,\"original_max_position_embeddings\":16384,\"beta_fast\":32," \
    "\"beta_slow\":1,\"mscale\":1,\"mscale_all_dim\":1,\"llama_4_scaling_beta\":0.1}"
#define MISTRAL4_YARN \
    "{\"rope_type\":\"yarn\",\"rope_theta\":10000,\"factor\":128,\"original_max_position_embeddings\":8192,\"beta_fast\":32," \
    "\"beta_slow\":1,\"mscale\":1,\"mscale_all_dim\":1,\"llama_4_scaling_beta\":0.1}"
#define LARGE4_YARN \
    "{\"rope_type\":\"yarn\",\"rope_theta\":10000,\"factor\":2048,\"original_max_position_embeddings\":512,\"beta_fast\":32," \
    "\"beta_slow\":1,\"attention_factor\":1}"
#define LLAMA3(base, factor, low, high, original) \
    "{\"rope_type\":\"llama3\",\"rope_theta\":" base ",\"factor\":" factor ",\"low_freq_factor\":" low ",\"high_freq_factor\":" high \
    ",\"original_max_position_embeddings\":" original "}"
#define PLAIN(base, more) "{\"rope_type\":\"default\",\"rope_theta\":" base more "}"
#define PART(share) ",\"partial_rotary_factor\":" share
/* Full layers as given, sliding ones plain with base 10000. */
#define KINDS(full) "{\"full_attention\":" full ",\"sliding_attention\":" PLAIN("10000", "") "}"
#define TWO(a, of_a, b, of_b) "{\"" a "\":" of_a ",\"" b "\":" of_b "}"
#define DOTS3_KINDS \
    "{\"indexed_attention\":" PLAIN("80000000", "") ",\"full_attention\":" PLAIN("80000000", "") \
    ",\"sliding_attention\":" PLAIN("50000", "") "}"
#define PROPORTIONAL(share) "{\"rope_type\":\"proportional\",\"rope_theta\":1000000" PART(share) "}"

/* ---- What encodings cannot say --------------------------------------------------------------------------- */

#define NOTE_ERNIE "height and width of pictures alternate in the pairs; the encoding holds where a token's positions agree"
#define NOTE_TIMESFM "queries are also multiplied by a learned number per channel"
#define NOTE_V4 "values are turned as keys are, and outputs turned back"

#define STILL(word) { .type = word, .instead = "nope" }

/* ---- The families ---------------------------------------------------------------------------------------- */

static const struct family families[] = {
    { "afmoe", .head_dim = 128, .pattern = LAST_FULL, .period = 4, .turns = SLIDING_TURN, .window = 1024 },
    { "apertus", .base = 1.2e7, .rope = LLAMA3("12000000", "8", "1", "4", "8192") },
    { .type = "arcee" }, { .type = "aria" }, { "axk1", .interleaved = true, .mla_scale = true },
    { "axk2", .interleaved = true, .head_dim = 64, .mla_scale = true },
    { "bailing_hybrid", .interleaved = true, .base = 6e6, .head_dim = 128, .pattern = ONLY_LISTED, .mla_scale = true },
    { "bamba", .partial = 0.5, .pattern = LISTED_ATTEND },
    { "beam", .head_dim = 128, .rope = KINDS("null"), .pattern = LAST_FULL, .period = 6, .turns = NULL_STILL,
      .window = 512 },
    { "bitnet", .base = 500000 }, { "bloom", .own = BLOOM },
    { "blt_global_transformer", .interleaved = true, .base = 500000 },
    { "blt_local_decoder", .interleaved = true, .base = 500000 },
    { "blt_local_encoder", .interleaved = true, .base = 500000 },
    { "blt_patcher", .interleaved = true }, { .type = "chameleon" },
    { "chatglm", .interleaved = true, .partial = 0.5, .own = CHATGLM },
    { "codegen", .interleaved = true, .partial = 1, .rotary_dim = true },
    { "cohere", .interleaved = true, .base = 500000 },
    { "cohere2", .interleaved = true, .pattern = LAST_FULL, .period = 4, .turns = SLIDING_TURN, .window = 4096 },
    { "cohere2_moe", .interleaved = true, .head_dim = 128, .pattern = LAST_FULL, .period = 4, .turns = PREFIX_TURN,
      .window = 4096 },
    { "cohere_compass", .width_rules = true, .turns = NULL_STILL, .sections = { 24, 20, 20 }, .spread = true, .window = 4096 },
    { "cosmos3_edge", .base = 1e8, .head_dim = 128, .sections = { 24, 20, 20 }, .spread = true },
    { "csm", .base = 500000 }, { "csm_depth_decoder_model", .base = 500000 },
    { "cwm", .base = 1e6, .head_dim = 128, .rope = LLAMA3("1000000", "16", "1", "4", "8192"), .pattern = FIRST_FULL,
      .period = 4, .window = 8192 },
    { "dbrx", .own = DBRX }, { "deepseek_ocr2", .width_rules = true }, { .type = "deepseek_ocr2_encoder" },
    { "deepseek_v2", .interleaved = true, .mla_scale = true },
    { "deepseek_v3", .interleaved = true, .mla_scale = true },
    { "deepseek_v32", .interleaved = true, .head_dim = 64, .mla_scale = true },
    { "deepseek_v4", .interleaved = true, .head_end = true, .partial = 0.125, .head_dim = 512,
      .rope = TWO("main", PLAIN("10000", ""), "compress", PLAIN("160000", "")), .pattern = ONLY_LISTED, .window = 128,
      .sinks = SINKS, .own = DEEPSEEK_V4, .note = NOTE_V4 },
    { "dia_decoder", .head_dim = 128, .scale = ONE }, { "dia_encoder", .head_dim = 128, .scale = ONE },
    { .type = "diffllama" },
    { "diffusion_gemma", .partial = 1, .head_dim = 256, .rope = KINDS(PROPORTIONAL("0.25")), .full_head_dim = 512,
      .pattern = LAST_FULL, .period = 6, .local = LOCAL_FREQ, .scale = ONE, .window = 512 },
    { .type = "doge" }, { .type = "dots1" },
    { "dots3_note", .interleaved = true, .base = 8e7, .head_dim = 256, .rope = DOTS3_KINDS, .pattern = ONLY_LISTED,
      .window = 512 },
    { "dots3_note_audio_encoder", .partial = 0.5, .width_rules = true },
    { "embedding_gemma2", .head_dim = 256, .rope = KINDS(PLAIN("1000000", "")), .full_head_dim = 512,
      .pattern = LAST_FULL, .period = 6, .local = LOCAL_FREQ, .scale = ONE, .window = 512, .both = true },
    { "emu3_text_model", .base = 1e6 },
    { "ernie4_5", .interleaved = true, .base = 500000, .head_dim = 128 },
    { "ernie4_5_moe", .interleaved = true, .base = 500000 },
    { "ernie4_5_vl_moe", .interleaved = true, .base = 500000, .note = NOTE_ERNIE },
    { "esm", .only_if = "position_embedding_type", .only_word = "rotary" },
    { .type = "esmc" }, { .type = "eurobert" }, { "evolla", .base = 500000 },
    { "exaone4", .pattern = LAST_FULL, .period = 4, .turns = SLIDING_OR_OPEN, .window = 4096 },
    { "exaone_moe", .pattern = LAST_FULL, .period = 4, .turns = SLIDING_OR_OPEN, .window = 4096 },
    { "falcon", .own = FALCON }, { .type = "falcon_h1" }, { "flex_olmo", .base = 500000 },
    { "flint", .head_dim = 128, .pattern = ONLY_LISTED, .turns = SLIDING_TURN, .window = 513, .sinks = SINKS },
    { "gemma", .head_dim = 256 },
    { "gemma2", .head_dim = 256, .pattern = LAST_FULL, .period = 2, .window = 4096, .scale = PRE_ATTENTION,
      .scale_of = 256, .cap = 50 },
    { "gemma3", .base = 1e6, .head_dim = 256, .pattern = LAST_FULL, .period = 6, .local = LOCAL_FREQ, .window = 4096,
      .scale = PRE_ATTENTION, .scale_of = 256 },
    { "gemma3n", .base = 1e6, .head_dim = 256, .pattern = LAST_FULL, .period = 5, .local = LOCAL_FREQ, .window = 512,
      .scale = ONE },
    { "gemma4", .head_dim = 256, .rope = KINDS(PROPORTIONAL("0.25")), .full_head_dim = 512, .pattern = LAST_FULL,
      .period = 6, .local = LOCAL_FREQ, .scale = ONE, .window = 512 },
    { "gemma4_unified", .head_dim = 256, .rope = KINDS(PROPORTIONAL("0.25")), .full_head_dim = 512, .pattern = LAST_FULL,
      .period = 6, .local = LOCAL_FREQ, .scale = ONE, .window = 1024 },
    { "glm", .interleaved = true, .partial = 0.5, .head_dim = 128 },
    { "glm4", .interleaved = true, .partial = 0.5, .head_dim = 128 },
    { "glm4_moe", .partial = 0.5 },
    { "glm4_moe_lite", .interleaved = true, .mla_scale = true },
    { "glm4v", .interleaved = true, .partial = 1, .sections = { 8, 12, 12 } },
    { "glm4v_moe", .partial = 0.5, .sections = { 8, 12, 12 } },
    { "glm_image", .partial = 1, .sections = { 8, 12, 12 } },
    { "glm_moe_dsa", .interleaved = true, .head_dim = 64, .mla_scale = true },
    { "glm_ocr", .interleaved = true, .partial = 1, .sections = { 8, 12, 12 } },
    { "glmasr_encoder", .partial = 0.5 }, { "gpt_neox", .partial = 0.25, .rotary_words = true },
    { "gpt_neox_japanese", .partial = 1, .rotary_words = true },
    { "gpt_oss", .base = 150000, .head_dim = 64, .rope = OSS_YARN, .pattern = LAST_FULL, .period = 2, .window = 128,
      .sinks = SINKS },
    { "gptj", .interleaved = true, .partial = 1, .rotary_dim = true },
    { .type = "gradium_phonon_tts" }, { "granite", .scale = MULTIPLIER, .scale_of = 1 },
    { "granite4_vision", .scale = MULTIPLIER, .scale_of = 1 },
    { "granite_docling", .scale = MULTIPLIER, .scale_of = 0.015625 },
    { "granite_swa", .pattern = FIRST_FULL, .period = 4, .turns = BASES_TURN, .window = 128, .scale = MULTIPLIER,
      .scale_of = 1, .sinks = SINKS },
    { "granitemoe", .scale = MULTIPLIER, .scale_of = 1 },
    { "granitemoe_swa", .pattern = FIRST_FULL, .period = 4, .turns = BASES_TURN, .window = 128, .scale = MULTIPLIER,
      .scale_of = 1, .sinks = SINKS },
    { "granitemoehybrid", .scale = MULTIPLIER, .scale_of = 1, .only_if = "position_embedding_type",
      .only_word = "rope" },
    { "granitemoeshared", .scale = MULTIPLIER, .scale_of = 1 },
    { "gte", .base = 160000 },
    { "helium", .interleaved = true, .base = 100000, .head_dim = 128 },
    { "higgs_audio_v2", .base = 500000, .head_dim = 128, .rope = LLAMA3("500000", "32", "0.125", "0.5", "1024") },
    { "hrm_text", .head_dim = 128 }, { .type = "hunyuan_v1_dense" }, { .type = "hunyuan_v1_moe" },
    { .type = "hunyuan_vl" }, { "hy_v3", .base = 11158840, .head_dim = 128 },
    { "hy_v4", .head_dim = 256, .mla_scale = true, .sinks = SINKS },
    { "hyperclovax", .scale = MULTIPLIER }, { .type = "idefics" }, { "internlm3", .head_dim = 128 },
    { "iquestcoder", .head_dim = 128 }, { .type = "jais2" }, { .type = "jetmoe" },
    { "jina_embeddings_v3", .base = 20000 }, { "kimi_k2", .interleaved = true, .mla_scale = true },
    { "kolibri1", .head_dim = 128, .pattern = LAST_FULL, .period = 5, .turns = SLIDING_OR_OPEN, .window = 513 },
    { "kyutai_speech_to_text", .window = 375, .windowed = EVERYWHERE },
    { "laguna", .partial = 1, .head_dim = 128, .rope = KINDS(PLAIN("500000", PART("0.5"))), .window = 512 },
    { .type = "lasr_encoder" }, { "lfm2", .base = 1e6, .pattern = LISTED_ATTEND },
    { "lfm2_moe", .base = 1e6, .pattern = LISTED_ATTEND },
    { "lfm3", .base = 1e6, .head_dim = 128, .rope = KINDS(PROPORTIONAL("0.5")), .pattern = ONLY_LISTED, .window = 256 },
    { .type = "llama" },
    { "llama4", .interleaved = true, .base = 500000, .head_dim = 128, .pattern = LAST_CHUNKLESS, .turns = LISTED_TURN,
      .period = 4 },
    { "longcat_flash", .interleaved = true, .base = 1e7, .head_dim = 64, .mla_scale = true },
    { "mellum", .partial = 1, .head_dim = 128, .rope = KINDS(PLAIN("500000", "")), .window = 1024 },
    { "mimi", .window = 250, .windowed = EVERYWHERE }, { "mimi_decoder", .window = 250, .windowed = EVERYWHERE },
    { "mimi_encoder", .window = 250, .windowed = EVERYWHERE },
    { "mimo_v2_flash", .partial = 0.334, .head_dim = 192, .rope = KINDS(PLAIN("5000000", "")), .pattern = ONLY_LISTED,
      .window = 129, .sinks = SLIDING_SINKS },
    { "minicpm3", .mla_scale = true }, { "minimax", .base = 1e6, .pattern = ONLY_LISTED },
    { "minimax_m2", .base = 5e6, .partial = 1, .head_dim = 128, .rotary_dim = true },
    { "minimax_m3_vl", .base = 5e6, .partial = 1, .head_dim = 128 },
    { "ministral", .window = 4096, .windowed = EVERYWHERE },
    { "ministral3", .head_dim = 128, .rope = MINISTRAL3_YARN, .windowed = EVERYWHERE },
    { "mistral", .window = 4096, .windowed = EVERYWHERE },
    { "mistral4", .interleaved = true, .rope = MISTRAL4_YARN, .mla_scale = true },
    { "mistral_large4", .interleaved = true, .head_dim = 64, .rope = LARGE4_YARN, .turns = LISTED_TURN, .period = 4,
      .mla_scale = true },
    { "mixtral", .base = 1e6, .windowed = EVERYWHERE }, { "mllama_text_model", .base = 500000 },
    { "modernbert", .base = 160000, .pattern = FIRST_FULL, .period = 3, .local = GLOBAL_LOCAL, .window = 128,
      .windowed = HALVED, .both = true },
    { "modernbert-decoder", .base = 160000, .pattern = FIRST_FULL, .period = 3, .local = GLOBAL_LOCAL, .window = 128,
      .windowed = HALVED },
    { "molmo2", .head_dim = 128, .turns = SCALED_TURN }, { "moonshine", .interleaved = true, .partial = 0.9 },
    { "moonshine_streaming", .interleaved = true, .partial = 1, .rope = PLAIN("10000", PART("0.8")) },
    { "moshi", .window = 3000, .windowed = EVERYWHERE }, { "mpt", .own = MPT },
    { "muse_glimmer", .head_dim = 128, .pattern = LATE_FULL, .period = 4, .turns = LATE_ZEROS_STILL, .window = 2048,
      .scale = QK_FACTOR, .scale_of = 3.87 },
    { "muse_glimmer_assistant", .base = 500000, .head_dim = 128, .window = 2048 },
    { "muse_spark", .base = 500000, .head_dim = 64, .pattern = LATE_FULL, .period = 4, .turns = LATE_ZEROS_STILL,
      .window = 2048, .scale = QK_FACTOR, .scale_of = 5.4730064863875 },
    { .type = "nanochat" }, { "nemotron", .partial = 0.5 },
    { "nemotron3_5_transcribe_asr_audio", .partial = 1, .rope = PLAIN("10000", PART("0.5")) },
    { "nemotron3_5_transcribe_word_timestamp", .partial = 1, .rope = PLAIN("10000", PART("0.5")) },
    { "nemotron3_diarization_audio", .partial = 1 },
    { "neomme", .base = 1e6, .partial = 1, .head_dim = 64, .rope = KINDS(PLAIN("1000000", PART("0.25"))),
      .pattern = ONLY_LISTED, .window = 256, .both = true },
    { "neucodec", .head_dim = 64 }, { "nomic_bert", .base = 1000 }, { .type = "olmo" }, { .type = "olmo2" },
    { "olmo3", .base = 500000, .pattern = LAST_FULL, .period = 4, .local = FULL_SCALED, .window = 4096 },
    { "olmo_hybrid", .pattern = LAST_ATTENDS, .period = 4, .turns = NULL_BASE_STILL }, { .type = "olmoe" },
    { "openai_privacy_filter", .interleaved = true, .base = 150000, .head_dim = 64, .rope = OSS_YARN, .window = 128,
      .windowed = EVERYWHERE, .both = true, .sinks = SINKS },
    { "paddleocr_vl", .base = 500000, .head_dim = 128, .sections = { 16, 24, 24 } },
    { "pe_audio_encoder", .interleaved = true, .base = 20000, .head_dim = 128 },
    { "pe_audio_video_encoder", .interleaved = true, .base = 20000, .head_dim = 128 },
    { "pe_video_encoder", .interleaved = true, .base = 20000, .head_dim = 128 },
    { "persimmon", .partial = 0.5 }, { "phi", .partial = 0.5 },
    { "phi3", .partial = 1, .windowed = EVERYWHERE, .original = 4096 },
    { "phi4_multimodal", .partial = 1, .windowed = EVERYWHERE, .original = 4096 },
    { "phimoe", .base = 1e6, .windowed = EVERYWHERE }, { .type = "pocket_tts" },
    { "pocket_tts_audio_tokenizer", .window = 250, .windowed = EVERYWHERE },
    { "pocket_tts_audio_tokenizer_decoder", .window = 250, .windowed = EVERYWHERE },
    { "pocket_tts_audio_tokenizer_encoder", .window = 250, .windowed = EVERYWHERE },
    { "qwen2", .windowed = IF_ASKED },
    { "qwen2_5_omni", .base = 1e6, .sections = { 16, 24, 24 }, .windowed = IF_ASKED },
    { "qwen2_5_omni_dit", .head_dim = 64 },
    { "qwen2_5_omni_talker", .base = 1e6, .head_dim = 128, .sections = { 16, 24, 24 }, .windowed = IF_ASKED },
    { "qwen2_5_vl", .base = 1e6, .sections = { 16, 24, 24 }, .windowed = IF_ASKED },
    { "qwen2_moe", .windowed = IF_ASKED },
    { "qwen2_vl", .base = 1e6, .sections = { 16, 24, 24 }, .windowed = IF_ASKED },
    { "qwen3", .head_dim = 128, .windowed = IF_ASKED },
    { "qwen3_5", .partial = 0.25, .head_dim = 256, .pattern = LAST_ATTENDS, .period = 4, .sections = { 11, 11, 10 },
      .spread = true },
    { "qwen3_5_moe", .partial = 0.25, .head_dim = 256, .pattern = LAST_ATTENDS, .period = 4, .sections = { 11, 11, 10 },
      .spread = true },
    { "qwen3_moe", .windowed = IF_ASKED },
    { "qwen3_next", .partial = 0.25, .head_dim = 256, .pattern = LAST_ATTENDS, .period = 4 },
    { "qwen3_omni_moe", .base = 1e6, .sections = { 24, 20, 20 }, .spread = true, .windowed = IF_ASKED },
    { "qwen3_omni_moe_talker", .windowed = IF_ASKED },
    { "qwen3_omni_moe_talker_code_predictor", .head_dim = 128, .windowed = IF_ASKED },
    { "qwen3_vl", .base = 500000, .head_dim = 128, .sections = { 24, 20, 20 }, .spread = true },
    { "qwen3_vl_moe", .base = 500000, .sections = { 24, 20, 20 }, .spread = true, .windowed = IF_ASKED },
    { "qwen4_exp", .partial = 1, .head_dim = 256, .pattern = LAST_ATTENDS, .period = 4, .sections = { 11, 11, 10 },
      .spread = true },
    { "recurrent_gemma", .partial = 0.5, .head_dim = 256, .pattern = ONLY_LISTED, .window = 2048, .windowed = EVERYWHERE },
    { "roformer", .interleaved = true, .own = ROFORMER }, { "seed_oss", .head_dim = 128 },
    { "smollm3", .base = 2e6, .turns = LISTED_TURN, .period = 4, .windowed = IF_ASKED },
    { "solar_open", .base = 1e6, .partial = 1, .head_dim = 128 },
    { "stablelm", .partial = 0.25 }, { "starcoder2", .windowed = EVERYWHERE },
    { "step3p5", .partial = 1, .head_dim = 128, .scale = PRE_ATTENTION },
    { "step3p7", .partial = 1, .head_dim = 128, .scale = PRE_ATTENTION },
    { "t5_gemma_module", .head_dim = 256, .pattern = LAST_FULL, .period = 2, .window = 4096, .scale = PRE_ATTENTION,
      .scale_of = 256, .cap = 50 },
    { "t5gemma2", .base = 1e6, .head_dim = 256, .pattern = LAST_FULL, .period = 6, .local = LOCAL_FREQ, .window = 4096,
      .scale = PRE_ATTENTION, .scale_of = 256 },
    { "t5gemma2_decoder", .base = 1e6, .head_dim = 256, .pattern = LAST_FULL, .period = 6, .local = LOCAL_FREQ,
      .window = 4096, .scale = PRE_ATTENTION, .scale_of = 256 },
    { "timesfm2_5", .head_dim = 80, .note = NOTE_TIMESFM },
    { "ultrabert", .rope = KINDS(PLAIN("2560000", "")), .pattern = LAST_FULL, .period = 3, .window = 128, .both = true },
    { "unlimited_ocr", .width_rules = true, .pattern = ONLY_LISTED },
    { "vaultgemma", .head_dim = 256, .pattern = LAST_FULL, .period = 2, .window = 4096, .scale = PRE_ATTENTION,
      .scale_of = 256, .cap = 50 },
    { "voxtral_realtime", .window = 4096, .windowed = EVERYWHERE },
    { "voxtral_realtime_encoder", .head_dim = 64, .window = 750, .windowed = EVERYWHERE },
    { "xcodec2", .head_dim = 64 }, { "youtu", .interleaved = true, .mla_scale = true },
    { "zamba2", .only_if = "use_mem_rope", .pattern = LISTED_ATTEND, .scale = HALF_HEAD },
    { "zaya", .partial = 0.5, .head_dim = 128,
      .rope = TWO("hybrid", PLAIN("5000000", ""), "hybrid_sliding", PLAIN("10000", "")), .pattern = ONLY_LISTED },
    /* No rotation: positions are in the embeddings, or in the layers between. */
    STILL("albert"), STILL("bart"), STILL("bert"), STILL("bert-generation"), STILL("big_bird"),
    STILL("bigbird_pegasus"), STILL("biogpt"), STILL("blenderbot"), STILL("blenderbot-small"), STILL("camembert"),
    STILL("canine"), STILL("convbert"), STILL("ctrl"), STILL("data2vec-text"), STILL("distilbert"), STILL("electra"),
    STILL("ernie"), STILL("falcon_mamba"), STILL("flaubert"), STILL("fsmt"), STILL("glm5_next"), STILL("gpt2"),
    STILL("gpt_bigcode"), STILL("gpt_neo"), STILL("ibert"), STILL("imagegpt"), STILL("jamba"), STILL("kimi_linear"),
    STILL("led"), STILL("longformer"), STILL("luke"), STILL("m2m_100"), STILL("mamba"), STILL("mamba2"),
    STILL("marian"), STILL("mbart"), STILL("megatron-bert"), STILL("mobilebert"), STILL("moshi_depth"), STILL("mvp"),
    STILL("nemotron_h"), STILL("nllb-moe"), STILL("nystromformer"), STILL("openai-gpt"), STILL("opt"),
    STILL("pegasus"), STILL("pegasus_x"), STILL("plbart"), STILL("rembert"), STILL("roberta"),
    STILL("roberta-prelayernorm"), STILL("roc_bert"), STILL("rwkv"), STILL("speech_to_text"), STILL("splinter"),
    STILL("squeezebert"), STILL("trocr"), STILL("whisper"), STILL("xglm"), STILL("xlm"), STILL("xlm-roberta"),
    STILL("xlm-roberta-xl"), STILL("xlstm"), STILL("xmod"), STILL("yoso"), STILL("zamba"),
    /* A bias by buckets of the distance, and scores that are not scaled. */
    { .type = "mt5", .instead = "t5", .scale = ONE },
    { .type = "switch_transformers", .instead = "t5", .scale = ONE },
    { .type = "t5", .instead = "t5", .scale = ONE },
    { .type = "umt5", .instead = "t5", .scale = ONE },
};
enum { FAMILIES = sizeof families / sizeof *families };

const struct family *loci_find_family(const char *type)
{
    const size_t n = strlen(type), short_n = n > 5 && !strcmp(type + n - 5, "_text") ? n - 5 : n;
    for (int i = 0; i < FAMILIES; i++)
        if (!strcmp(families[i].type, type)) return &families[i];
    for (int i = 0; i < FAMILIES; i++)
        if (strlen(families[i].type) == short_n && !memcmp(families[i].type, type, short_n)) return &families[i];
    return NULL;
}
