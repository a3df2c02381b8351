/* SPDX-License-Identifier: MIT */
/* lab_traps.c -- runs before they start: every trap gives its warning, and other settings give
 * none.  Configurations, their identity and their files; texts of arms; learning rates; and the
 * runs that presets, lists and grids select. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"
#include "lab/config.h"
#include "lab/run.h"
#include "lab/train.h"
#include "scratch.h"

static struct lab_corpus corpus;

/* Size S, with settings "key=value key=value". */
static struct lab_config config_of(const char *arm, const char *task, const char *settings)
{
    struct lab_config c = { .learned = LAB_RANDOM, .variants = 1 };
    loci_error e = { .text = "" };
    char copy[256];
    CHECK_THAT(!lab_config_size(&c, "S", &e) && !lab_config_task(&c, task, &e), "%s", e.text);
    c.steps = 100;
    c.corpus = lab_task(task)->corpus ? &corpus : NULL;
    snprintf(c.arm, sizeof c.arm, "%s", arm);
    snprintf(copy, sizeof copy, "%s", settings);
    for (char *p = strtok(copy, " "); p; p = strtok(NULL, " ")) {
        char *equals = strchr(p, '=');
        *equals = 0;
        CHECK_THAT(!lab_config_set(&c, p, equals + 1, &e), "%s: %s", p, e.text);
    }
    return c;
}

/* ---- Traps ----------------------------------------------------------------------------------- */

static const struct trap {
    const char *arm, *task, *settings, *row; /* row: a variant that is tested too */
    /* a text that must not occur has "!" in front: "!..." */
    const char *says;
} traps[] = {
    /* parts of tables that are never trained */
    { "t5:max_distance=65", "copy", "most=31", "", "t5: max_distance=65, but training has 64" },
    { "t5:max_distance=65", "text", "", "",
      "t5: max_distance=65, but training has 64 tokens: buckets" },
    { "t5:max_distance=64", "text", "", "", "!never trained" },
    { "t5", "text", "", "", "!never trained" },
    { "rope+t5:buckets=8,max_distance=100", "text", "", "", "max_distance=100" },
    { "shaw:left=65,right=2", "text", "", "", "shaw: left=65" },
    { "shaw:left=64,right=2", "text", "", "", "!never trained" },
    { "shaw", "text", "", "", "!never trained" },
    { "shaw@wide", "text", "", "", "!never trained" },
    { "deberta@wide", "text", "", "", "!never trained" },
    { "clip@wide", "text", "", "", "!never trained" },
    { "clip:max=65", "text", "", "", "clip: max=65" },
    { "clip", "text", "", "", "!never trained" },
    { "cope:npos=66", "text", "", "", "cope: npos=66" },
    { "cope", "text", "", "", "!never trained" },
    { "deberta:max_distance=100", "text", "", "", "deberta: max_distance=100" },
    { "deberta", "text", "", "", "!never trained" },
    { "learned", "text", "learned=random", "", "64 trained ones have rows that keep the random" },
    { "learned", "text", "learned=clamp", "", "64 trained ones read the last row" },
    { "learned", "text", "learned=wrap", "", "64 trained ones begin again at the first row" },
    { "learned", "text", "learned=refuse", "", "64 trained ones have no row, so tests" },
    { "learned+alibi", "text", "", "", "learned: positions beyond" },
    { "learned@random", "text", "", "", "!learned: positions" },
    { "sinusoidal", "text", "", "", "!learned: positions" },
    /* YaRN's numbers are for long windows */
    { "rope:scaling=yarn,factor=2,original_length=64", "text", "", "",
      "no pair turns beta_fast = 32" },
    { "rope:scaling=yarn,factor=2,original_length=64,beta_fast=11", "text", "", "",
      "beta_fast = 11" },
    { "rope:scaling=yarn,factor=2,original_length=64,beta_fast=10", "text", "", "", "!yarn" },
    { "rope:scaling=yarn,factor=2,original_length=256", "text", "length=256", "", "!yarn" },
    { "rope:scaling=ntk,factor=2", "text", "", "", "!yarn" },
    { "rope", "text", "", "", "!yarn" },
    /* ALiBi's slopes */
    { "alibi", "text", "", "", "with 4 they go from 0.25 to 1/256" },
    { "rope+alibi", "text", "heads=16", "", "with 16 they go from 0.707" },
    { "alibi", "text", "dim=96 heads=6", "", "with 6 they go from 0.5" },
    { "alibi", "text", "heads=8", "", "!slopes" },
    { "alibi:slopes=given", "text", "", "", "!slopes" },
    { "kerple", "text", "", "", "!slopes" },
    /* FoPE's frequencies */
    { "fope", "text", "", "", "fope: heads are 16 wide, its authors' 64" },
    { "fope", "text", "dim=128 heads=2", "", "!fope: heads" },
    { "rope", "text", "", "", "!fope: heads" },
    /* a stick does not see its own token */
    { "sba", "text", "", "", "sba: a token does not see itself" },
    { "rope+sba", "text", "", "", "sba: a token does not see itself" },
    { "rope", "text", "", "", "!sba" },
    /* nope counts from BOS */
    { "nope", "text", "", "window",
      "nope: it counts from the BOS token, which rows beyond the first 64" },
    { "nope", "text", "", "logn", "!BOS" },
    { "rope", "text", "", "window", "!BOS" },
    /* sequences of one length */
    { "sinusoidal", "text", "", "", "all training sequences have 64 tokens" },
    { "learned", "passkey", "", "", "all training sequences have 64 tokens" },
    { "index+alibi", "selcopy", "", "", "all training sequences have 49 tokens" },
    { "sinusoidal", "copy", "", "", "!all training" },
    { "sinusoidal", "flipflop", "", "", "!all training" },
    { "sinusoidal@random", "text", "", "", "!all training" },
    { "rope", "text", "", "", "!all training" },
    /* a softmax over more keys */
    { "rope", "text", "", "", "a softmax over more keys" },
    { "rope", "text", "", "window", "a softmax over more keys" },
    { "rope", "text", "", "logn", "!softmax" },
    { "sba", "text", "", "", "!softmax" },
};

