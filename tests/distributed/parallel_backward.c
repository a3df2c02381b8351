/* SPDX-License-Identifier: MIT */
/* parallel_backward.c -- gradients over many ranks, which are threads here.  Every bit is that of
 * one process, for all ranks, shares, instruction sets of ranks and orders of messages.
 *
 *     every text of the walk     2100 rows, and special cases: windows, full masks, 16 bits,
 *                                double, groups, batches, positions, separate keys, rotated keys
 *     encodings' own examples    more chunks of 4096 keys, and shares that cut them; so have
 *                                options that have inputs by key
 *
 * A third of the first has dropout, and half of the second.
 *
 * The argument, a text of the walk, selects that one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "parallel_ranks.h"

enum form_of_keys { STREAMED, GATHERED, FORMS };

/* A gradient of a row's own key requires that one rank owns both the row and the key.  While keys
 * are streamed, angles of values that turn must follow from positions. */
static bool refused(const struct whole_call *w, const struct split *s, enum form_of_keys form)
{
    return strstr(w->form.text, "remainder=value")
        && (s->key_count || w->form.places != COUNTED
            || (form == STREAMED && strstr(w->form.text, "angles:")));
}
static void together(const struct whole_call *w, const struct split *s, enum form_of_keys form,
                     int turn)
{
    parts_together(w, s, form == GATHERED, refused(w, s, form), turn);
}

static const int rank_counts[] = { 1, 2, 3, 4, 7 };
enum { COUNTS = sizeof rank_counts / sizeof *rank_counts };

/* ---- Every text ------------------------------------------------------------------------------ */

enum { VARIANTS = 6 };
static struct form variant(const struct walk_text *t, int which)
{
    const bool causal_only = walk_causal_only(t->text);
    const int dim = walk_dim(t->text, 8);
    struct form f = { .text = t->text,
                      .batch = 1,
                      .heads = 2,
                      .kv_heads = 1,
                      .dim = dim,
                      .value_dim = t->square ? dim : 7,
                      .q_len = 2100,
                      .k_len = 2100,
                      .grads = true,
                      .lasting = true };
    static const loci_dtype dtypes[] = { LOCI_F32, LOCI_BF16, LOCI_F64 };
    f.dtype = dtypes[(t->next + which) % 3];
    f.drops = (t->next / 3 + which) % 3 == 1;
    switch (which) {
    case 0:
        f.name = "causal, batch of 2";
        f.batch = 2;
        f.q_len = f.k_len = 1400;
        break;
    case 1:
        f.name = "window, gaps, turned keys";
        f.left = 170;
        f.places = SPREAD;
        f.keys_rotated = !walk_key_forms(t->text);
        if (walk_states(t->text)) f.kv_heads = 2; /* a group needs one rotation per key */
        break;
    case 2:
        f.name = "full or causal, positions per batch, keys apart";
        f.full = !causal_only;
        f.q_len = f.k_len = 1100;
        f.batch = 2;
        f.places = PER_BATCH;
        break;
    case 3:
        f.name = "few rows, many keys";
        f.q_len = 1070;
        f.k_len = 4300;
        f.left = 700;
        f.heads = f.kv_heads = 1;
        break;
    case 4:
        f.name = "many rows, few keys";
        f.k_len = 130;
        f.full = !causal_only;
        f.kv_heads = 2;
        if (f.full) {
            f.left = 170;
            f.right = 90;
        }
        break;
    default:
        f.name = "positions in no order";
        f.places = SHUFFLED;
        f.heads = 1;
        f.q_len = f.k_len = 1090;
    }
    return f;
}

