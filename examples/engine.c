/* SPDX-License-Identifier: MIT */
/* engine.c -- a small inference engine: a Llama from Hugging Face's files, tokens in, tokens out.
 *
 *     engine FOLDER [--cache=q8_0|f32] [--tree=1|0] [--new=N] <PROMPTS
 *
 * FOLDER has config.json and model.safetensors.  Each line of PROMPTS has tokens, as numbers.  Each
 * line of the output has the likeliest tokens after them, up to an end token or N of them.
 *
 *     x = E[token]
 *     in each layer:   n = norm(x)    x += attention(n Wq, n Wk, n Wv) Wo
 *                      n = norm(x)    x += (silu(n Wgate) * n Wup) Wdown
 *     logits = norm(x) U
 *
 * - Each sequence has a slot.  A step computes rows of all slots, so weights are read once for all.
 *   When a sequence ends, the next prompt gets its slot.
 * - Each layer has a cache with an entry for each slot.  Entries share tiles of 64 keys, which is
 *   the paging of loci_cache: a prompt that begins like the sequence of a slot forks its entry.
 * - The rows of a slot are nodes of a tree: first a chain of tokens without keys, at most a chunk.
 *   If it ends the sequence, drafts of the next tokens follow: up to two branches of three, which
 *   came after the same tokens before.  The cache keeps those that the model chooses.
 *
 * Slots, forks, chunks and trees change no bit; stderr has a sum of the bits of all logits. */
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <loci/cache.h>
#include <loci/io.h>

enum { SLOTS = 4, CHUNK = 64, DEPTH = 3, BRANCHES = 2, NODES = CHUNK + BRANCHES * DEPTH };
enum { ENTRIES = SLOTS * (1 + BRANCHES), TILE = 64, MAX_PROMPT = 1 << 16 };

#define STOP(...) (fprintf(stderr, "engine: " __VA_ARGS__), fputc('\n', stderr), exit(1))
#define CHECK(status) ((status) ? STOP("%s", e.text) : (void)0)
static loci_error e;
/* Memory, aligned as loci needs it.  Each block begins with the address of the one before. */
static void *blocks;
static void *alloc(size_t count, size_t size)
{
    void **p = NULL;
    if (count < SIZE_MAX / 2 / size) p = aligned_alloc(64, (count * size + 127) / 64 * 64);
    if (!p) STOP("out of memory");
    *p = blocks;
    return (char *)(blocks = p) + 64;
}

/* ---- The model's files ----------------------------------------------------------------------- */

struct matrix {
    ptrdiff_t in, out;
    float *w; /* [in][out] */
};
static struct layer {
    struct matrix norm, q, k, v, o, mlp_norm, gate, up, down;
    loci_cache *cache;
} * layer;
static struct matrix embedding, unembedding, last_norm;
static int layers, heads, kv_heads, width, inner, vocabulary, tied, *end, ends;
static double epsilon;
static loci_rope rope;
static ptrdiff_t dim, wide, narrow; /* of a head; of q; of k and v */
static void read_config(const char *path)
{
    loci_model *model;
    CHECK(loci_model_open(&model, path, &e));
    CHECK(loci_model_rope(model, 0, 0, &rope, &e));
    if (strcmp(loci_model_type(model), "llama") != 0) STOP("%s: model_type must be llama", path);
    if (rope.note) STOP("%s: %s", path, rope.note);
    layers = loci_model_layers(model);
    loci_model_close(model);
    const char *act = "silu";
    json_t *config = json_load_file(path, 0, NULL), *eos = NULL;
    json_error_t error;
    if (json_unpack_ex(config, &error, 0, "{s:i, s:i, s:i, s:i, s:i, s:F, s?s, s?b, s?o}",
                       "num_attention_heads", &heads, "num_key_value_heads", &kv_heads,
                       "hidden_size", &width, "intermediate_size", &inner, "vocab_size",
                       &vocabulary, "rms_norm_eps", &epsilon, "hidden_act", &act,
                       "tie_word_embeddings", &tied, "eos_token_id", &eos))
        STOP("%s: %s", path, error.text);
    if (strcmp(act, "silu") != 0) STOP("%s: hidden_act must be silu", path);
    wide = heads * (dim = rope.head_dim);
    narrow = kv_heads * dim;
    const json_t *token = json_is_array(eos) ? json_array_get(eos, 0) : eos;
    end = alloc(json_array_size(eos) + 1, sizeof *end);
    for (; json_is_integer(token); token = json_array_get(eos, ends))
        end[ends++] = (int)json_integer_value(token);
    json_decref(config);
}