static void check_trap(const struct trap *t)
{
    const struct lab_config c = config_of(t->arm, t->task, t->settings);
    struct lab_row row[2] = { { .name = "" } };
    struct lab_result r = { .learned = true, .rows = t->row[0] ? 2 : 1, .row = row };
    struct lab_model *m;
    loci_error e = { .text = "" };
    const struct lab_shape s = lab_config_shape(&c);
    const bool absent = t->says[0] == '!';
    int found = 0;
    snprintf(row[1].name, sizeof row[1].name, "%s", t->row);
    if (lab_model_open(&m, &s, NULL, &e)) {
        CHECK_FAILED("%s: %s", t->arm, e.text);
        return;
    }
    lab_warn(&c, m, &r);
    for (int i = 0; i < r.warnings; i++) {
        found += strstr(r.warning[i], t->says + absent) != NULL;
        CHECK_THAT(!strchr(r.warning[i], '\n') && strlen(r.warning[i]) < 300, "%s", r.warning[i]);
    }
    CHECK_THAT(found == !absent, "%s on %s (%s, row '%s') says '%s' %d times; first of %d: %s",
               t->arm, t->task, t->settings, t->row, t->says, found, r.warnings,
               r.warnings ? r.warning[0] : "none");
    const int before = r.warnings;
    CHECK_THAT(!before || !strstr(r.warning[before - 1], "not learned"), "%s is learned", t->arm);
    r.learned = false;
    lab_warn(&c, m, &r);
    CHECK_THAT(r.warnings == 2 * before + 1 && strstr(r.warning[2 * before], "not learned"),
               "%s is not learned, and %d of %d say so", t->arm, before, r.warnings);
    for (int i = 0; i < r.warnings; i++) free(r.warning[i]);
    free(r.warning);
    lab_model_close(m);
}

/* Two traps that cannot arise here: without BOS nope could not count, and a gate that forgets much
 * at first would learn slowly. */
static void check_starts(void)
{
    const struct lab_task *const *list;
    for (int i = 0, n = lab_tasks(&list); i < n; i++) {
        const struct lab_problem p = lab_problem(list[i], 64, list[i]->corpus ? &corpus : NULL);
        struct lab_column column[LAB_COLUMNS];
        const int columns = p.task->columns(&p, column);
        for (int k = -1; k < columns; k++) {
            const size_t most = (size_t)(k < 0 ? p.task->longest(&p) : column[k].length);
            int32_t *token = malloc(most * sizeof *token), *target = malloc(most * sizeof *target);
            for (int row = 0; row < 5; row++) {
                p.task->draw(&p, k < 0 ? NULL : &column[k], (uint64_t)row, row, token, target);
                CHECK_THAT(token[0] == LAB_BOS, "%s, %s", list[i]->name,
                           k < 0 ? "training" : column[k].name);
            }
            free(token);
            free(target);
        }
    }
    static const char *const gated[] = { "fox", "rope+fox", "fox-pro", "fox@open", "fox-pro@open" };
    for (int i = 0; i < 5; i++) {
        const float start = strstr(gated[i], "@open") ? 2 : 0;
        const struct lab_config c = config_of(gated[i], "copy", "");
        const struct lab_shape s = lab_config_shape(&c);
        const struct lab_tensor *t;
        struct lab_model *m;
        int gates = 0;
        CHECK_THAT(!lab_model_open(&m, &s, NULL, NULL), "%s", gated[i]);
        lab_model_init(m, 0);
        for (int k = 0, n = lab_model_tensors(m, &t); k < n; k++) {
            const size_t length = strlen(t[k].name);
            if (length < 3 || strcmp(t[k].name + length - 3, ".bf") != 0) continue;
            const float *b = (const float *)lab_model_list(m, LAB_WEIGHTS) + t[k].at;
            for (ptrdiff_t h = 0; h < t[k].cols; h++) gates += b[h] == start;
        }
        CHECK_THAT(gates == s.layers * s.heads, "%s has %d gates that start at %g", gated[i], gates,
                   start);
        lab_model_close(m);
    }
}

