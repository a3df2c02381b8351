/* SPDX-License-Identifier: MIT */
/* convert.c -- `loci convert`: changes the pairing of weights in safetensors files.
 * convert_shards.c handles the files, and convert_table.c writes tables of cos and sin.
 *
 * No engine rejects a file whose channels are moved twice or in part: it produces nonsense.  So
 * every sign of that is an error here: a q without its k, scales and norms that no pattern matches,
 * a file that says it is converted. */
#include <stdlib.h>
#include <string.h>

#include "platform/system.h"
#include "util/planted_bug.h"
#include "cli/convert.h"
#include "models/io.h"
#include "loci/convert.h"
#include "loci/io.h"

static const char *const pairings[] = { [LOCI_HALF] = "half", [LOCI_INTERLEAVED] = "interleaved" };
static const char pairing_key[] = "loci.pairing";

/* ---- Which tensors --------------------------------------------------------------------------- */

enum role { OTHER, QUERY, KEY };

static const char *const homes[] = { "model.layers.",
                                     "model.language_model.layers.",
                                     "language_model.model.layers.",
                                     "language_model.layers.",
                                     "transformer.h.",
                                     "layers." };
static const struct {
    const char *name;
    enum role role;
} usual[] = {
    { "self_attn.q_proj", QUERY },
    { "self_attn.k_proj", KEY },
    { "attn.q_proj", QUERY },
    { "attn.k_proj", KEY },
    { "attention.wq", QUERY },
    { "attention.wk", KEY },
    { "self_attn.q_b_proj", QUERY },
    { "self_attn.kv_a_proj_with_mqa", KEY },
    { "self_attn.q_norm", QUERY },
    { "self_attn.k_norm", KEY },
    { "self_attn.q_layernorm", QUERY },
    { "self_attn.k_layernorm", KEY },
    { "self_attn.query_layernorm", QUERY },
    { "self_attn.key_layernorm", KEY },
};

/* homes[i] N.usual[i].weight or .bias */
static enum role usual_role(const char *name)
{
    for (int h = 0; h < COUNT(homes); h++) {
        const size_t n = strlen(homes[h]);
        const size_t digits = strncmp(name, homes[h], n) ? 0 : strspn(name + n, "0123456789");
        if (digits == 0 || name[n + digits] != '.') continue;
        const char *rest = name + n + digits + 1;
        for (int u = 0; u < COUNT(usual); u++) {
            const size_t m = strlen(usual[u].name);
            if (!strncmp(rest, usual[u].name, m)
                && (!strcmp(rest + m, ".weight") || !strcmp(rest + m, ".bias")))
                return usual[u].role;
        }
    }
    return OTHER;
}

/* Matches a list of patterns separated by commas. */
static bool fits(const char *patterns, const char *name)
{
    char one[256];
    for (const char *p = patterns; *p; p += strcspn(p, ","), p += *p == ',') {
        snprintf(one, sizeof one, "%.*s", (int)strcspn(p, ","), p);
        if (loci_name_matches(one, name)) return true;
    }
    return false;
}
/* Patterns replace the default names of their role.  Names that they do not match are not moved. */
static enum role role_of(const struct args *a, const char *name)
{
    if (a->value[CONVERT_Q] && fits(a->value[CONVERT_Q], name)) return QUERY;
    if (a->value[CONVERT_K] && fits(a->value[CONVERT_K], name)) return KEY;
    const enum role role = usual_role(name);
    return a->value[role == QUERY ? CONVERT_Q : CONVERT_K] ? OTHER : role;
}

/* Names the attention that a tensor belongs to: the tensor's name without its last two words. */
static int block_length(const char *name)
{
    int n = (int)strlen(name);
    for (int words = 0; words < 2; words++) do
            n--;
        while (n > 0 && name[n] != '.');
    return n > 0 ? n : 0;
}
static bool is_norm(const char *name) { return strstr(name + block_length(name), "norm") != NULL; }

