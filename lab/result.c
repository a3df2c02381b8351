/* SPDX-License-Identifier: MIT */
/* result.c -- result.json and log.csv of a run.  Files are not trusted: every field is validated
 * before use.  A damaged or foreign file is rejected with one sentence. */

#include "lab/result.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/file.h"
#include "util/error.h"
#include "util/printable.h"
#include "draw/text.h"
#include "models/json.h"
#include "models/output.h"

/* The format's name.  The number changes if a field changes its meaning. */
static const char format_name[] = "loci lab result 1";
static const char log_head[] = "step,loss,rate,norm,trained,far";
static const char *const metrics[] = {
    [LAB_LOSS] = "loss", [LAB_ACCURACY] = "accuracy", [LAB_EXACT] = "exact"
};

enum {
    MOST_BYTES = 1 << 26,
    MOST_ROWS = 64,
    MOST_SPANS = 4096,
    MOST_WARNINGS = 256,
    MOST_SEQUENCES = 1 << 16,
    MOST = 1 << 30
};

static double shown(const struct lab_measured *c)
{
    return c->metric == LAB_LOSS ? c->loss : c->metric == LAB_EXACT ? c->exact : c->accuracy;
}

/* ---- Writing --------------------------------------------------------------------------------- */

static void add_word(struct text *t, const char *key, const char *value)
{
    text_add(t, "  \"%s\": ", key);
    text_json(t, value);
    text_add(t, ",\n");
}

static void add_number(struct text *t, const char *key, double value)
{
    text_add(t, "\"%s\": ", key);
    text_json_number(t, value);
}

static void add_column(struct text *t, const struct lab_measured *c)
{
    text_add(t, "{\"name\": ");
    text_json(t, c->name);
    text_add(t, ", ");
    add_number(t, "times", c->times);
    text_add(t, ", \"length\": %d, \"count\": %d, \"trained\": %s, \"metric\": \"%s\", ", c->length,
             c->count, c->trained ? "true" : "false", metrics[c->metric]);
    add_number(t, "mean", shown(c));
    text_add(t, ", ");
    add_number(t, "loss", c->loss);
    text_add(t, ", ");
    add_number(t, "accuracy", c->accuracy);
    text_add(t, ", ");
    add_number(t, "exact", c->exact);
    if (c->each) text_add(t, ", \"each\": [");
    for (int i = 0; c->each && i < c->count; i++) {
        if (i) text_add(t, ",");
        text_json_number(t, c->each[i]);
    }
    text_add(t, c->each ? "]}" : "}");
}

static void add_row(struct text *t, const struct lab_row *r)
{
    text_add(t, "\"columns\": [");
    for (int i = 0; i < r->columns; i++) {
        text_add(t, i ? ",\n    " : "\n    ");
        add_column(t, &r->column[i]);
    }
    text_add(t, "],\n  \"positions\": [");
    for (int i = 0; i < r->spans; i++) {
        const struct lab_span *s = &r->span[i];
        text_add(t, "%s{\"from\": %d, \"to\": %d, ", i ? ",\n    " : "\n    ", s->from, s->to);
        add_number(t, "loss", s->loss);
        text_add(t, ", \"count\": %td}", s->count);
    }
    text_add(t, "]");
}