/* ---- Configurations -------------------------------------------------------------------------- */

static void id_of(const struct lab_config *c, char id[33])
{
    lab_config_id(c, id);
    CHECK_THAT(strlen(id) == 32 && strspn(id, "0123456789abcdef") == 32, "'%s'", id);
}

static void check_fields(void)
{
    static const struct {
        const char *key, *value, *says;
    } wrong[] = {
        { "head", "4", "unknown key 'head' for task recall; did you mean heads" },
        { "lerned", "clamp", "did you mean learned" },
        { "kys", "4", "did you mean keys" },
        { "most", "4", "unknown key 'most' for task recall" },
        { "", "4", "unknown key ''" },
        { "heads", "four", "heads 'four' must be a whole number from 1 to 16" },
        { "heads", "", "must be a whole number" },
        { "heads", "2.5", "must be a whole number" },
        { "heads", "4 ", "must be a whole number" },
        { "heads", "0", "must be a whole number" },
        { "heads", "17", "must be a whole number" },
        { "heads", "nan", "must be a whole number" },
        { "steps", "inf", "must be a whole number" },
        { "steps", "0", "must be a whole number from 1" },
        { "seed", "-1", "must be a whole number from 0" },
        { "rate", "0", "rate '0' must be a number" },
        { "rate", "fast", "must be a number" },
        { "variants", "2", "from 0 to 1" },
        { "learned", "guess", "learned 'guess' must be refuse, clamp, wrap or random" },
        { "keys", "many", "keys 'many' must be a number" },
        { "keys", "1.5", "keys" },
        { "keys", "1", "keys" },
        { "form", "2", "form" },
    };
    struct lab_config c = config_of("rope", "recall", ""), old = c;
    loci_error e;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_SAYS(lab_config_set(&c, wrong[i].key, wrong[i].value, &e), LOCI_BAD_ARG, &e,
                   wrong[i].says);
    CHECK_THAT(!memcmp(&c, &old, sizeof c), "what is refused changes nothing");
    CHECK_SAYS(lab_config_size(&c, "XL", &e), LOCI_BAD_ARG, &e, "size 'XL' is none of XS, S, M, L");
    CHECK_SAYS(lab_config_task(&c, "recal", &e), LOCI_BAD_ARG, &e, "did you mean recall");

    static const struct {
        const char *arm, *task, *settings, *says;
    } bad[] = {
        { "alibo", "copy", "", "alibo" },
        { "rope:bsae=3", "copy", "", "base" },
        { "rope", "copy", "heads=3", "heads 3" },
        { "rope", "copy", "dim=60", "dim 60 must be a multiple of 16" },
        { "rope", "copy", "kv_heads=3", "kv_heads 3 must divide heads 4" },
        { "rope", "copy", "ffn=100", "ffn 100 must be a multiple of 16" },
        { "rope", "copy", "tokens=40",
          "tokens 40: a step must have room for a sequence of copy, 42" },
        { "rope@ntk", "copy", "", "what follows @ must be random" },
        { "alibi@open", "copy", "", "has no forget gates that could start open" },
        { "nope-pro@open", "copy", "", "has no forget gates that could start open" },
        { "fire:threshold=x", "copy", "", "threshold" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        c = config_of(bad[i].arm, bad[i].task, bad[i].settings);
        const loci_status status = lab_config_check(&c, &e);
        CHECK_SAYS(status, status ? status : LOCI_BAD_ARG, &e, bad[i].says);
    }
    c = config_of("rope", "text", "");
    c.corpus = NULL;
    CHECK_SAYS(lab_config_check(&c, &e), LOCI_BAD_ARG, &e, "task text needs a corpus");
    c = config_of("rope", "copy", "kv_heads=2 ffn=64");
    CHECK_THAT(!lab_config_check(&c, &e), "%s", e.text);
}

/* The identity depends on the text, and every field is in it. */
static void check_identity(void)
{
    static const char *const changes[] = {
        "seed=1",     "layers=3",      "dim=96",       "heads=8",    "kv_heads=2", "ffn=128",
        "length=65",  "steps=101",     "tokens=2049",  "variants=0", "finetune=1", "rate=0.0030001",
        "std=0.0626", "embed_std=0.5", "learned=wrap", "keys=17",    "values=15",  "form=1",
    };
    enum { CHANGES = sizeof changes / sizeof *changes };
    const struct lab_config c = config_of("rope", "recall", "");
    char id[CHANGES + 4][33], again[33];
    int n = 0;
    struct text t = { .s = NULL };
    lab_config_text(&c, &t);
    static const char want[] =
        "format=2\narm=rope\ntask=recall\nsize=S\nseed=0\nlayers=2\ndim=64\n"
        "heads=4\nkv_heads=0\nffn=0\nlength=64\nsteps=100\ntokens=2048\n"
        "rate=0.0030000000000000001\nstd=0.0625\nembed_std=1\nvariants=1\nfinetune=0\n"
        "learned=random\nkeys=16\nvalues=16\nform=0\n";
    CHECK_THAT(!strcmp(t.s, want), "the text is\n%s", t.s);
    text_free(&t);
    id_of(&c, id[n++]);
    CHECK_THAT(!strcmp(id[0], "f888ba89bf37da358cad497601159db3"),
               "the identity of a run has changed to %s", id[0]);
    for (int i = 0; i < CHANGES; i++) {
        const struct lab_config other = config_of("rope", "recall", changes[i]);
        id_of(&other, id[n++]);
    }
    struct lab_config other = c;
    strcpy(other.arm, "rope:pairing=half");
    id_of(&other, id[n++]);
    other = c;
    strcpy(other.size, "M");
    id_of(&other, id[n++]);
    other = config_of("rope", "copy", "");
    id_of(&other, id[n++]);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++) CHECK_THAT(strcmp(id[i], id[k]) != 0, "%d and %d", i, k);

    /* neither the bytes behind texts and options, nor the format of a number */
    memset(&other, 0x5a, sizeof other);
    other.learned = LAB_RANDOM;
    other.variants = 1;
    other.finetune = other.seed = 0;
    other.steps = 100;
    strcpy(other.arm, "rope");
    lab_config_size(&other, "S", NULL);
    lab_config_task(&other, "recall", NULL);
    lab_config_set(&other, "rate", "3e-3", NULL);
    lab_config_set(&other, "keys", "1.6e1", NULL);
    id_of(&other, again);
    CHECK_THAT(!strcmp(again, id[0]), "the same run is %s", again);
    other.option[LAB_OPTIONS - 1] = 9;
    other.corpus = &corpus;
    id_of(&other, again);
    CHECK_THAT(!strcmp(again, id[0]), "recall has no corpus and three options");

    /* a corpus counts by its bytes, not by its name */
    struct lab_corpus book = corpus;
    struct lab_config text = config_of("rope", "text", "");
    id_of(&text, id[0]);
    strcpy(book.name, "book");
    text.corpus = &book;
    id_of(&text, again);
    CHECK_THAT(!strcmp(again, id[0]), "a corpus of another name");
    book.sha256[0] ^= 1;
    id_of(&text, again);
    CHECK_THAT(strcmp(again, id[0]) != 0, "another corpus");
}