/* ---- What happens to each -------------------------------------------------------------------- */

struct layer {
    bool known, rotates;
    int heads, dim, turned, offset;
};
struct move {
    enum role role;
    loci_channels channels; /* heads 0: copied */
};
struct block {
    const char *name;
    int length, roles;
};

struct job {
    const struct args *args;
    const char *path; /* of the file or the index */
    struct shards from;
    struct safetensors file; /* all tensors, from.all */
    struct move *move;       /* per tensor */
    loci_pairing to;
    loci_model *model; /* NULL: `all` applies to every layer */
    struct layer all, *layer;
    int heads[2], moved;
};

/* Weights are in CONFIG's pairing unless the file says that it was converted.  If that is already
 * the wanted pairing, converting would move them away from it. */
static bool read_layer(struct job *j, int number, struct layer *to)
{
    loci_rope r;
    loci_error e;
    if (loci_model_rope(j->model, number, 0, &r, &e))
        return refuse("%s: %s", j->args->rest[1], e.text);
    *to = (struct layer){ .known = true,
                          .rotates = r.rotates,
                          .heads = r.heads,
                          .dim = r.head_dim,
                          .turned = r.dim,
                          .offset = r.offset };
    const loci_pairing is = r.interleaved ? LOCI_INTERLEAVED : LOCI_HALF;
    loci_rope_free(&r);
    if (to->rotates && is == j->to && !loci_safetensors_meta(&j->file, pairing_key))
        return refuse("%s: the pairing of this model is already %s; use --to %s for the other one",
                      j->args->rest[1], pairings[is], pairings[!is]);
    return true;
}

/* The first word of a name that is a number is the layer's number. */
static bool layer_of(struct job *j, const char *name, const struct layer **to)
{
    *to = &j->all;
    if (!j->model) return true;
    int64_t number = -1;
    for (const char *p = name; *p && number < 0; p += strcspn(p, "."), p += *p == '.') {
        const size_t n = strspn(p, "0123456789");
        if (n > 0 && n < 10 && (p[n] == '.' || !p[n])) number = strtoll(p, NULL, 10);
    }
    if (number < 0 || number >= loci_model_layers(j->model))
        return refuse("%s: tensor '%.64s' belongs to none of the layers 0 to %d of %s", j->path,
                      name, loci_model_layers(j->model) - 1, j->args->rest[1]);
    struct layer *l = &j->layer[number];
    *to = l;
    return l->known || read_layer(j, (int)number, l);
}

/* Plans the move of one tensor, whose rows are heads of l->dim.  A conversion to its present
 * pairing moves nothing, but lets the library validate before a file is created. */
static bool plan_move(struct job *j, const struct safetensor *t, struct move *m)
{
    const struct layer *l;
    loci_error e;
    if (!layer_of(j, t->name, &l)) return false;
    if (!l->rotates) return true;
    const bool norm = is_norm(t->name);
    if (t->rank < 1 || t->rank > 2 || t->count == 0)
        return refuse("%s: tensor '%.64s' has %d dimensions and %td numbers, but must be a weight "
                      "[heads * dim][model], a bias [heads * dim] or a norm [dim]",
                      j->path, t->name, t->rank, t->count);
    const ptrdiff_t rows = norm ? t->count : t->shape[0];
    loci_channels c =
        LOCI_CHANNELS(.element = loci_safetensors_type_size(t->type), .dim = l->dim,
                      .offset = l->offset, .turned = l->turned ? l->turned : l->dim - l->offset,
                      .inner = t->count / rows);
    ptrdiff_t heads = rows / c.dim;
    /* [latent | one rotated key for all heads] */
    if (strstr(t->name, "kv_a_proj_with_mqa")) {
        heads = 1;
        c.dim = (int)(rows < 65536 ? rows : 65536);
        c.offset = c.dim - c.turned;
    }
    if (rows != heads * c.dim)
        return refuse("%s: tensor '%.64s' has %td rows, but must have a multiple of the head width "
                      "%d",
                      j->path, t->name, rows, c.dim);
    /* The model gives the number of query heads; keys may have fewer. */
    int wanted = j->heads[m->role == KEY];
    if (!wanted && m->role == QUERY) wanted = l->heads;
    if (wanted && heads != wanted && !(heads == 1 && t->rank == 1))
        return refuse("%s: tensor '%.64s' has %td rows, %td heads of width %d, but must have %d "
                      "heads",
                      j->path, t->name, rows, heads, c.dim, wanted);
    /* one too many, so that the library reports it */
    c.heads = (int)(heads < 65537 ? heads : 65537);
    if (loci_convert_channels(&c, j->to, j->to, t, (void *)t, &e))
        return refuse("%s: tensor '%.64s': %s", j->path, t->name, e.text);
    m->channels = c;
    j->moved++;
    return true;
}