/* model.safetensors: 8 bytes with the length of the header, the header in JSON, numbers. */
static FILE *weights;
static json_t *header;
static uint64_t header_bytes;
/* A tensor [out][in], whose name may have a layer in it; a norm is [out]. */
static struct matrix load(const char *format, int l, ptrdiff_t out, ptrdiff_t in)
{
    char name[64];
    const char *type = "";
    json_int_t rows = 0, columns = 1, from = 0, to = 0;
    snprintf(name, sizeof name, format, l);
    json_t *t = json_object_get(header, name), *shape = json_object_get(t, "shape");
    json_unpack(shape, json_array_size(shape) > 1 ? "[I,I!]" : "[I]", &rows, &columns);
    json_unpack(t, "{s:s, s:[I,I!]}", "dtype", &type, "data_offsets", &from, &to);
    const int each = !strcmp(type, "F32") ? 4 : !strcmp(type, "BF16") ? 2 : 0;
    if (!each || rows < 1 || columns < 1 || rows != out || columns != in || from < 0
        || (to - from) / each / in != out
        || fseek(weights, (long)(8 + header_bytes + from), SEEK_SET))
        STOP("model.safetensors must have %s, %td by %td, in F32 or BF16", name, out, in);
    struct matrix m = { in, out, alloc(in * out, sizeof *m.w) };
    for (ptrdiff_t i = 0; i < in * out; i++) {
        uint32_t bits = 0; /* the lower byte first; BF16 is the upper half of F32 */
        for (int b = 4 - each; b < 4; b++) bits |= (uint32_t)getc(weights) << 8 * b;
        memcpy(&m.w[i % in * out + i / in], &bits, sizeof bits);
    }
    if (feof(weights) || ferror(weights)) STOP("model.safetensors ends within %s", name);
    return m;
}
static void read_weights(const char *path)
{
    weights = fopen(path, "rb");
    for (int b = 0; b < 8 && weights; b++) header_bytes |= (uint64_t)getc(weights) << 8 * b;
    if (weights) header = json_loadf(weights, JSON_DISABLE_EOF_CHECK, NULL);
    if (!header) STOP("%s must be a safetensors file", path);
    json_object_del(header, "__metadata__");
    if (json_object_size(header) != (size_t)layers * 9 + 2 + !tied)
        STOP("%s must have %d tensors for %d layers", path, layers * 9 + 2 + !tied, layers);
    embedding = load("model.embed_tokens.weight", 0, vocabulary, width);
    unembedding = tied ? embedding : load("lm_head.weight", 0, vocabulary, width);
    last_norm = load("model.norm.weight", 0, width, 1);
    layer = alloc(layers, sizeof *layer);
    for (int l = 0; l < layers; l++)
        layer[l] = (struct layer){
            .norm = load("model.layers.%d.input_layernorm.weight", l, width, 1),
            .q = load("model.layers.%d.self_attn.q_proj.weight", l, wide, width),
            .k = load("model.layers.%d.self_attn.k_proj.weight", l, narrow, width),
            .v = load("model.layers.%d.self_attn.v_proj.weight", l, narrow, width),
            .o = load("model.layers.%d.self_attn.o_proj.weight", l, width, wide),
            .mlp_norm = load("model.layers.%d.post_attention_layernorm.weight", l, width, 1),
            .gate = load("model.layers.%d.mlp.gate_proj.weight", l, inner, width),
            .up = load("model.layers.%d.mlp.up_proj.weight", l, inner, width),
            .down = load("model.layers.%d.mlp.down_proj.weight", l, width, inner),
        };
    json_decref(header);
    fclose(weights);
}

/* ---- Rows of all slots through the model ----------------------------------------------------- */

/* A sequence has a slot from its first step until the slot gets another one.  A step has `chain`
 * of its tokens, and needs logits from node `ask` on. */