static void add_result(struct text *t, const struct lab_result *r)
{
    text_add(t, "{\n");
    add_word(t, "format", format_name);
    add_word(t, "id", r->id);
    add_word(t, "arm", r->arm);
    add_word(t, "task", r->task);
    add_word(t, "size", r->size);
    add_word(t, "settings", r->settings);
    text_add(t, "  \"seed\": %d,\n  \"length\": %d,\n  \"steps\": %d,\n", r->seed, r->length,
             r->steps);
    text_add(t, "  \"params\": %lld,\n  \"params_encoding\": %lld,\n", (long long)r->params,
             (long long)r->params_encoding);
    const struct {
        const char *key;
        double value;
    } costs[] = {
        { "seconds_per_step", r->seconds_per_step },
        { "peak_bytes", r->peak_bytes },
        { "cache_bytes_per_token", r->cache_bytes_per_token },
        { "teraflops", r->teraflops },
    };
    for (int i = 0; i < COUNT(costs); i++) {
        text_add(t, "  ");
        add_number(t, costs[i].key, costs[i].value);
        text_add(t, ",\n");
    }
    text_add(t, "  ");
    add_number(t, "validation", r->validation);
    text_add(t, ",\n  \"learned\": %s,\n", r->learned ? "true" : "false");
    add_word(t, "weights_sha256", r->weights_sha256);
    add_word(t, "version", r->version);
    add_word(t, "compiler", r->compiler);
    add_word(t, "cpu", r->cpu);
    add_word(t, "isa", r->isa);
    text_add(t, "  ");
    add_row(t, &r->row[0]);
    text_add(t, ",\n  \"variants\": [");
    for (int i = 1; i < r->rows; i++) {
        text_add(t, i > 1 ? ",\n  {\"name\": " : "\n  {\"name\": ");
        text_json(t, r->row[i].name);
        text_add(t, ", ");
        add_row(t, &r->row[i]);
        text_add(t, "}");
    }
    text_add(t, "],\n  \"warnings\": [");
    for (int i = 0; i < r->warnings; i++) {
        text_add(t, i ? ",\n    " : "\n    ");
        text_json(t, r->warning[i]);
    }
    text_add(t, "]\n}\n");
}

/* Values that were not measured are empty. */
static void add_log(struct text *t, const struct lab_result *r)
{
    text_add(t, "%s\n", log_head);
    for (int i = 0; i < r->logs; i++) {
        const struct lab_logged *l = &r->log[i];
        const double x[] = { l->loss, l->rate, l->norm, l->trained, l->far };
        text_add(t, "%d", l->step);
        for (int k = 0; k < COUNT(x); k++) {
            text_add(t, ",");
            if (isfinite(x[k])) text_json_number(t, x[k]);
        }
        text_add(t, "\n");
    }
}

static void path_of(struct text *t, const char *folder, const char *name)
{
    text_add(t, "%s/%s", folder, name);
}

static loci_status write_file(const char *folder, const char *name, const struct text *t,
                              loci_error *e)
{
    struct text path = { 0 };
    struct new_file f;
    path_of(&path, folder, name);
    loci_status s = loci_output_begin(&f, path.s, e);
    if (!s) s = loci_output_end(&f, loci_output_put(&f, t->s, t->n, e), e);
    text_free(&path);
    return s;
}

/* Writes the log first: a run with result.json is done.  Without log lines, an existing log
 * stays. */
loci_status lab_result_write(const struct lab_result *r, const char *folder, loci_error *e)
{
    struct text log = { 0 }, result = { 0 };
    CHECK(e, r->rows > 0, LOCI_BAD_ARG, "a result without a row");
    add_log(&log, r);
    add_result(&result, r);
    loci_status s = r->logs ? write_file(folder, "log.csv", &log, e) : LOCI_OK;
    if (!s) s = write_file(folder, "result.json", &result, e);
    text_free(&log);
    text_free(&result);
    return s;
}

/* ---- Fields ---------------------------------------------------------------------------------- */

/* Their errors name the invalid field and its valid values.  Every field is required. */
static loci_status get_word(const json_t *o, const char *key, char *to, size_t capacity, bool empty,
                            loci_error *e)
{
    const json_t *v = json_object_get(o, key);
    CHECK(e, json_is_string(v), LOCI_BAD_ARG, "%s must be a text", key);
    const size_t n = json_string_length(v);
    CHECK(e, n < capacity && (empty || n > 0), LOCI_BAD_ARG, "%s must be a text of %d to %d bytes",
          key, !empty, (int)capacity - 1);
    memcpy(to, json_string_value(v), n + 1);
    make_plain(to); /* it will be printed */
    return LOCI_OK;
}

static loci_status get_hex(const json_t *o, const char *key, char *to, int digits, loci_error *e)
{
    TRY(get_word(o, key, to, (size_t)digits + 1, false, e));
    CHECK(e, (int)strspn(to, "0123456789abcdef") == digits, LOCI_BAD_ARG,
          "%s must be %d hexadecimal digits", key, digits);
    return LOCI_OK;
}