/* ---- Partial conversions --------------------------------------------------------------------- */

/* Sorts by name, the shorter one first. */
static int by_block(const void *a, const void *b)
{
    const struct block *x = a, *y = b;
    const int n = x->length < y->length ? x->length : y->length;
    const int order = memcmp(x->name, y->name, (size_t)n);
    return order ? order : x->length - y->length;
}

/* Is it another tensor of a layer whose weight moves, such as its scales? */
static bool follows_weight(const struct args *a, const char *name)
{
    char weight[ST_MAX_NAME + sizeof ".weight"];
    for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.')) {
        snprintf(weight, sizeof weight, "%.*s.weight", (int)(dot - name), name);
        if (strcmp(weight, name) && role_of(a, weight)) return true;
    }
    return false;
}

/* Every attention whose weights move must have both q and k.  No tensor that belongs to them may
 * stay behind: scales of quantised rows, or norms per channel.  Norms of a latent (q_a, kv_a) stay,
 * since they come before the weight whose rows move. */
static bool check_rest(const struct job *j, struct block *blocks)
{
    int n = 0;
    for (int i = 0; i < j->file.count; i++) {
        const char *name = j->file.tensor[i].name;
        if (j->move[i].channels.heads && !is_norm(name))
            blocks[n++] = (struct block){ name, block_length(name), j->move[i].role };
    }
    qsort(blocks, (size_t)n, sizeof *blocks, by_block);
    /* merges to one entry per attention, with both roles in it */
    int kept = 0;
    for (int i = 0; i < n; i++) {
        if (kept && !by_block(&blocks[kept - 1], &blocks[i]))
            blocks[kept - 1].roles |= blocks[i].roles;
        else blocks[kept++] = blocks[i];
    }
    for (int i = 0; i < kept && !j->args->value[CONVERT_PART]; i++)
        if (blocks[i].roles != (QUERY | KEY))
            return refuse("%s: '%.*s' has weights of %s only; both must be converted "
                          "(--part: the rest is in another file)",
                          j->path, blocks[i].length < 64 ? blocks[i].length : 64, blocks[i].name,
                          blocks[i].roles == QUERY ? "queries" : "keys");
    for (int i = 0; i < j->file.count; i++) {
        const struct safetensor *t = &j->file.tensor[i];
        if (j->move[i].role || t->count <= 1) continue; /* one number has no rows */
        if (follows_weight(j->args, t->name))
            return refuse("%s: tensor '%.64s' belongs to a weight whose rows are moved, but no "
                          "pattern of --q or --k matches it",
                          j->path, t->name);
        const struct block b = { t->name, block_length(t->name), 0 };
        const char *last = t->name + b.length + (t->name[b.length] == '.');
        if (is_norm(t->name) && strchr("qk", *last) && strncmp(last, "q_a_", 4)
            && strncmp(last, "kv_a_", 5) && bsearch(&b, blocks, (size_t)kept, sizeof b, by_block))
            return refuse("%s: tensor '%.64s' looks like a norm of queries or keys, but no pattern "
                          "of --q or --k matches it",
                          j->path, t->name);
    }
    return true;
}