static struct sequence {
    struct sequence *next;
    int prompt, known, *token; /* tokens: of the prompt; all that are known */
    int cached, chain, ask;    /* cached: the first ones, whose keys are in the caches */
    bool done;
} no_sequence = { .done = true }, *slot[SLOTS];
static int most_new = 32, tree = 1, longest, drafted, accepted, shared;
static uint32_t sum;
static loci_plan *plan;
static loci_call call;
static void *tables, *work;
static int64_t entry[SLOTS], branch[SLOTS], nodes[SLOTS], last[SLOTS], parents[SLOTS * NODES];
static const loci_tree trees = LOCI_TREE(.entry = entry, .branch = branch, .room = BRANCHES,
                                         .nodes = nodes, .parents = parents);
/* Node i of slot b is row b NODES + i of all arrays.  A step computes these rows: */
static int node_token[SLOTS * NODES], row[SLOTS * NODES], rows;
static float *x, *n, *q, *k, *v, *o, *gate, *up, *logits;
/* y = a w, or y += a w */
static void gemm(float *restrict y, const float *restrict a, const struct matrix *m, bool add)
{
    for (int r = 0; r < rows && !add; r++) memset(y + row[r] * m->out, 0, m->out * sizeof *y);
    for (ptrdiff_t i = 0; i < m->in; i++)
        for (int r = 0; r < rows; r++) {
            const float number = a[row[r] * m->in + i], *w = m->w + i * m->out;
            for (ptrdiff_t j = 0; j < m->out; j++) y[row[r] * m->out + j] += number * w[j];
        }
}
/* n = norm(x) */
static void normalise(const struct matrix *norm)
{
    for (int r = 0; r < rows; r++) {
        const float *from = x + row[r] * norm->out;
        float squares = 0;
        for (int i = 0; i < width; i++) squares += from[i] * from[i];
        const float factor = 1 / sqrtf(squares / (float)width + (float)epsilon);
        for (int i = 0; i < width; i++) n[row[r] * norm->out + i] = from[i] * factor * norm->w[i];
    }
}
static void forward(void)
{
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < width; i++)
            x[row[r] * embedding.in + i] = embedding.w[i * embedding.out + node_token[row[r]]];
    for (struct layer *l = layer; l < layer + layers; l++) {
        normalise(&l->norm);
        gemm(q, n, &l->q, false);
        gemm(k, n, &l->k, false);
        gemm(v, n, &l->v, false);
        CHECK(loci_tree_forward(plan, tables, work, l->cache, &trees, &call));
        gemm(x, o, &l->o, true);
        normalise(&l->mlp_norm);
        gemm(gate, n, &l->gate, false);
        gemm(up, n, &l->up, false);
        for (int r = 0; r < rows; r++)
            for (ptrdiff_t i = row[r] * l->up.out; i < (row[r] + 1) * l->up.out; i++)
                gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
        gemm(x, gate, &l->down, true);
    }
    for (int all = rows, r = rows = 0; r < all; r++) /* logits are not needed for all */
        if (row[r] % NODES >= slot[row[r] / NODES]->ask) row[rows++] = row[r];
    normalise(&last_norm);
    gemm(logits, n, &unembedding, false);
}

/* A node of the tree of slot b. */
static void add_node(int b, int parent, int token)
{
    parents[b * NODES + nodes[b]] = parent;
    node_token[b * NODES + nodes[b]++] = token;
}
/* The draft of a token after a node; nodes[b]: there is none. */
static int child(int b, int node, int token)
{
    int c = slot[b]->chain, at = b * NODES;
    while (c < nodes[b] && (parents[at + c] != node || node_token[at + c] != token)) c++;
    return c;
}
/* Drafts are what followed the last two tokens before, or the last one; the latest places first.
 * Branches share the nodes that they begin with. */
