/* SPDX-License-Identifier: MIT */
/* config.c -- config.json.  An accepted file has JSON without duplicate keys, only known keys in
 * the dictionary that counts, and layers with plausible numbers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "layers.h"

static void check_keys(const json_t *dict)
{
    static const char known[] = " type rope_type rope_theta factor "
                                "original_max_position_embeddings max_position_embeddings "
                                "partial_rotary_factor beta_fast "
                                "beta_slow mscale mscale_all_dim attention_factor "
                                "extrapolation_factor truncate short_factor long_factor "
                                "short_mscale "
                                "long_mscale low_freq_factor high_freq_factor alpha mixed_b "
                                "mrope_section mrope_interleaved interleaved finetuned "
                                "llama_4_scaling_beta ";
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)dict, key, v)
    {
        char word[64];
        /* one dictionary per kind of layer */
        if (json_is_object(v) || json_is_null(v)) return;
        FUZZ_CHECK(snprintf(word, sizeof word, " %s ", key) < (int)sizeof word
                   && strstr(known, word));
    }
}

/* The object of the language model. */
static json_t *language_part(json_t *root)
{
    static const char *const nested[] = { "text_config",    "llm_config",     "language_config",
                                          "thinker_config", "decoder_config", "decoder" };
    for (int depth = 0; depth < 3; depth++) {
        json_t *below = NULL;
        for (int i = 0; i < 6 && !below; i++)
            if (json_is_object(json_object_get(root, nested[i])))
                below = json_object_get(root, nested[i]);
        if (!below) return root;
        root = below;
    }
    return root;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    loci_model *m;
    loci_error e = { 0 };
    if (size >= 4 && !memcmp(data, "GGUF", 4)) return 0;
    if (loci_model_parse(&m, data, size, &e)) {
        FUZZ_CHECK(!m && e.status && e.text[0]);
        return 0;
    }
    const bool turned = check_layers(m);
    json_t *root = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
    FUZZ_CHECK(root);
    json_t *part = language_part(root), *dict = json_object_get(part, "rope_parameters");
    if (!dict || json_is_null(dict)) dict = json_object_get(part, "rope_scaling");
    if (turned) check_keys(dict);
    json_decref(root);
    loci_model_close(m);
    return 0;
}

/* Every family's config, a line each. */
static void add_lines(const char *path, void (*add)(const void *, size_t))
{
    static char line[1 << 16];
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        json_t *family = json_loads(line, 0, NULL);
        char *text = json_dumps(json_object_get(family, "config"), 0);
        if (text) add(text, strlen(text));
        free(text);
        json_decref(family);
    }
    if (f) fclose(f);
}

void fuzz_seeds(void (*add)(const void *, size_t))
{
    fuzz_add_folder("tests/cases/models", ".json", add);
    fuzz_add_folder("tests/cases/rope", ".json", add);
    add_lines("tests/cases/families.jsonl", add);
}