/* Plans all moves before anything is written, so a rejected file leaves no output. */
static bool plan_all(struct job *j)
{
    const struct safetensors *f = &j->file;
    const char *done = loci_safetensors_meta(f, pairing_key);
    for (int i = 1; i < j->from.count; i++) {
        const char *other = loci_safetensors_meta(&j->from.list[i].file, pairing_key);
        if (!done != !other || (done && strcmp(done, other)))
            return refuse("%s: its files differ in the %s that their metadata say", j->path,
                          pairing_key);
    }
    if (done && strcmp(done, pairings[!j->to]))
        return refuse("%s: its metadata has %s=%.32s, so it is already converted to %s", j->path,
                      pairing_key, done, pairings[j->to]);
    for (int i = 0; i < f->count; i++) j->move[i].role = role_of(j->args, f->tensor[i].name);
    if (!j->model && !j->all.dim) { /* inferred from the first query weight */
        int i = 0;
        while (i < f->count && !(j->move[i].role == QUERY && f->tensor[i].rank == 2)) i++;
        const ptrdiff_t rows = i < f->count ? f->tensor[i].shape[0] : 0;
        if (rows % j->heads[0] || rows / j->heads[0] > 65536 || rows == 0)
            return refuse("%s: %s", j->path,
                          rows ? "--heads does not divide the rows of the first weight of queries"
                               : "there is no weight of queries");
        j->all.dim = (int)(rows / j->heads[0]);
    }
    for (int i = 0; i < f->count; i++)
        if (j->move[i].role && f->tensor[i].count != 1 && !plan_move(j, &f->tensor[i], &j->move[i]))
            return false;
    if (!j->moved && !j->args->value[CONVERT_PART])
        return refuse("%s: no tensor is a weight of rotated queries or keys; name them by --q and "
                      "--k",
                      j->path);
    struct block *blocks = alloc((size_t)f->count + 1, sizeof *blocks);
    const bool whole = check_rest(j, blocks);
    free(blocks);
    return whole;
}

/* ---- The new file ---------------------------------------------------------------------------- */

/* Copies in pieces, so that an unchanged tensor need not fit into memory. */
static loci_status copy(const struct safetensors *f, const struct safetensor *t,
                        struct safetensors_writer *w, char *buffer, size_t size, loci_error *e)
{
    loci_status s = LOCI_OK;
    struct safetensor part = *t;
    for (uint64_t left = t->bytes; left && !s; left -= part.bytes, part.offset += part.bytes) {
        part.bytes = left < size ? left : size;
        if (!(s = loci_safetensors_read(f, &part, buffer, e)))
            s = loci_safetensors_put(w, buffer, part.bytes, e);
    }
    return s;
}

/* Writes tensor i of a shard.  A tensor that moves is loaded whole, since its rows are permuted. */
static loci_status put_tensor(const struct job *j, const struct shard *from, int i,
                              struct safetensors_writer *w, char *buffer, size_t size,
                              loci_error *e)
{
    const struct safetensor *t = &from->file.tensor[i];
    const loci_channels *c = &j->move[from->first + i].channels;
    if (!c->heads) return copy(&from->file, t, w, buffer, size, e);
    char *data = malloc((size_t)t->bytes);
    if (!data) return *e = (loci_error){ LOCI_NO_MEMORY, "out of memory" }, LOCI_NO_MEMORY;
    loci_status s = loci_safetensors_read(&from->file, t, data, e);
    const loci_pairing is = PLANTED_BUG(1, j->to == LOCI_HALF) ? LOCI_INTERLEAVED : LOCI_HALF;
    if (!s) s = loci_convert_channels(c, is, j->to, data, data, e);
    if (!s) s = loci_safetensors_put(w, data, t->bytes, e);
    free(data);
    return s;
}