static void draft(int b)
{
    const struct sequence *s = slot[b];
    const int *now = s->token + s->known;
    for (int same = 2, branches = 0; same > 0; same--)
        for (const int *p = now - 1; p >= s->token + same && branches < BRANCHES; p--) {
            const int before = nodes[b];
            if (memcmp(p - same, now - same, same * sizeof *p) != 0) continue;
            for (int i = 0, node = s->chain - 1, c; i < DEPTH && p + i < now; i++, node = c)
                if ((c = child(b, node, p[i])) == nodes[b]) add_node(b, node, p[i]);
            branches += nodes[b] > before;
        }
}
/* Adds the likeliest token after a node. */
static int choose(int b, int node)
{
    const float *p = logits + (b * NODES + node) * (ptrdiff_t)vocabulary;
    struct sequence *s = slot[b];
    int t = 0;
    for (int i = 0; i < vocabulary; i++) {
        uint32_t bits;
        memcpy(&bits, p + i, sizeof bits);
        sum += bits * (2 * i + 1);
        if (p[i] > p[t]) t = i;
    }
    s->token[s->known++] = t;
    s->done = s->known == s->prompt + most_new;
    for (int i = 0; i < ends; i++) s->done |= t == end[i];
    return t;
}

/* ---- The engine ------------------------------------------------------------------------------ */

/* Gives slot b to a sequence, with the keys of that which begins most like it.  False: a tile or
 * more of those are still to be computed, and the sequence waits. */
static bool admit(int b, struct sequence *s)
{
    int like = b;
    s->cached = 0;
    for (int other = 0; other < SLOTS; other++) {
        const struct sequence *t = slot[other];
        int same = 0;
        while (same < t->known && same < s->known - 1 && t->token[same] == s->token[same]) same++;
        if (!t->done && same >= t->cached + TILE) return false;
        if (same > t->cached) same = t->cached;
        if (same > s->cached) like = other, s->cached = same;
    }
    loci_call c = call;
    c.batch = ENTRIES;
    for (struct layer *l = layer; l < layer + layers; l++) {
        c.cache = l->cache;
        CHECK(like == b ? loci_cache_truncate(l->cache, b, s->cached, &e)
                        : loci_cache_fork(plan, tables, work, l->cache, like, b, s->cached, &c));
    }
    slot[b] = s;
    shared += s->cached;
    return true;
}
static void step(void)
{
    rows = 0;
    for (int b = 0; b < SLOTS; b++) {
        struct sequence *s = slot[b];
        const int left = s->done ? 0 : s->known - s->cached;
        nodes[b] = 0;
        s->chain = left < CHUNK ? left : CHUNK;
        last[b] = s->chain - 1;
        for (int i = 0; i < s->chain; i++) add_node(b, i - 1, s->token[s->cached + i]);
        s->ask = left && left <= CHUNK ? s->chain - 1 : NODES;
        if (tree && s->ask < NODES) draft(b);
        drafted += nodes[b] - s->chain;
        for (int i = 0; i < nodes[b]; i++) row[rows++] = b * NODES + i;
    }
    forward();
    for (int b = 0; b < SLOTS; b++) { /* follow the drafts that the model chooses */
        struct sequence *s = slot[b];
        int c = s->ask;
        s->cached += s->chain;
        while (c < nodes[b] && (c = child(b, last[b], choose(b, last[b]))) < nodes[b] && !s->done)
            last[b] = c, s->cached++, accepted++;
    }
    for (struct layer *l = layer; l < layer + layers; l++)
        CHECK(loci_tree_keep(plan, tables, work, l->cache, &trees, last, &call));
}
static struct sequence *read_prompt(int number)
{
    static int token[MAX_PROMPT];
    int count = 0, got = 1, c = ' ';
    while (c != '\n' && got && (got = scanf("%9d", &token[count])) == 1) {
        got = token[count] >= 0 && token[count] < vocabulary && ++count < MAX_PROMPT;
        while ((c = getchar()) == ' ' || c == '\t' || c == '\r') {}
        if (c != '\n') ungetc(c, stdin);
    }
    if (!got || ferror(stdin))
        STOP("prompt %d must be fewer than %d tokens from 0 to %d, with spaces between them",
             number, MAX_PROMPT, vocabulary - 1);
    struct sequence *s = alloc(1, sizeof *s);
    *s = (struct sequence){ .prompt = count, .known = count };
    s->token = memcpy(alloc(count + most_new, sizeof *token), token, count * sizeof *token);
    if (count > longest) longest = count;
    return count ? s : NULL;
}
static void create(loci_dtype stored)
{
    const ptrdiff_t capacity = longest + most_new + NODES;
    const loci_desc d = LOCI_DESC(.encoding = rope.attention, .heads = heads, .kv_heads = kv_heads,
                                  .dim = dim, .scale = rope.scale, .max_len = capacity,
                                  .keys_rotated = 1, .k_dtype = stored, .v_dtype = stored);
    CHECK(loci_plan_create(&plan, &d, &e));
    tables = alloc(loci_tables_size(plan, capacity), 1);
    CHECK(loci_prepare_on(NULL, plan, capacity, NULL, tables, &e));
    for (struct layer *l = layer; l < layer + layers; l++) {
        void *memory = alloc(loci_cache_size(plan, ENTRIES, capacity), 1);
        CHECK(loci_cache_create(&l->cache, plan, ENTRIES, capacity, 0, memory, &e));
    }
    float **const buffer[] = { &x, &n, &q, &k, &v, &o, &gate, &up, &logits };
    const ptrdiff_t each[] = { width, width, wide, narrow, narrow, wide, inner, inner, vocabulary };
    for (int i = 0; i < 9; i++) *buffer[i] = alloc(SLOTS * NODES * each[i], sizeof(float));
    call = (loci_call)LOCI_CALL(.batch = SLOTS, .q_len = NODES, .k_len = NODES, .error = &e,
                                .q = { q, NODES * wide, dim, wide },
                                .k = { k, NODES * narrow, dim, narrow },
                                .v = { v, NODES * narrow, dim, narrow },
                                .o = { o, NODES * wide, dim, wide });
    for (int b = 0; b < SLOTS; b++) { /* the largest trees that a step can have */
        slot[b] = &no_sequence;
        entry[b] = b, branch[b] = SLOTS + b * BRANCHES;
        for (int i = 0; i < NODES; i++) add_node(b, i == NODES - DEPTH ? CHUNK - 1 : i - 1, 0);
    }
    call.work_bytes = loci_tree_workspace(plan, layer->cache, &trees, &call);
    work = alloc(call.work_bytes, 1);
}