static void check_settings(void)
{
    static const struct {
        const char *task, *settings, *want;
    } list[] = {
        { "recall", "", "" },
        { "recall", "seed=3 steps=7", "" },
        { "recall", "heads=8 keys=8", "heads=8 keys=8" },
        { "copy", "learned=clamp rate=0.001 variants=0", "rate=0.001 variants=0 learned=clamp" },
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const struct lab_config c = config_of("rope", list[i].task, list[i].settings);
        char got[200];
        lab_config_settings(&c, got, sizeof got);
        CHECK_THAT(!strcmp(got, list[i].want), "'%s' of '%s'", got, list[i].settings);
    }
}

/* config.json is complete, and is accepted in the folder of its run only. */
static void check_file(void)
{
    static const char *const all[][3] = {
        { "rope:base=1e6,pairing=half", "recall", "form=1 rate=0.0012345678901234567 heads=8" },
        { "sinusoidal@random", "text", "learned=refuse steps=12 finetune=1" },
    };
    char top[SCRATCH], folder[SCRATCH + 40], path[SCRATCH + 60], id[33];
    loci_error e = { .text = "" };
    scratch(top, "traps");
    CHECK_THAT(mkdtemp(top), "no folder");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const struct lab_config c = config_of(all[i][0], all[i][1], all[i][2]);
        struct lab_config back;
        struct text t = { .s = NULL }, first = { .s = NULL }, second = { .s = NULL };
        lab_config_id(&c, id);
        snprintf(folder, sizeof folder, "%s/%s", top, id);
        snprintf(path, sizeof path, "%s/config.json", folder);
        mkdir(folder, 0777);
        lab_config_json(&c, &t);
        FILE *f = fopen(path, "w");
        CHECK_THAT(f && fputs(t.s, f) >= 0 && !fclose(f), "%s", path);
        CHECK_THAT(!lab_config_read(&back, folder, &corpus, &e), "%s", e.text);
        lab_config_text(&c, &first);
        lab_config_text(&back, &second);
        CHECK_THAT(!strcmp(first.s, second.s), "%s\nis read as\n%s", first.s, second.s);
        text_free(&t);
        text_free(&first);
        text_free(&second);

        if (c.corpus) {
            struct lab_corpus book = corpus;
            book.sha256[0] ^= 1;
            CHECK_SAYS(lab_config_read(&back, folder, &book, &e), LOCI_BAD_ARG, &e,
                       "was trained on another text; --corpus names it");
        }
        char moved[SCRATCH + 40];
        snprintf(moved, sizeof moved, "%s/%032d", top, 0);
        rename(folder, moved);
        CHECK_SAYS(lab_config_read(&back, moved, &corpus, &e), LOCI_UNSUPPORTED, &e, id);
        snprintf(path, sizeof path, "%s/config.json", moved);
        unlink(path);
        CHECK_SAYS(lab_config_read(&back, moved, &corpus, &e), LOCI_BAD_ARG, &e, "cannot open");
        rmdir(moved);
    }
    rmdir(top);
}