/* Writes the same tensors and metadata, except for the pairing that the file now declares. */
static loci_status put_shard(const void *user, const struct shard *from,
                             struct safetensors_writer *w, const char *path, loci_error *e)
{
    enum { PIECE = 1 << 20 };
    const struct job *j = user;
    const struct safetensors *f = &from->file;
    struct safetensors_meta *meta = alloc((size_t)f->meta_count + 1, sizeof *meta);
    int metas = 0;
    for (int i = 0; i < f->meta_count; i++)
        if (PLANTED_BUG(2, strcmp(f->meta[i].key, pairing_key) != 0)) meta[metas++] = f->meta[i];
    meta[metas++] = (struct safetensors_meta){ pairing_key, pairings[j->to] };
    char *buffer = alloc(PIECE, 1);
    loci_status s = loci_safetensors_begin(w, path, f->count, f->tensor, metas, meta, e);
    if (!s) {
        for (int i = 0; i < f->count && !s; i++) s = put_tensor(j, from, i, w, buffer, PIECE, e);
        if (s) loci_safetensors_end(w, s, e);
    }
    free(buffer);
    free(meta);
    return s;
}
static bool write_all(const struct job *j, const char *path)
{
    struct safetensors_writer w;
    loci_error e;
    if (j->from.index) return shards_write(&j->from, path, put_shard, j);
    loci_status s = put_shard(j, j->from.list, &w, path, &e);
    if (!s) s = loci_safetensors_end(&w, s, &e);
    return !s || refuse("%s: %s", path, e.text);
}

/* For -n: prints every tensor that would move, and its affected channels. */
static void print_moves(const struct job *j)
{
    for (int i = 0; i < j->file.count; i++) {
        const struct safetensor *t = &j->file.tensor[i];
        const loci_channels *c = &j->move[i].channels;
        if (!c->heads) continue;
        print_plain(stdout, t->name);
        printf("  %s [%td", loci_safetensors_type_name(t->type), t->shape[0]);
        if (t->rank > 1) printf(",%td", t->shape[1]);
        printf("]  %d x %d, channels %d-%d\n", c->heads, c->dim, c->offset,
               c->offset + c->turned - 1);
    }
}

/* ---- The command ----------------------------------------------------------------------------- */

/* The options of a GGUF file describe its own weights, which were reordered when it was made. */
static bool is_gguf(const char *path)
{
    char magic[4];
    struct source from;
    if (loci_io_open(&from, path, NULL)) return false;
    const bool is =
        from.size >= 4 && !loci_io_read(&from, magic, 4, 0, NULL) && !memcmp(magic, "GGUF", 4);
    loci_io_close(&from);
    return is;
}

/* Reads the command line.  With CONFIG the model gives the width of heads and the rotated part;
 * without it the options do.  Giving both is an error. */
static bool read_wish(struct job *j)
{
    const struct args *a = j->args;
    int to = 0;
    if (a->rest_count == 0)
        return refuse("convert: no file given; 'loci convert --help' shows how");
    j->from.index = shards_index(a->rest[0]);
    j->path = j->from.index ? j->from.index : a->rest[0];
    if (!args_rest(a, 2)) return false;
    if (!a->value[CONVERT_TO])
        return refuse("convert: the pairing is missing: --to half or --to interleaved");
    if (!a->value[CONVERT_OUTPUT] && !a->value[CONVERT_DRY_RUN])
        return refuse("convert: the output is missing: -o FILE, or -n to show what would be done");
    if (!args_word(a, CONVERT_TO, &to) || !args_whole(a, CONVERT_DIM, 2, 65536, &j->all.dim)
        || !args_whole(a, CONVERT_HEADS, 1, 65536, &j->heads[0])
        || !args_whole(a, CONVERT_KV_HEADS, 1, 65536, &j->heads[1])
        || !args_whole(a, CONVERT_TURNED, 2, 65536, &j->all.turned)
        || !args_whole(a, CONVERT_OFFSET, 0, 65535, &j->all.offset)
        || !(j->from.index || args_output(a, CONVERT_OUTPUT)))
        return false;
    j->to = (loci_pairing)to;
    j->all.rotates = true;
    if (a->rest_count == 1)
        return j->all.dim || j->heads[0]
            || refuse("convert: the head width is missing: give CONFIG, --dim or --heads");
    if (j->all.dim || j->all.turned || j->all.offset)
        return refuse("convert: --dim, --turned and --offset exclude CONFIG, which states them");
    loci_error e;
    if (is_gguf(a->rest[1]))
        return refuse("%s: CONFIG must be a config.json; a GGUF file describes its own weights "
                      "only",
                      a->rest[1]);
    if (loci_model_open(&j->model, a->rest[1], &e)) return refuse("%s", e.text);
    j->layer = alloc((size_t)loci_model_layers(j->model), sizeof *j->layer);
    return true;
}