int main(int argc, char **argv)
{
    char path[4096], rest;
    loci_dtype stored = LOCI_Q8_0;
    for (int i = 2; i < argc; i++)
        if (!strcmp(argv[i], "--cache=f32")) stored = LOCI_F32;
        else if (!strcmp(argv[i], "--cache=q8_0")) stored = LOCI_Q8_0;
        else if (sscanf(argv[i], "--tree=%d%c", &tree, &rest) != 1
                 && sscanf(argv[i], "--new=%d%c", &most_new, &rest) != 1)
            argc = 0;
    if (argc < 2 || tree < 0 || tree > 1 || most_new < 1 || most_new > MAX_PROMPT)
        STOP("the arguments are FOLDER [--cache=q8_0|f32] [--tree=1|0] [--new=1..%d]", MAX_PROMPT);
    snprintf(path, sizeof path, "%s/config.json", argv[1]);
    read_config(path);
    snprintf(path, sizeof path, "%s/model.safetensors", argv[1]);
    read_weights(path);
    struct sequence *first = NULL, **at = &first;
    for (int number = 1; (*at = read_prompt(number)); number++) at = &(*at)->next;
    create(stored);
    int steps = 0;
    for (struct sequence *waiting = first; first; steps++) {
        for (int b = 0; b < SLOTS && waiting; b++)
            if (slot[b]->done && admit(b, waiting)) waiting = waiting->next;
        step();
        for (; first && first->done; first = first->next)
            for (int i = first->prompt; i < first->known; i++)
                printf("%d%c", first->token[i], i + 1 < first->known ? ' ' : '\n');
    }
    if (fflush(stdout)) STOP("the output cannot be written");
    fprintf(stderr, "%d steps; %d of %d drafts accepted, %d keys shared; sum of logits %08x\n",
            steps, accepted, drafted, shared, sum);
    loci_plan_destroy(plan);
    loci_rope_free(&rope);
    for (void *before; blocks; free(blocks), blocks = before) before = *(void **)blocks;
    return 0;
}