static loci_status get_whole(const json_t *o, const char *key, int64_t low, int64_t high,
                             int64_t *to, loci_error *e)
{
    const json_t *v = json_object_get(o, key);
    CHECK(e, json_is_integer(v) && json_integer_value(v) >= low && json_integer_value(v) <= high,
          LOCI_BAD_ARG, "%s must be a whole number from %lld to %lld", key, (long long)low,
          (long long)high);
    *to = json_integer_value(v);
    return LOCI_OK;
}

static loci_status get_int(const json_t *o, const char *key, int low, int *to, loci_error *e)
{
    int64_t x = 0;
    TRY(get_whole(o, key, low, MOST, &x, e));
    *to = (int)x;
    return LOCI_OK;
}

static loci_status get_flag(const json_t *o, const char *key, bool *to, loci_error *e)
{
    const json_t *v = json_object_get(o, key);
    CHECK(e, json_is_boolean(v), LOCI_BAD_ARG, "%s must be true or false", key);
    *to = json_is_true(v);
    return LOCI_OK;
}

static bool number_in(const json_t *v, double most, double *to)
{
    *to = json_is_null(v) ? NAN : json_number_value(v);
    return json_is_null(v) || (json_is_number(v) && *to >= 0 && *to <= most);
}

/* From 0 to `most`, or null for NaN. */
static loci_status get_number(const json_t *o, const char *key, double most, double *to,
                              loci_error *e)
{
    const json_t *v = json_object_get(o, key);
    CHECK(e, v && number_in(v, most, to), LOCI_BAD_ARG, "%s must be a number from 0 to %g, or null",
          key, most);
    return LOCI_OK;
}