/* -n does everything except writing, so that it finds the same errors. */
static int convert_file(struct job *j)
{
    const char *output = j->args->value[CONVERT_DRY_RUN] ? NULL : j->args->value[CONVERT_OUTPUT];
    if (!shards_open(&j->from, j->path)
        || (output && j->from.index && !shards_check_output(&j->from, output)))
        return EXIT_ERROR;
    j->file = j->from.all;
    j->move = alloc((size_t)j->file.count + 1, sizeof *j->move);
    const bool done = plan_all(j) && (!output || write_all(j, output));
    if (done && !output) print_moves(j);
    if (done)
        printf("%d tensors %s to %s pairs, %d %s unchanged\n", j->moved,
               output ? "moved" : "would move", pairings[j->to], j->file.count - j->moved,
               output ? "are" : "would stay");
    free(j->move);
    return done ? EXIT_DONE : EXIT_ERROR;
}

/* convert_table.c handles tables. */
int convert_weights(const struct args *a)
{
    struct job j = { .args = a };
    const int code = read_wish(&j) ? convert_file(&j) : EXIT_ERROR;
    shards_close(&j.from);
    loci_model_close(j.model);
    free(j.layer);
    return code;
}

static const struct flag flags[] = {
    [CONVERT_OUTPUT] = { "output", "o", "FILE:@file", "write the result to FILE" },
    [CONVERT_DRY_RUN] = { "dry-run", "n", NULL, "show what would be done and write nothing" },
    [CONVERT_TO] = { "to", NULL, "PAIRING:half|interleaved", "half or interleaved" },
    [CONVERT_DIM] = { "dim", NULL, "D", "head width, without CONFIG" },
    [CONVERT_HEADS] = { "heads", NULL, "H",
                        "query heads; determines the head width without CONFIG and --dim" },
    [CONVERT_KV_HEADS] = { "kv-heads", NULL, "K", "key heads (default: any number)" },
    [CONVERT_TURNED] = { "turned", NULL, "N",
                         "rotated channels of a head (default: all from the offset on)" },
    [CONVERT_OFFSET] = { "offset", NULL, "N", "first rotated channel (default 0)" },
    [CONVERT_Q] = { "q", NULL, "NAMES",
                    "names of the tensors of queries: patterns with *, separated by "
                    "commas" },
    [CONVERT_K] = { "k", NULL, "NAMES", "the same for keys (default for both: the names below)" },
    [CONVERT_PART] = { "part", NULL, NULL, "FILE is one of several: q or k may be missing" },
    [CONVERT_TABLE] = { "table", NULL, "LAYOUT:half|interleaved|split",
                        "write a table of cos and sin: half, interleaved or split" },
    [CONVERT_ENCODING] = { "encoding", "e", "TEXT:@encoding",
                           "the encoding of the table, with --dim, instead of CONFIG" },
    [CONVERT_ROWS] = { "rows", NULL, "N",
                       "positions 0 to N-1 (default: the trained context length)" },
    [CONVERT_DTYPE] = { "dtype", NULL, "TYPE:f32|f64|bf16|f16",
                        "stored type of the table: f64, f32 (default), bf16 or f16" },
    [CONVERT_LAYER] = { "layer", NULL, "N", "layer of CONFIG (default 0)" },
    [CONVERT_LENGTH] = { "length", NULL, "N", "context length, if CONFIG's scaling needs one" },
    { NULL, NULL, NULL, NULL }
};

