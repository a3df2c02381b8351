/* SPDX-License-Identifier: MIT */
/* parallel.c -- one attention over many ranks, which are threads here.  Every bit is that of one
 * process, for all ranks, shares, instruction sets of ranks and orders of messages.
 *
 *     every text of the walk     300 rows and special cases: windows, full masks, 16 bits, double,
 *                                groups, batches, positions, separate keys, rotated keys
 *     encodings' own examples    beyond work items of 1024 rows and chunks of 4096 keys
 *     loci_share_out()           all rows once, in order, evenly, with borders at round numbers
 *
 * A third of the first has dropout, and half of the second.
 *
 * The argument, a text of the walk, selects that one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "parallel_ranks.h"

/* A rank streams the keys of others, or gathers them.  Each problem has all its layouts streamed,
 * and every third one gathered. */
enum form_of_keys { STREAMED, GATHERED, FORMS };
static bool has_turn(enum form_of_keys form, int n) { return form == STREAMED || n % 3 == 0; }

static const int rank_counts[] = { 1, 2, 3, 4, 7 };
enum { COUNTS = sizeof rank_counts / sizeof *rank_counts };

/* ---- Shares ---------------------------------------------------------------------------------- */

static void share_out(loci_layout layout, int64_t rows, int ranks)
{
    enum { ROOM = 2 * 300 };
    static loci_share list[ROOM + 1];
    const loci_share stays = { -7, -7, -7 };
    const int pieces = layout == LOCI_ZIGZAG ? 2 * ranks : ranks;
    for (int i = 0; i <= ROOM; i++) list[i] = stays;
    const int n = loci_share_out(layout, rows, ranks, list, ROOM);
    if (!CHECK_THAT(n == pieces, "%d shares of %lld rows for %d ranks, layout %d", n,
                    (long long)rows, ranks, (int)layout))
        return;
    /* Even: no share differs by more than one unit, the multiple at which shares begin. */
    const int64_t chunk = 4096, item = 1024, tile = 64, all = 2 * (int64_t)ranks;
    const int64_t unit = rows / all >= chunk ? chunk : rows / all >= item ? item : tile;
    int64_t at = 0, least = INT64_MAX, most = 0;
    bool good = true;
    for (int i = 0; i < n; i++) {
        const int rank = i < ranks ? i : 2 * ranks - 1 - i;
        good = good && list[i].first == at && list[i].count >= 0 && list[i].rank == rank
            && (list[i].first % unit == 0 || list[i].count == 0);
        at += list[i].count;
        if (list[i].count < least) least = list[i].count;
        if (list[i].count > most) most = list[i].count;
    }
    good = good && at == rows && most - unit <= rows / n && least + unit >= rows / n;
    for (int i = n; i <= ROOM; i++) good = good && !memcmp(&list[i], &stays, sizeof stays);
    CHECK_THAT(good, "shares of %lld rows for %d ranks, layout %d: up to %lld, %lld to %lld each",
               (long long)rows, ranks, (int)layout, (long long)at, (long long)least,
               (long long)most);

    /* With a smaller capacity, the first shares are written, and nothing behind them. */
    static loci_share few[ROOM];
    for (int i = 0; i < ROOM; i++) few[i] = stays;
    const int capacity = n / 2;
    good = loci_share_out(layout, rows, ranks, few, capacity) == n
        && loci_share_out(layout, rows, ranks, NULL, 0) == n;
    for (int i = 0; i < ROOM && good; i++)
        good = !memcmp(&few[i], i < capacity ? &list[i] : &stays, sizeof stays);
    CHECK_THAT(good, "%d of %d shares of %lld rows", capacity, n, (long long)rows);
}

static void shares(void)
{
    static const int64_t rows[] = {
        0,    1,    63,   64,   65,    300,   1000,   2048,
        4300, 8191, 8192, 9000, 24576, 65536, 100001, (int64_t)1 << 40
    };
    static const int ranks[] = { 1, 2, 3, 4, 7, 8, 300 };
    for (int r = 0; r < 16; r++)
        for (int n = 0; n < 7; n++) {
            share_out(LOCI_CONTIGUOUS, rows[r], ranks[n]);
            share_out(LOCI_ZIGZAG, rows[r], ranks[n]);
        }

    /* The purpose of zig-zag: with a causal mask row i costs the work of i + 1 keys. */
    loci_share list[8];
    double work[4] = { 0 }, all = 0;
    const int n = loci_share_out(LOCI_ZIGZAG, 32768, 4, list, 8);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < list[i].count; k++) {
            work[list[i].rank] += (double)(list[i].first + k + 1);
            all += (double)(list[i].first + k + 1);
        }
    for (int i = 0; i < 4; i++)
        CHECK_CLOSE(work[i] / all, 0.25, 1e-9, "the work of rank %d of 4, zig-zag", i);

    static const struct {
        int layout, ranks;
        int64_t rows;
    } bad[] = {
        { LOCI_ZIGZAG, 0, 300 },
        { LOCI_CONTIGUOUS, -1, 300 },
        { LOCI_ZIGZAG, INT32_MIN, 300 },
        { LOCI_CONTIGUOUS, 2, -1 },
        { LOCI_ZIGZAG, 2, INT64_MIN },
        { 2, 2, 300 },
        { -1, 2, 300 },
        { LOCI_ZIGZAG, INT32_MAX, 300 },
    };
    for (int i = 0; i < 8; i++)
        CHECK_THAT(loci_share_out((loci_layout)bad[i].layout, bad[i].rows, bad[i].ranks, list, 8)
                       == 0,
                   "shares of %lld rows for %d ranks, layout %d", (long long)bad[i].rows,
                   bad[i].ranks, bad[i].layout);
}