static loci_status get_list(const json_t *o, const char *key, int least, int most, int *count,
                            const json_t **list, loci_error *e)
{
    *list = json_object_get(o, key);
    CHECK(e,
          json_is_array(*list) && json_array_size(*list) >= (size_t)least
              && json_array_size(*list) <= (size_t)most,
          LOCI_BAD_ARG, "%s must be a list of %d to %d", key, least, most);
    *count = (int)json_array_size(*list);
    return LOCI_OK;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static loci_status read_each(const json_t *o, struct lab_measured *c, double most, loci_error *e)
{
    const json_t *list;
    int n = 0;
    if (!json_object_get(o, "each")) return LOCI_OK;
    TRY(get_list(o, "each", c->count, c->count, &n, &list, e));
    c->each = draw_alloc((size_t)n, sizeof *c->each);
    for (int i = 0; i < n; i++)
        CHECK(e, number_in(json_array_get(list, (size_t)i), most, &c->each[i]), LOCI_BAD_ARG,
              "each[%d] must be a number from 0 to %g, or null", i, most);
    return LOCI_OK;
}

static loci_status read_column(const json_t *o, struct lab_measured *c, loci_error *e)
{
    char metric[LAB_NAME];
    double mean = 0;
    CHECK(e, json_is_object(o), LOCI_BAD_ARG, "it must be an object");
    TRY(get_word(o, "name", c->name, sizeof c->name, false, e));
    TRY(get_number(o, "times", 1e6, &c->times, e));
    CHECK(e, c->times > 0, LOCI_BAD_ARG, "times must be above 0");
    TRY(get_int(o, "length", 1, &c->length, e));
    TRY(get_int(o, "count", 1, &c->count, e));
    CHECK(e, c->count <= MOST_SEQUENCES, LOCI_BAD_ARG, "count must be at most %d", MOST_SEQUENCES);
    TRY(get_flag(o, "trained", &c->trained, e));
    TRY(get_word(o, "metric", metric, sizeof metric, false, e));
    int m = 0;
    while (m < COUNT(metrics) && strcmp(metric, metrics[m])) m++;
    CHECK(e, m < COUNT(metrics), LOCI_BAD_ARG, "metric must be loss, accuracy or exact");
    c->metric = (enum lab_metric)m;
    const double most = m == LAB_LOSS ? 1e18 : 1;
    TRY(get_number(o, "mean", most, &mean, e));
    TRY(get_number(o, "loss", 1e18, &c->loss, e));
    TRY(get_number(o, "accuracy", 1, &c->accuracy, e));
    TRY(get_number(o, "exact", 1, &c->exact, e));
    CHECK(e, mean == shown(c) || (isnan(mean) && isnan(shown(c))), LOCI_BAD_ARG,
          "mean must be its %s", metric);
    return read_each(o, c, most, e);
}

static loci_status read_span(const json_t *o, struct lab_span *s, int after, loci_error *e)
{
    int64_t count = 0;
    CHECK(e, json_is_object(o), LOCI_BAD_ARG, "it must be an object");
    TRY(get_int(o, "from", 0, &s->from, e));
    TRY(get_int(o, "to", 0, &s->to, e));
    CHECK(e, s->from > after && s->to >= s->from, LOCI_BAD_ARG, "from and to must rise");
    TRY(get_number(o, "loss", 1e18, &s->loss, e));
    TRY(get_whole(o, "count", 0, (int64_t)1 << 40, &count, e));
    s->count = (ptrdiff_t)count;
    return LOCI_OK;
}

/* Adds the location to a sentence from further down.  Returns the status. */
static loci_status at_place(loci_status s, loci_error *e, const char *list, int i)
{
    char said[sizeof e->text];
    if (!s || !e) return s;
    snprintf(said, sizeof said, "%.*s", (int)sizeof said - 1, e->text);
    return loci_fail(e, s, "%s[%d]: %.200s", list, i, said);
}

static loci_status read_row(const json_t *o, struct lab_row *r, loci_error *e)
{
    const json_t *list;
    int n = 0;
    TRY(get_list(o, "columns", 1, LAB_COLUMNS, &n, &list, e));
    r->column = draw_alloc((size_t)n, sizeof *r->column);
    for (int i = 0; i < n; i++) {
        struct lab_measured *c = &r->column[r->columns++];
        TRY(at_place(read_column(json_array_get(list, (size_t)i), c, e), e, "columns", i));
        for (int k = 0; k < i; k++)
            CHECK(e, strcmp(c->name, r->column[k].name), LOCI_BAD_ARG,
                  "two columns have the name '%s'", c->name);
    }
    TRY(get_list(o, "positions", 0, MOST_SPANS, &n, &list, e));
    r->span = draw_alloc((size_t)n, sizeof *r->span);
    for (int i = 0; i < n; i++) {
        struct lab_span *s = &r->span[r->spans++];
        const int after = i ? s[-1].to : -1;
        TRY(at_place(read_span(json_array_get(list, (size_t)i), s, after, e), e, "positions", i));
    }
    return LOCI_OK;
}

static loci_status read_variant(const json_t *o, struct lab_result *r, loci_error *e)
{
    struct lab_row *row = &r->row[r->rows++];
    CHECK(e, json_is_object(o), LOCI_BAD_ARG, "it must be an object");
    TRY(get_word(o, "name", row->name, sizeof row->name, false, e));
    for (int i = 1; i + 1 < r->rows; i++)
        CHECK(e, strcmp(row->name, r->row[i].name), LOCI_BAD_ARG, "two variants have the name '%s'",
              row->name);
    return read_row(o, row, e);
}

static loci_status read_rows(const json_t *o, struct lab_result *r, loci_error *e)
{
    const json_t *list;
    int n = 0;
    TRY(get_list(o, "variants", 0, MOST_ROWS, &n, &list, e));
    r->row = draw_alloc((size_t)n + 1, sizeof *r->row);
    r->rows = 1;
    TRY(read_row(o, &r->row[0], e));
    for (int i = 0; i < n; i++)
        TRY(at_place(read_variant(json_array_get(list, (size_t)i), r, e), e, "variants", i));
    return LOCI_OK;
}

static loci_status read_warnings(const json_t *o, struct lab_result *r, loci_error *e)
{
    const json_t *list;
    char sentence[1024];
    int n = 0;
    TRY(get_list(o, "warnings", 0, MOST_WARNINGS, &n, &list, e));
    r->warning = draw_alloc((size_t)n + 1, sizeof *r->warning); /* one more for the log's */
    for (int i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        CHECK(e, json_is_string(v) && json_string_length(v) < sizeof sentence, LOCI_BAD_ARG,
              "warnings[%d] must be a text of at most %d bytes", i, (int)sizeof sentence - 1);
        r->warning[r->warnings] =
            strcpy(draw_alloc(json_string_length(v) + 1, 1), json_string_value(v));
        make_plain(r->warning[r->warnings++]);
    }
    return LOCI_OK;
}

static loci_status read_result(const json_t *o, struct lab_result *r, loci_error *e)
{
    char format[64];
    CHECK(e, json_is_object(o) && json_object_get(o, "format"), LOCI_BAD_ARG,
          "this is no result of a run");
    TRY(get_word(o, "format", format, sizeof format, true, e));
    CHECK(e, !strcmp(format, format_name), LOCI_BAD_ARG, "its format is '%s', but must be '%s'",
          format, format_name);
    TRY(get_hex(o, "id", r->id, 32, e));
    TRY(get_word(o, "arm", r->arm, sizeof r->arm, false, e));
    TRY(get_word(o, "task", r->task, sizeof r->task, false, e));
    TRY(get_word(o, "size", r->size, sizeof r->size, false, e));
    TRY(get_word(o, "settings", r->settings, sizeof r->settings, true, e));
    TRY(get_int(o, "seed", 0, &r->seed, e));
    TRY(get_int(o, "length", 1, &r->length, e));
    TRY(get_int(o, "steps", 0, &r->steps, e));
    TRY(get_whole(o, "params", 0, (int64_t)1 << 50, &r->params, e));
    TRY(get_whole(o, "params_encoding", 0, r->params, &r->params_encoding, e));
    TRY(get_number(o, "seconds_per_step", 1e9, &r->seconds_per_step, e));
    TRY(get_number(o, "peak_bytes", 1e18, &r->peak_bytes, e));
    TRY(get_number(o, "cache_bytes_per_token", 1e18, &r->cache_bytes_per_token, e));
    TRY(get_number(o, "teraflops", 1e18, &r->teraflops, e));
    r->validation = NAN; /* files of earlier versions, and of other trainers, have none */
    if (json_object_get(o, "validation")) TRY(get_number(o, "validation", 1e9, &r->validation, e));
    TRY(get_flag(o, "learned", &r->learned, e));
    TRY(get_hex(o, "weights_sha256", r->weights_sha256, 64, e));
    TRY(get_word(o, "version", r->version, sizeof r->version, true, e));
    TRY(get_word(o, "compiler", r->compiler, sizeof r->compiler, true, e));
    TRY(get_word(o, "cpu", r->cpu, sizeof r->cpu, true, e));
    TRY(get_word(o, "isa", r->isa, sizeof r->isa, true, e));
    TRY(read_rows(o, r, e));
    return read_warnings(o, r, e);
}

/* Reads a whole file and appends a 0 that *n does not count.  The caller frees it. */
static loci_status read_bytes(const char *folder, const char *name, char **bytes, size_t *n,
                              loci_error *e)
{
    struct text path = { 0 };
    struct source from;
    path_of(&path, folder, name);
    loci_status s = loci_io_open(&from, path.s, e);
    text_free(&path);
    if (s) return s;
    if (from.size > MOST_BYTES)
        s = loci_fail(e, LOCI_BAD_ARG, "the file has more than %d MiB", MOST_BYTES >> 20);
    else {
        *n = (size_t)from.size;
        *bytes = draw_alloc(*n + 1, 1);
        s = loci_io_read(&from, *bytes, from.size, 0, e);
        if (s) free(*bytes);
    }
    loci_io_close(&from);
    return s;
}

/* Settings may have other formats, which their reader mentions.  Here only JSON is valid. */
static loci_status parse(const char *bytes, size_t n, json_t **root, loci_error *e)
{
    loci_error why = { 0 };
    const loci_status s = n ? loci_json_parse(bytes, n, root, &why) : LOCI_BAD_ARG;
    if (!s) return s;
    if (!n) return loci_fail(e, s, "the file is empty");
    const char *json = strstr(why.text, "sound JSON");
    return loci_fail(e, s, "%s%.200s", json ? "no " : "", json ? json : why.text);
}

loci_status lab_json_read(json_t **root, const char *folder, const char *name, loci_error *e)
{
    char *bytes = NULL;
    size_t n = 0;
    *root = NULL;
    TRY(read_bytes(folder, name, &bytes, &n, e));
    const loci_status s = parse(bytes, n, root, e);
    free(bytes);
    return s;
}

/* ---- log.csv --------------------------------------------------------------------------------- */

/* Reads a number before a comma or the end of the line.  An empty one is NaN. */
static bool read_number(const char **s, char after, double *x)
{
    char *end = (char *)*s;
    *x = NAN;
    if (**s != after) { /* strtod() itself would accept blanks and words */
        if (!**s || !strchr("-.0123456789", **s)) return false;
        *x = strtod(*s, &end);
        if (!isfinite(*x)) return false;
    }
    if (*end != after) return false;
    *s = end + 1;
    return true;
}

static bool read_line(const char *s, struct lab_logged *l)
{
    double step, *const x[] = { &step, &l->loss, &l->rate, &l->norm, &l->trained, &l->far };
    for (int i = 0; i < COUNT(x); i++)
        if (!read_number(&s, i + 1 < COUNT(x) ? ',' : '\n', x[i])) return false;
    if (!(step >= 0 && step <= MOST) || step != floor(step)) return false;
    l->step = (int)step;
    return true;
}

static loci_status read_log(struct lab_result *r, const char *folder, loci_error *e)
{
    char *bytes = NULL;
    size_t n = 0;
    TRY(read_bytes(folder, "log.csv", &bytes, &n, e));
    const size_t head = strlen(log_head);
    loci_status s = LOCI_OK;
    int lines = 0, at = 1;
    for (size_t i = 0; i < n; i++) lines += bytes[i] == '\n';
    r->log = draw_alloc((size_t)lines, sizeof *r->log);
    const bool begun = n > head && !strncmp(bytes, log_head, head) && bytes[head] == '\n';
    if (!begun) s = loci_fail(e, LOCI_BAD_ARG, "its first line must be %s", log_head);
    for (const char *p = begun ? bytes + head + 1 : bytes + n; p < bytes + n && !s; at++) {
        const char *end = memchr(p, '\n', (size_t)(bytes + n - p));
        struct lab_logged *l = &r->log[r->logs];
        if (!end || !read_line(p, l) || (r->logs && l->step <= l[-1].step))
            s = loci_fail(e, LOCI_BAD_ARG, "line %d is damaged", at + 1);
        else {
            r->logs++;
            p = end + 1;
        }
    }
    free(bytes);
    if (s) r->logs = 0;
    return s;
}

/* ---- A run, and all runs --------------------------------------------------------------------- */

static const char *base_name(const char *path)
{
    const char *name = path + loci_path_folder(path);
    return *name ? name : path;
}

static bool is_there(const char *folder, const char *name)
{
    struct text path = { 0 };
    struct file_info info;
    path_of(&path, folder, name);
    const bool there = loci_link_info(path.s, &info);
    text_free(&path);
    return there;
}

/* A result without an intact log still counts, but with a warning. */
loci_status lab_result_read(struct lab_result *r, const char *folder, loci_error *e)
{
    json_t *root = NULL;
    loci_error why = { 0 };
    memset(r, 0, sizeof *r);
    TRY(lab_json_read(&root, folder, "result.json", e));
    loci_status s = read_result(root, r, e);
    json_decref(root);
    if (!s && strcmp(r->id, base_name(folder)))
        s = loci_fail(e, LOCI_BAD_ARG, "its id is %s, not its folder's name", r->id);
    if (s) {
        lab_result_free(r);
        return s;
    }
    if (is_there(folder, "log.csv") && read_log(r, folder, &why)) {
        struct text t = { 0 };
        text_add(&t, "log.csv is left out: %s", why.text);
        r->warning[r->warnings++] = t.s;
    }
    return LOCI_OK;
}

static void free_row(struct lab_row *r)
{
    for (int i = 0; i < r->columns; i++) free(r->column[i].each);
    free(r->column);
    free(r->span);
}

void lab_result_free(struct lab_result *r)
{
    for (int i = 0; i < r->rows; i++) free_row(&r->row[i]);
    for (int i = 0; i < r->warnings; i++) free(r->warning[i]);
    free(r->row);
    free(r->warning);
    free(r->log);
    memset(r, 0, sizeof *r);
}

bool lab_result_foreign(const struct lab_result *r) { return !strcmp(r->isa, "torch"); }

static int by_run(const void *a, const void *b)
{
    const struct lab_result *x = a, *y = b;
    int order = strcmp(x->task, y->task);
    if (!order) order = strcmp(x->arm, y->arm);
    if (!order) order = (x->seed > y->seed) - (x->seed < y->seed);
    return order ? order : strcmp(x->id, y->id);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Names in a folder in order, without hidden files and files being written. */
static loci_status read_names(const char *folder, char ***names, int *count, loci_error *e)
{
    struct folder *d = loci_folder_open(folder);
    CHECK(e, d, LOCI_BAD_ARG, "%.150s: cannot open: %s", folder, strerror(errno));
    int capacity = 0;
    for (const char *name; (name = loci_folder_next(d));) {
        if (*name == '.' || strstr(name, ".loci-tmp")) continue;
        if (*count == capacity) {
            char **more = draw_alloc((size_t)(capacity = 2 * capacity + 16), sizeof *more);
            if (*names) memcpy(more, *names, (size_t)*count * sizeof *more);
            free(*names);
            *names = more;
        }
        (*names)[(*count)++] = strcpy(draw_alloc(strlen(name) + 1, 1), name);
    }
    loci_folder_close(d);
    if (*count) qsort(*names, (size_t)*count, sizeof **names, by_name);
    return LOCI_OK;
}

/* A folder without a result.json is an unfinished run. */
static void add_run(struct lab_results *all, const char *runs, const char *name)
{
    struct text folder = { 0 };
    struct file_info info;
    loci_error e = { 0 };
    path_of(&folder, runs, name);
    if (!loci_path_info(folder.s, &info) || info.kind != FILE_FOLDER)
        loci_fail(&e, LOCI_BAD_ARG, "this is no folder of a run");
    else if (is_there(folder.s, "result.json")) {
        if (!lab_result_read(&all->list[all->count], folder.s, &e)) all->count++;
    }
    text_free(&folder);
    if (!e.text[0]) return;
    struct text t = { 0 };
    text_add(&t, "runs/%s%s is left out: %s", name,
             strstr(e.text, "folder of a run") ? "" : "/result.json", e.text);
    make_plain(t.s);
    all->skipped[all->skips++] = t.s;
}

loci_status lab_results_read(struct lab_results *all, const char *dir, loci_error *e)
{
    struct text runs = { 0 };
    char **names = NULL;
    int count = 0;
    memset(all, 0, sizeof *all);
    path_of(&runs, dir, "runs");
    const loci_status s = read_names(runs.s, &names, &count, e);
    if (!s) {
        all->list = draw_alloc((size_t)count, sizeof *all->list);
        all->skipped = draw_alloc((size_t)count, sizeof *all->skipped);
        for (int i = 0; i < count; i++) {
            add_run(all, runs.s, names[i]);
            free(names[i]);
        }
        free(names);
        if (all->count) qsort(all->list, (size_t)all->count, sizeof *all->list, by_run);
    }
    text_free(&runs);
    return s;
}

void lab_results_free(struct lab_results *all)
{
    for (int i = 0; i < all->count; i++) lab_result_free(&all->list[i]);
    for (int i = 0; i < all->skips; i++) free(all->skipped[i]);
    free(all->list);
    free(all->skipped);
    memset(all, 0, sizeof *all);
}

loci_status lab_command_read(char **command, const char *dir, loci_error *e)
{
    json_t *root = NULL;
    TRY(lab_json_read(&root, dir, "lab.json", e));
    struct text t = { 0 };
    const json_t *v = json_object_get(root, "command");
    if (json_is_string(v)) text_add(&t, "%s", json_string_value(v));
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *word = json_string_value(json_array_get(v, i));
        text_add(&t, "%s%s", i ? " " : "", word ? word : "?");
    }
    json_decref(root);
    if (t.s) make_plain(t.s);
    *command = t.s;
    return t.s ? LOCI_OK : loci_fail(e, LOCI_BAD_ARG, "command must be a text or a list of them");
}