/* Rejects options of the other form, which would otherwise be ignored silently. */
static int run(const struct args *a)
{
    static const struct {
        int flag;
        bool table;
    } one_form[] = {
        { CONVERT_TO, false },     { CONVERT_HEADS, false },  { CONVERT_KV_HEADS, false },
        { CONVERT_TURNED, false }, { CONVERT_OFFSET, false }, { CONVERT_Q, false },
        { CONVERT_K, false },      { CONVERT_PART, false },   { CONVERT_ENCODING, true },
        { CONVERT_ROWS, true },    { CONVERT_DTYPE, true },   { CONVERT_LAYER, true },
        { CONVERT_LENGTH, true },
    };
    const bool table = a->value[CONVERT_TABLE] != NULL;
    for (int i = 0; i < COUNT(one_form); i++)
        if (a->value[one_form[i].flag] && one_form[i].table != table)
            return fail("convert: --%s applies to %s", flags[one_form[i].flag].name,
                        table ? "weights, not to a table" : "--table");
    return table ? convert_table(a) : convert_weights(a);
}

const struct command cmd_convert = {
    .name = "convert",
    .brief = "convert weights to the other pairing, or write tables of cos and sin",
    .synopsis = "loci convert FILE CONFIG --to PAIRING -o OUT [-n] [--part]\n"
                "    loci convert FILE --to PAIRING (--dim D | --heads H) [--kv-heads K] "
                "[--turned N] [--offset N]\n"
                "                 [--q NAMES] [--k NAMES] -o OUT [-n] [--part]\n"
                "    loci convert --table LAYOUT "
                "(CONFIG [--layer N] [--length N] | -e TEXT --dim D) [--rows N]\n"
                "                 [--dtype TYPE] -o OUT",
    .about =
        "    FILE is a safetensors file, or the index of several: NAME.index.json, or a folder\n"
        "    with model.safetensors.index.json.  The result of an index is a folder OUT with\n"
        "    files of the same names and the index, which appears last.\n"
        "\n"
        "    The rows of W_q and W_k, their biases and their norms per channel are put into the\n"
        "    order of the other pairing, so attention does not change.  Everything else is copied\n"
        "    byte for byte.  CONFIG, the model's config.json, states the head width and the\n"
        "    rotated channels of each layer.  The metadata of the result has loci.pairing; a file\n"
        "    that already has the requested pairing is refused.\n"
        "\n"
        "    The default names are layers.N.self_attn.q_proj.weight and .bias, k_proj, q_norm,\n"
        "    k_norm, attention.wq and wk, and q_b_proj with kv_a_proj_with_mqa.  Scales of\n"
        "    quantised rows, norms with other names and a q without its k are errors, because\n"
        "    a partly converted model is wrong.\n"
        "\n"
        "    A table has the tensors cos and sin [rows][dim], or [rows][dim/2] for split,\n"
        "    multiplied by the attention factor: half c0 c1 .. c0 c1 .., interleaved c0 c0 c1\n"
        "    c1 .., split c0 c1 ...\n",
    .examples =
        "    loci convert model.safetensors config.json --to interleaved -n\n"
        "    loci convert model.safetensors --to half --dim 128 --heads 32 --kv-heads 8 "
        "-o half.safetensors\n"
        "    loci convert Llama-3.1-8B Llama-3.1-8B/config.json --to interleaved -o interleaved\n"
        "    loci convert --table half config.json --rows 4096 --dtype bf16 -o table.safetensors\n",
    .operand_text = "@file @file",
    .flags = flags,
    .run = run,
};