static void every_text(void)
{
    int turn = 0;
    for (struct walk_text t = { 0 }; walk_next(&t);)
        for (int v = 0; v < VARIANTS && !walk_moves(t.text); v++) {
            struct whole_call w;
            const struct form f = variant(&t, v);
            const int often = LOCI_SLOW ? 48 : t.example ? VARIANTS : 4 * VARIANTS;
            if (!walk_whole() && (t.next + v) % often) continue;
            if (!whole_make(&w, &f, t.next)) continue;
            CHECK_THAT(!w.status || f.places == SHUFFLED || f.q_len > f.k_len, "%s (%s): %s",
                       f.text, f.name, w.error.text);
            /* a single text has all layouts, with all numbers of ranks */
            for (int n = walk_limited() ? LAYOUTS * COUNTS : 1; n; n--) {
                struct split s;
                const int ranks = rank_counts[(t.next / 2 + v + n) % COUNTS];
                const bool apart = f.q_len != f.k_len || v == 2;
                turn++;
                split_make(&s, (enum layout)((turn + 2 * n) % LAYOUTS), ranks, f.q_len, f.k_len,
                           apart, true, (uint64_t)turn);
                together(&w, &s, (turn + n / 2) % 3 == 0 ? GATHERED : STREAMED, turn);
            }
            whole_drop(&w);
        }
}

/* ---- Encodings' own examples, many rows ------------------------------------------------------ */

/* These options have inputs by key, and the examples of their encodings have none. */
static bool option_with_inputs(const char *text)
{
    return strstr(text, "slopes=") || strstr(text, "positions=given");
}
static void examples(void)
{
    static const struct {
        const char *name;
        ptrdiff_t q_len, k_len;
        int64_t left;
        int heads;
    } cases[] = { { "4300 rows", 4300, 4300, 0, 1 },
                  { "9000 keys", 1100, 9000, 0, 1 },
                  { "9000 rows in a window", 9000, 9000, 300, 1 } };
    int turn = 1000;
    for (struct walk_text t = { 0 }; walk_next(&t);)
        for (int i = 0; i < 3 && (t.example || option_with_inputs(t.text)) && !walk_moves(t.text);
             i++) {
            if ((t.next + i) % 6 && !walk_whole()) continue;
            struct whole_call w;
            const struct form f = {
                .text = t.text,
                .name = cases[i].name,
                .batch = 1,
                .heads = cases[i].heads,
                .kv_heads = 1,
                .dim = walk_dim(t.text, 8),
                .value_dim = 8,
                .q_len = cases[i].q_len,
                .k_len = cases[i].k_len,
                .left = cases[i].left,
                .lasting = true,
                .drops = t.next % 2 == 0,
                .grads = true,
            };
            if (!whole_make(&w, &f, t.next + i)) continue;
            struct split s;
            turn++;
            /* Each third one has several work items in a share, the others several shares. */
            const bool few = i == 0;
            split_make(&s, few ? CONTIGUOUS : (enum layout)((t.next + i) % LAYOUTS),
                       few ? 2 : rank_counts[1 + (t.next / 3 + i) % (COUNTS - 1)], f.q_len, f.k_len,
                       f.q_len != f.k_len, true, (uint64_t)turn);
            together(&w, &s, turn % 3 == 0 ? GATHERED : STREAMED, turn);
            whole_drop(&w);
        }
}

/* Own keys of rows, whose values get remainders, among gathered keys. */
static void own_keys(void)
{
    static const char *const texts[] = { "sba:remainder=value",
                                         "angles:pairing=half,values=1+sba:remainder=value" };
    for (int i = 0; i < 4; i++) {
        const struct walk_text t = { .text = texts[i / 2], .square = true };
        const struct form f = variant(&t, 0);
        struct whole_call w;
        struct split s;
        if (!whole_make(&w, &f, i)) continue;
        split_make(&s, i % 2 ? ZIGZAG : CONTIGUOUS, 2 + i % 2, f.q_len, f.k_len, false, true, 1);
        together(&w, &s, GATHERED, i);
        whole_drop(&w);
    }
}

int main(int argc, char **argv)
{
    walk_only(argc, argv);
    every_text();
    if (!walk_limited()) own_keys();
    if (!LOCI_SLOW) examples();
    return harness_end();
}