/* ---- Learning rates -------------------------------------------------------------------------- */

static void check_rates(void)
{
    static const int steps[] = { 1, 2, 7, 20, 100, 1001 };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct lab_config c = config_of("rope", "copy", "");
        c.steps = steps[i];
        const int warm = (c.steps + 19) / 20;
        double before = 0;
        for (int s = 0; s < c.steps; s++) {
            const double rate = lab_rate(&c, s), share = (double)(s - warm) / (c.steps - warm),
                         want = s < warm ? c.rate * (s + 1) / warm
                                         : c.rate * (0.1 + 0.45 * (1 + cos(M_PI * share)));
            CHECK_CLOSE(rate, want, 1e-15, "step %d of %d", s, c.steps);
            CHECK_THAT(s <= warm ? rate >= before : rate < before, "step %d of %d", s, c.steps);
            before = rate;
        }
        CHECK_CLOSE(lab_rate(&c, warm - 1), c.rate, 0, "the largest of %d", c.steps);
        CHECK_THAT(before >= 0.1 * c.rate, "the last of %d", c.steps);
        CHECK_CLOSE(lab_rate(&c, c.steps), c.steps > warm ? 0.1 * c.rate : c.rate, 1e-15,
                    "the end");
    }
}

/* ---- Arms ------------------------------------------------------------------------------------ */