/* ---- All ranks ------------------------------------------------------------------------------- */

/* An encoding that gives a row's remainder to its own value needs that value on the row's rank
 * while keys are streamed.  So rows and keys must have the same shares there, and default
 * positions.  If values turn, their angles must follow from positions. */
static bool refused(const struct whole_call *w, const struct split *s, enum form_of_keys form)
{
    return form == STREAMED && strstr(w->form.text, "remainder=value")
        && (s->key_count || w->form.places != COUNTED || strstr(w->form.text, "angles:"));
}
static void together(const struct whole_call *w, const struct split *s, enum form_of_keys form,
                     int turn)
{
    parts_together(w, s, form == GATHERED, refused(w, s, form), turn);
}

/* ---- Every text, few rows -------------------------------------------------------------------- */

enum { VARIANTS = 6 };
static struct form variant(const struct walk_text *t, int which)
{
    const bool causal_only = walk_causal_only(t->text);
    const int dim = walk_dim(t->text, 8);
    struct form f = { .text = t->text,
                      .batch = 1,
                      .heads = 4,
                      .kv_heads = 2,
                      .dim = dim,
                      .value_dim = t->square ? dim : 7,
                      .q_len = 300,
                      .k_len = 300 };
    static const loci_dtype dtypes[] = { LOCI_F32, LOCI_BF16, LOCI_F64 };
    f.dtype = dtypes[(t->next + which) % 3];
    f.drops = (t->next / 3 + which) % 3 == 1;
    switch (which) {
    case 0:
        f.name = "causal, batch of 2";
        f.batch = 2;
        break;
    case 1:
        f.name = "window, gaps, one kv head, turned keys";
        f.left = 70;
        f.kv_heads = 1;
        f.places = SPREAD;
        f.keys_rotated = !walk_key_forms(t->text);
        if (walk_states(t->text)) f.kv_heads = 4; /* a group needs one rotation per key */
        break;
    case 2:
        f.name = "full or causal, positions per batch, keys apart";
        f.full = !causal_only;
        f.q_len = f.k_len = 200;
        f.batch = 2;
        f.places = PER_BATCH;
        break;
    case 3:
        f.name = "few rows, many keys";
        f.q_len = 70;
        f.left = 200;
        f.kv_heads = 4;
        break;
    case 4:
        f.name = "many rows, few keys";
        f.k_len = 130;
        f.full = !causal_only;
        if (f.full) {
            f.left = 170;
            f.right = 90;
        }
        break;
    default:
        f.name = "positions in no order, no lse";
        f.places = SHUFFLED;
        f.no_rows = true;
        f.q_len = f.k_len = 90;
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
            /* each encoding's example has half of the forms, other texts fewer */
            const int often = LOCI_EMULATED ? 12 : LOCI_SLOW ? 8 : t.example ? 2 : 9;
            if (!walk_whole() && (t.next + v) % often) continue;
            if (!whole_make(&w, &f, t.next)) continue;
            /* some encodings reject such positions, or rows before the first key */
            CHECK_THAT(!w.status || f.places == SHUFFLED || f.q_len > f.k_len, "%s (%s): %s",
                       f.text, f.name, w.error.text);
            for (int layout = 0; layout < LAYOUTS; layout++)
                for (int form = 0; form < FORMS; form++) {
                    struct split s;
                    const int ranks = rank_counts[(t.next + v + layout) % COUNTS];
                    const bool apart = f.q_len != f.k_len || v == 2;
                    if (!has_turn(form, layout + t.next + v / 3)) continue;
                    if (LOCI_EMULATED && (turn + layout) % 3) continue;
                    turn++;
                    split_make(&s, layout, ranks, f.q_len, f.k_len, apart, false, (uint64_t)turn);
                    together(&w, &s, form, turn);
                }
            whole_drop(&w);
        }
}

/* ---- Encodings' own examples, many rows ------------------------------------------------------ */

/* Rows across the borders of items and chunks; keys across those of three chunks, where one rank's
 * keys end within another's chunk.  Each example has one of the cases, with different layouts and
 * ranks. */
static void examples(void)
{
    static const struct {
        const char *name;
        ptrdiff_t q_len, k_len;
        int64_t left;
        int heads;
    } cases[] = { { "4300 rows", 4300, 4300, 0, 1 },
                  { "9000 keys", 1100, 9000, 0, 2 },
                  { "9000 rows in a window", 9000, 9000, 600, 2 } };
    int turn = 1000;
    for (struct walk_text t = { 0 }; walk_next(&t);)
        for (int i = 0; i < 3 && t.example && !walk_moves(t.text); i++) {
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
            };
            if (!whole_make(&w, &f, t.next + i)) continue;
            for (int form = 0; form < FORMS; form++) {
                struct split s;
                if (!has_turn(form, i + t.next)) continue;
                turn++;
                split_make(&s, (enum layout)((t.next + i) % LAYOUTS),
                           rank_counts[1 + (t.next / 3 + i) % (COUNTS - 1)], f.q_len, f.k_len,
                           f.q_len != f.k_len, false, (uint64_t)turn);
                together(&w, &s, form, turn);
            }
            whole_drop(&w);
        }
}

int main(int argc, char **argv)
{
    walk_only(argc, argv);
    if (!walk_limited()) shares();
    every_text();
    if (!LOCI_SLOW) examples();
    return harness_end();
}