static void check_arms(void)
{
    static const struct {
        const char *text, *embed, *attention, *family;
    } good[] = {
        { "nope", "", "nope", "nothing" },
        { "rope", "", "rope:pairing=half", "rotate" },
        { "rope:base=1e6", "", "rope:base=1e6,pairing=half", "rotate" },
        { "rope:pairing=interleaved", "", "rope:pairing=interleaved", "rotate" },
        { "t5", "", "t5:bidirectional=0,max_distance=32", "score" },
        { "t5:max_distance=7", "", "t5:max_distance=7,bidirectional=0", "score" },
        { "cope", "", "cope:npos=65", "score" },
        { "shaw", "", "shaw:left=16,right=16", "score+value" },
        { "normalised", "normalised:length=512", "nope", "embed" },
        { "sinusoidal+alibi", "sinusoidal", "alibi", "embed+score" },
        { "alibi+sinusoidal", "sinusoidal", "alibi", "embed+score" },
        { "rope+fox", "", "rope:pairing=half+fox", "rotate+score" },
        { "liere", "", "liere:axes=1,block=16", "rotate" },
        { "rope@random", "", "rope:pairing=half", "rotate" },
        { "fox-pro", "", "fox", "score" },
        { "nope-pro", "", "nope", "nothing" },
        { "rope-pro", "", "rope:pairing=half", "rotate" },
        { "rope-pro@random", "", "rope:pairing=half", "rotate" },
        { "fox@open", "", "fox", "score" },
        { "xpos", "", "xpos:scale_base=32", "rotate" },
        { "deberta", "", "deberta:max_distance=32,span=16", "score" },
        { "deberta@wide", "", "deberta:kind=v1,span=64", "score" },
        { "shaw@wide", "", "shaw:left=63,right=63", "score+value" },
        { "shaw:left=9@wide", "", "shaw:left=9,right=63", "score+value" },
        { "clip+rope@wide", "", "clip:max=63+rope:pairing=half", "rotate+score" },
        { "mixed", "", "mixed:axes=1", "rotate" },
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct lab_arm a;
        char family[LAB_NAME * 2];
        loci_error e = { .text = "" };
        CHECK_THAT(!lab_arm_parse(&a, good[i].text, 64, 512, 16, &e), "%s", e.text);
        lab_arm_family(&a, family);
        CHECK_THAT(!strcmp(a.embed, good[i].embed) && !strcmp(a.attention, good[i].attention)
                       && !strcmp(family, good[i].family) && !strcmp(a.text, good[i].text),
                   "%s is '%s' and '%s', %s", good[i].text, a.embed, a.attention, family);
        CHECK_THAT(a.random == !!strstr(good[i].text, "@random") && a.range == (a.random ? 2048 : 0)
                       && a.open == !!strstr(good[i].text, "@open"),
                   "%s", good[i].text);
        CHECK_CLOSE(a.unit,
                    strstr(good[i].text, "mixed")   ? 14 / 64.0
                    : strstr(good[i].text, "liere") ? 1 / 64.0
                                                    : 0,
                    0, "%s", good[i].text);
        CHECK_THAT(lab_is_layer(good[i].text) == (strstr(good[i].text, "-pro") != NULL), "%s",
                   good[i].text);
        CHECK_THAT(a.layer
                       == (strstr(good[i].text, "-pro")   ? LAB_FOX_PRO
                           : strstr(good[i].text, "tape") ? LAB_TAPE
                                                          : LAB_PLAIN),
                   "%s", good[i].text);
    }
    char most[LAB_ARM + 1];
    memset(most, 'a', LAB_ARM);
    most[LAB_ARM] = 0;
    const char *const bad[][2] = {
        { "", "names no encoding" },
        { "@random", "names no encoding" },
        { "rope@ntk", "what follows @ must be random" },
        { "rope@", "what follows @ must be random" },
        { "rope@random@random", "what follows @ must be random" },
        { "alibi@wide", "has no table of distances that could be wide" },
        { "fox-pro@wide", "has no table of distances that could be wide" },
        { "+rope", "an encoding is missing next to a +" },
        { "rope++alibi", "an encoding is missing next to a +" },
        { "rope+", "an encoding is missing behind the +" },
        { "fox-pro+alibi", "fox-pro is a layer and stands alone" },
        { "alibi+fox-pro", "fox-pro is a layer and stands alone" },
        { "sinusoidal+learned", "adds two encodings to embeddings" },
        { most, "is longer than 127 characters" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct lab_arm a;
        loci_error e;
        CHECK_SAYS(lab_arm_parse(&a, bad[i][0], 64, 512, 16, &e), LOCI_BAD_ARG, &e, bad[i][1]);
    }
    const struct lab_known *known;
    int chief = 0;
    for (int i = 0, n = lab_known_arms(&known); i < n; i++) {
        const struct lab_config c = config_of(known[i].text, "copy", "");
        loci_error e = { .text = "" };
        CHECK_THAT(!lab_config_check(&c, &e), "%s: %s", known[i].text, e.text);
        chief += known[i].chief;
    }
    CHECK_THAT(chief == 8, "%d arms are chief", chief);
}

/* Each encoding of the library is an arm, or part of one, or is left out with a reason. */
static void check_none_forgotten(void)
{
    const loci_encoding_info *list;
    const struct lab_known *known;
    const struct lab_left_out *left;
    const int knowns = lab_known_arms(&known), lefts = lab_left_out(&left);
    for (int i = 0, n = loci_encodings(&list); i < n; i++) {
        int found = 0;
        for (int k = 0; k < knowns; k++) {
            const char *at = strstr(known[k].text, list[i].name);
            const size_t end = strlen(list[i].name);
            found += at && (at == known[k].text || at[-1] == '+') && strchr("+:", at[end]);
        }
        for (int k = 0; k < lefts; k++) found += !strcmp(left[k].name, list[i].name);
        CHECK_THAT(found, "%s is no arm", list[i].name);
    }
}

static void check_changes(void)
{
    static const struct {
        enum lab_change change;
        const char *arm, *want; /* NULL: no such variant */
    } list[] = {
        { LAB_PI, "rope", "rope:pairing=half,scaling=linear,factor=4" },
        { LAB_NTK, "alibi+rope:base=100", "alibi+rope:base=100,pairing=half,scaling=ntk,factor=4" },
        { LAB_DYNAMIC, "rope",
          "rope:pairing=half,scaling=dynamic,factor=2,original_length=64,length=256" },
        { LAB_INTERPOLATE, "rope+alibi", "rope:pairing=half+alibi:slopes=given" },
        { LAB_WINDOW, "nope", "nope" },
        { LAB_LOGN, "fox", "fox" },
        { LAB_REROPE, "rope", "rerope:pairing=half,window=32" },
        { LAB_REROPE, "alibi+rope:base=100+sink",
          "alibi+rerope:base=100,pairing=half,window=32+sink" },
        { LAB_SELFEXTEND, "rope", "selfextend:pairing=half,group=8,window=32" },
        { LAB_DCA, "rope", "dca:pairing=half,chunk=48,local=8" },
        { LAB_DCA, "rope:freq=given", NULL },
        { LAB_DCA, "rope+shaw", NULL },
        { LAB_REROPE, "rope:angles=f32", NULL },
        { LAB_REROPE, "rope2d", NULL },
        { LAB_PI, "alibi", NULL },
        { LAB_PI, "rope2d", NULL },
        { LAB_YARN, "rope:scaling=ntk,factor=2", NULL },
        { LAB_INTERPOLATE, "rope", NULL },
        { LAB_INTERPOLATE, "alibi:slopes=given", NULL },
        { LAB_LOGN, "sba", NULL },
        { LAB_LOGN, "fox-pro", NULL },
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct lab_arm a;
        char text[LAB_TEXT] = "";
        loci_error e = { .text = "" };
        lab_arm_parse(&a, list[i].arm, 64, 512, 16, NULL);
        const bool fits = lab_change_fits(list[i].change, &a);
        CHECK_THAT(fits == !!list[i].want, "%s of %s", lab_change_name(list[i].change),
                   list[i].arm);
        if (!list[i].want || !fits) continue;
        CHECK_THAT(!lab_change_text(list[i].change, &a, 64, 4, text, &e), "%s", e.text);
        CHECK_THAT(!strcmp(text, list[i].want), "%s of %s is %s", lab_change_name(list[i].change),
                   list[i].arm, text);
    }
    struct lab_arm a;
    char text[LAB_TEXT];
    loci_error e;
    lab_arm_parse(&a, "alibi", 64, 512, 16, NULL);
    CHECK_SAYS(lab_change_text(LAB_PI, &a, 64, 4, text, &e), LOCI_BAD_ARG, &e,
               "arm 'alibi' has nothing that 'pi' could change");
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static struct lab_runs made(const struct lab_wish *w)
{
    struct lab_runs r;
    loci_error e = { .text = "" };
    CHECK_THAT(!lab_runs_make(&r, w, &e), "%s", e.text);
    return r;
}
static int by_text(const void *a, const void *b) { return strcmp(a, b); }
static void check_ids(const struct lab_runs *r, const char *name)
{
    char(*id)[33] = calloc((size_t)r->count + 1, sizeof *id);
    for (int i = 0; i < r->count; i++) lab_config_id(&r->list[i], id[i]);
    qsort(id, (size_t)r->count, sizeof *id, by_text);
    for (int i = 1; i < r->count; i++) CHECK_THAT(strcmp(id[i - 1], id[i]), "%s: %s", name, id[i]);
    free(id);
}

static void check_presets(void)
{
    const struct lab_known *known;
    const int arms = lab_known_arms(&known);
    const struct {
        const char *name;
        int runs, drawn;
    } want[] = {
        { "smoke", 4 * 3, 0 },
        { "coffee", 2 * arms, 0 },
        { "hour", 6 * (3 * arms + 4 * 8), 3 * 4 * 2 },
        { "overnight", 17 * 3 * arms, 4 * 3 * 3 },
        { "cluster", 17 * 5 * arms, 4 * 3 * 5 },
    };
    const struct lab_preset *list;
    CHECK_THAT(lab_presets(&list) == 5, "presets");
    for (int i = 0; i < 5; i++) {
        const char *size = i < 3 ? list[i].size : "S"; /* opens a model of each */
        struct lab_runs r =
            made(&(struct lab_wish){ .preset = list[i].name, .size = size, .corpus = &corpus });
        int drawn = 0;
        for (int k = 0; k < r.count; k++) {
            drawn += strstr(r.list[k].arm, "@random") != NULL;
            CHECK_THAT(!strcmp(r.list[k].size, size), "%s", list[i].name);
            CHECK_THAT(!r.list[k].finetune || !strcmp(r.list[k].task, "text"), "%s", list[i].name);
        }
        CHECK_THAT(!strcmp(list[i].name, want[i].name) && r.count == want[i].runs + want[i].drawn
                       && drawn == want[i].drawn,
                   "%s has %d runs, %d of them with drawn positions", list[i].name, r.count, drawn);
        check_ids(&r, list[i].name);
        lab_runs_free(&r);
        r = made(&(struct lab_wish){ .preset = list[i].name, .arms = "nope", .corpus = &corpus });
        CHECK_THAT(r.count && !strcmp(r.list[0].size, list[i].size), "%s", list[i].name);
        lab_runs_free(&r);
    }
    CHECK_THAT(lab_preset("smoke") && !lab_preset("smokes"), "by name");
}

static void check_lists(void)
{
    static const struct {
        const char *arms, *want[5];
    } lists[] = {
        { "nope", { "nope" } },
        { "nope,rope", { "nope", "rope" } },
        { "rope:base=1e6,pairing=half,alibi", { "rope:base=1e6,pairing=half", "alibi" } },
        { "alibi,rope:base=1e6,pairing=half", { "alibi", "rope:base=1e6,pairing=half" } },
        { "t5:buckets=8,max_distance=9+fox,kerple+cape,rope@random",
          { "t5:buckets=8,max_distance=9+fox", "kerple+cape", "rope@random" } },
        { "rope:base=3,pairing=half,rope:pairing=half,base=4,nope",
          { "rope:base=3,pairing=half", "rope:pairing=half,base=4", "nope" } },
        { "nope,", { "nope" } },
        { "nope,rope,nope", { "nope", "rope" } },
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        struct lab_runs r = made(&(struct lab_wish){ .arms = lists[i].arms, .tasks = "copy" });
        int n = 0;
        while (lists[i].want[n]) n++;
        CHECK_THAT(r.count == n, "%s is %d arms", lists[i].arms, r.count);
        for (int k = 0; k < n && k < r.count; k++)
            CHECK_THAT(!strcmp(r.list[k].arm, lists[i].want[k]), "%s has %s", lists[i].arms,
                       r.list[k].arm);
        lab_runs_free(&r);
    }
    struct lab_runs r = made(&(struct lab_wish){ .arms = "chief", .tasks = "copy,add" });
    CHECK_THAT(r.count == 16, "%d runs of the chief", r.count);
    lab_runs_free(&r);
}

/* The user's settings override the preset's. */
static void check_wishes(void)
{
    static const char *const keys[] = { "heads", "keys" }, *const values[] = { "8", "4" };
    struct lab_runs r = made(&(struct lab_wish){ .arms = "nope,rope",
                                                 .tasks = "recall",
                                                 .size = "M",
                                                 .grid = "1e-3,3e-3,0.01",
                                                 .seeds = 2,
                                                 .steps = 9,
                                                 .length = 80,
                                                 .settings = 2,
                                                 .key = keys,
                                                 .value = values });
    CHECK_THAT(r.count == 8 && r.groups == 2, "%d runs of a grid", r.count);
    check_ids(&r, "a grid");
    for (int i = 0; i < r.count; i++) { /* seed 0 tries all rates; seed 1 waits for one of them */
        static const double rates[] = { 1e-3, 3e-3, 0.01, 2e-3 };
        const struct lab_config *c = &r.list[i];
        CHECK_THAT(c->rate == rates[i % 4] && c->seed == i % 4 / 3 && c->steps == 9 && c->dim == 128
                       && c->length == 80 && c->heads == 8 && c->option[0] == 4
                       && c->waits == (i % 4 == 3),
                   "run %d: rate %g, seed %d", i, c->rate, c->seed);
    }
    for (int i = 0; i < r.groups; i++)
        CHECK_THAT(r.group[i].first == 4 * i && r.group[i].tried == 3 && r.group[i].count == 4,
                   "group %d", i);
    lab_runs_free(&r);
    r = made(&(struct lab_wish){ .preset = "smoke", .tasks = "copy,recall", .scale = 0.25 });
    CHECK_THAT(r.count == 8 && r.list[0].steps == 10 && !strcmp(r.list[7].arm, "fox")
                   && r.list[7].steps == 750 && !strcmp(r.list[7].size, "XS"),
               "tasks of one's own: %d runs, %d steps", r.count, r.list[7].steps);
    lab_runs_free(&r);

    char longer[400] = "nope,rope:base=1";
    memset(longer + strlen(longer), '0', 200);
    const struct {
        struct lab_wish w;
        const char *says;
    } bad[] = {
        { { .preset = "smok" }, "preset 'smok' is none of smoke" },
        { { .arms = "nope" }, "what runs is a preset, or arms and tasks" },
        { { .tasks = "copy" }, "what runs is a preset, or arms and tasks" },
        { { .arms = "nope", .tasks = "copi" }, "task 'copi' is unknown; did you mean copy" },
        { { .arms = "nope,,rope", .tasks = "copy" }, "names no encoding" },
        { { .arms = "nope,alibo", .tasks = "copy" }, "alibo" },
        { { .arms = longer, .tasks = "copy" }, "is longer than 127 characters" },
        { { .arms = "nope", .tasks = "copy", .size = "s" }, "size 's' is none of" },
        { { .arms = "nope", .tasks = "copy", .grid = "1e-3,fast" },
          "rate 'fast' must be a number" },
        { { .arms = "nope", .tasks = "copy", .settings = 2, .key = keys, .value = values },
          "unknown key 'keys' for task copy" },
        { { .arms = "nope", .tasks = "text" }, "task text needs a corpus" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        loci_error e;
        const loci_status status = lab_runs_make(&r, &bad[i].w, &e);
        CHECK_SAYS(status, status ? status : LOCI_BAD_ARG, &e, bad[i].says);
        CHECK_THAT(!r.count && !r.list, "%s", bad[i].says);
    }
}

static int64_t params_of(const struct lab_config *c)
{
    const struct lab_shape s = lab_config_shape(c);
    struct lab_model *m;
    if (lab_model_open(&m, &s, NULL, NULL)) return -1;
    const int64_t n = lab_model_params(m, false);
    lab_model_close(m);
    return n;
}

/* The MLP grows in steps of LAB_PAD, so half a step is the closest match. */
static void check_match(void)
{
    const struct lab_known *known;
    const struct lab_config nope = config_of("nope", "copy", "");
    const int64_t want = params_of(&nope);
    const double half = (double)nope.dim * nope.layers * LAB_PAD;
    for (int i = 0, n = lab_known_arms(&known); i < n; i++) {
        struct lab_runs r =
            made(&(struct lab_wish){ .arms = known[i].text, .tasks = "copy", .match = true });
        if (r.count != 1) continue;
        const struct lab_config *c = &r.list[0], plain = config_of(known[i].text, "copy", "");
        CHECK_THAT(fabs((double)(params_of(c) - want)) <= half, "%s has %lld numbers, nope %lld",
                   known[i].text, (long long)params_of(c), (long long)want);
        CHECK_THAT(params_of(&plain) != want || c->ffn == 4 * c->dim, "%s: ffn %d", known[i].text,
                   c->ffn);
        lab_runs_free(&r);
    }
    struct lab_runs r;
    loci_error e;
    const struct lab_wish w = { .arms = "learned@random", .tasks = "copy", .match = true };
    CHECK_SAYS(lab_runs_make(&r, &w, &e), LOCI_BAD_ARG, &e, "learns so much that no MLP is left");
}

int main(void)
{
    loci_error e = { .text = "" };
    CHECK_THAT(!lab_corpus_open(&corpus, NULL, lab_corpus_bytes(256), &e), "%s", e.text);
    for (size_t i = 0; i < sizeof traps / sizeof *traps; i++) check_trap(&traps[i]);
    check_starts();
    check_fields();
    check_identity();
    check_settings();
    check_file();
    check_rates();
    check_arms();
    check_none_forgotten();
    check_changes();
    check_presets();
    check_lists();
    check_wishes();
    check_match();
    lab_corpus_close(&corpus);
    return harness_end();
}
