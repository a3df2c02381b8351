/* SPDX-License-Identifier: MIT */
/* corpus.c -- text for the lab: the bytes of a file, or generated stories. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "platform/file.h"
#include "lab/draw.h"
#include "lab/sha256.h"

enum { LEAST_BYTES = 4096, MOST_BYTES = 1 << 30 };

/* ---- Stories --------------------------------------------------------------------------------- */

/* People with names of their own walk about, take things and give them away, count coins, make
 * lists and repeat what was said before.  The state is stored, so that later sentences agree with
 * it: pronouns, who has what and where, sums and dates.  Words are soon learned by heart.  Names,
 * owners and numbers follow only from the story so far, and quotations return after NEAR to FAR
 * bytes.
 *
 * All random draws are whole numbers, so that every machine writes the same bytes. */
enum { NEAR = 30, FAR = 500, PEOPLE = 3, THINGS = 4, PLACES = 3, SENTENCES = 64, NAME = 16 };

struct noun {
    const char *one, *many;
};
static const struct noun nouns[] = {
    { "lamp", "lamps" },   { "key", "keys" },       { "box", "boxes" },
    { "knife", "knives" }, { "letter", "letters" }, { "rope", "ropes" },
    { "jar", "jars" },     { "loaf", "loaves" },    { "coat", "coats" },
    { "map", "maps" },     { "drum", "drums" },     { "barrel", "barrels" },
    { "book", "books" },   { "candle", "candles" }, { "axe", "axes" },
    { "apple", "apples" }, { "brush", "brushes" },  { "violin", "violins" },
    { "clock", "clocks" }, { "basket", "baskets" },
};
static const char *const looks[] = {
    "old",   "red",    "blue",    "small",  "heavy", "broken", "brass", "yellow",
    "empty", "quaint", "painted", "narrow", "iron",  "dusty",  "green", "frozen",
};
static const char *const places[] = {
    "mill",  "bridge", "market", "harbour", "inn",    "well",  "orchard", "tower",
    "ferry", "school", "quarry", "stable",  "garden", "forge", "chapel",  "square",
};
static const char *const heads[] = {
    "Ta",  "Bre", "Ka", "Mo", "Li", "Sa", "Do", "Ha",
    "Wil", "Ne",  "Pe", "Ru", "Jo", "Os", "Al", "Zi",
};
static const char *const middles[] = {
    "mo", "ri", "la", "ve", "do", "sha", "ne", "bu", "ti", "gra",
};
static const char *const tails[2][8] = {
    { "lin", "vik", "tor", "mund", "bert", "nas", "rick", "dan" },
    { "na", "lia", "rine", "dora", "mei", "seth", "belle", "ja" },
};
static const char *const months[] = {
    "January", "February", "March",     "April",   "May",      "June",
    "July",    "August",   "September", "October", "November", "December",
};
static const int month_days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
static const char *const numbers[] = {
    "no", "one", "two", "three", "four", "five", "six", "seven",
};
static const char *const skies[] = {
    "The wind", "The sky", "The road", "The river", "The night", "The rain", "The snow", "The air",
};
static const char *const moods[] = {
    "cold", "dark", "quiet", "grey", "bitter", "mild", "slow", "deep", "loud", "strange", "clear",
};
#define SIZE(list) ((int)(sizeof(list) / sizeof *(list)))

struct person {
    char name[NAME];
    bool woman;
    int place, coins;
};
/* holder: index of a person, or -1 */
struct thing {
    const struct noun *noun;
    const char *look;
    int holder, place;
};

struct story {
    uint64_t drawn; /* numbers drawn so far, over all stories */
    char *text;
    size_t used, size;
    struct person person[PEOPLE];
    struct thing thing[THINGS];
    const char *place[PLACES];
    int day, month, year;
    /* the person of the last sentence, whom "he" or "she" means; or -1 */
    int subject;
    int sentences; /* of this story; the last SENTENCES are stored */
    struct {
        size_t at, length;
    } sentence[SENTENCES], list;
};

static int pick(struct story *s, int n)
{
    const uint64_t stream = 0x6c6f636973746f72u;
    const uint64_t x = loci_scramble(stream + ++s->drawn * 0x9e3779b97f4a7c15u);
    return (int)((x >> 32) * (uint64_t)n >> 32);
}
#define ANY(s, list) ((list)[pick(s, SIZE(list))])

/* Drops what does not fit: the text has exactly the requested length. */
static void add(struct story *s, const char *bytes, size_t n)
{
    if (n > s->size - s->used) n = s->size - s->used;
    memmove(s->text + s->used, bytes, n);
    s->used += n;
}
#if defined __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
static void
say(struct story *s, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    add(s, text, (size_t)n);
}

static const char *article(const char *word) { return strchr("aeiou", word[0]) ? "an" : "a"; }

/* The name, or a pronoun if the last sentence was about the same person. */
static const char *subject(struct story *s, int who)
{
    const bool known = s->subject == who && pick(s, 4) > 0;
    s->subject = who;
    return known ? s->person[who].woman ? "She" : "He" : s->person[who].name;
}

static int someone_else(struct story *s, int who)
{
    return (who + 1 + pick(s, PEOPLE - 1)) % PEOPLE;
}

static void walks(struct story *s, int who)
{
    static const char *const ways[] = { "walked", "went", "ran", "came back", "rode", "hurried" };
    struct person *p = &s->person[who];
    p->place = (p->place + 1 + pick(s, PLACES - 1)) % PLACES;
    const char *name = subject(s, who), *way = ANY(s, ways);
    say(s, "%s %s to the %s.", name, way, s->place[p->place]);
}

/* Picks up a thing from its place, or from another person. */
static void handles(struct story *s, int who)
{
    static const char *const takes[] = { "took", "found", "picked up" };
    static const char *const gives[] = { "gave", "handed", "sold" };
    struct thing *t = &s->thing[pick(s, THINGS)];
    if (t->holder < 0) {
        s->person[who].place = t->place;
        t->holder = who;
        const char *name = subject(s, who), *how = ANY(s, takes);
        say(s, "%s %s the %s %s at the %s.", name, how, t->look, t->noun->one, s->place[t->place]);
    } else if (pick(s, 4) == 0) {
        const char *name = subject(s, t->holder);
        t->place = s->person[t->holder].place;
        t->holder = -1;
        say(s, "%s left the %s %s at the %s.", name, t->look, t->noun->one, s->place[t->place]);
    } else {
        const int to = someone_else(s, t->holder);
        const char *name = subject(s, t->holder), *how = ANY(s, gives);
        say(s, "%s %s the %s %s to %s.", name, how, t->look, t->noun->one, s->person[to].name);
        t->holder = to;
        s->person[to].place = s->person[s->subject].place;
    }
}

static void asks(struct story *s, int who)
{
    const struct thing *t = &s->thing[pick(s, THINGS)];
    const struct person *p = &s->person[who];
    if (pick(s, 2)) {
        say(s, "Where was %s now? %s was at the %s.", p->name, p->woman ? "She" : "He",
            s->place[p->place]);
        s->subject = who;
    } else if (t->holder >= 0) {
        say(s, "Who had the %s %s? %s had it.", t->look, t->noun->one, s->person[t->holder].name);
        s->subject = t->holder;
    } else {
        say(s, "Where was the %s %s? It was at the %s.", t->look, t->noun->one, s->place[t->place]);
        s->subject = -1;
    }
}

static void counts(struct story *s, int who)
{
    struct person *p = &s->person[who];
    const int n = 1 + pick(s, 12), before = p->coins;
    const bool pays = before > n && pick(s, 2);
    const char *name = subject(s, who), *plural = n == 1 ? "" : "s";
    p->coins += pays ? -n : n;
    if (pays)
        say(s, "%s had %d coins and paid %d coin%s for %s %s: %d - %d = %d.", name, before, n,
            plural, article(s->thing[0].noun->one), s->thing[0].noun->one, before, n, p->coins);
    else
        say(s, "%s had %d coin%s and found %d more: %d + %d = %d.", name, before,
            before == 1 ? "" : "s", n, before, n, p->coins);
}

static void sees(struct story *s, int who)
{
    const struct noun *noun = &ANY(s, nouns);
    const int n = 1 + pick(s, SIZE(numbers) - 1);
    const char *look = ANY(s, looks), *where = s->place[s->person[who].place];
    s->subject = -1;
    if (n == 1) say(s, "There was %s %s %s near the %s.", article(look), look, noun->one, where);
    else say(s, "There were %s %s %s near the %s.", numbers[n], look, noun->many, where);
}

static void weather(struct story *s)
{
    static const char *const was[] = { "was", "grew", "stayed", "turned" };
    const char *sky = ANY(s, skies), *how = ANY(s, was), *mood = ANY(s, moods);
    s->subject = -1;
    say(s, "%s %s %s.", sky, how, mood);
}

/* Advances some days.  A year always has 365 of them here. */
static void dates(struct story *s, int who)
{
    const int days = 1 + pick(s, SIZE(numbers) - 1);
    s->day += days;
    if (s->day > month_days[s->month]) s->day -= month_days[s->month++];
    if (s->month == 12) {
        s->month = 0;
        s->year++;
    }
    struct person *p = &s->person[who];
    p->place = pick(s, PLACES);
    s->subject = who;
    char first[NAME];
    snprintf(first, sizeof first, "%c%s", numbers[days][0] - 'a' + 'A', numbers[days] + 1);
    say(s, "%s day%s later, on %d %s %d, %s was at the %s.", first, days > 1 ? "s" : "", s->day,
        months[s->month], s->year, p->name, s->place[p->place]);
}

/* Repeats an earlier sentence, word for word, that began NEAR to FAR bytes before. */
static void quotes(struct story *s, int who)
{
    static const char *const says[] = { "said", "cried", "wrote", "whispered", "told us" };
    const char *name = subject(s, who), *how = ANY(s, says);
    say(s, "%s %s: \"", name, how);
    int fits[SENTENCES], n = 0;
    for (int i = 0; i < SENTENCES && i < s->sentences; i++) {
        const size_t back = s->used - s->sentence[i].at;
        if (back >= NEAR && back <= FAR) fits[n++] = i;
    }
    if (n) {
        const int i = fits[pick(s, n)];
        add(s, s->text + s->sentence[i].at, s->sentence[i].length);
    } else {
        add(s, "It is so.", 9);
    }
    add(s, "\"", 1);
}

/* Numbered lines.  A list not far behind is read again instead of a new one. */
static void lists(struct story *s, int who)
{
    const char *name = subject(s, who);
    if (s->list.length && s->used - s->list.at < FAR && pick(s, 3)) {
        say(s, "%s read the list again:\n", name);
        add(s, s->text + s->list.at, s->list.length);
        return;
    }
    const int items = 3 + pick(s, 3);
    say(s, "%s made a list of what was at the %s:\n", name, s->place[s->person[who].place]);
    s->list.at = s->used;
    for (int i = 1; i <= items; i++) {
        const struct noun *noun = &ANY(s, nouns);
        const char *look = ANY(s, looks);
        const int n = 1 + pick(s, SIZE(numbers) - 1);
        if (n == 1) say(s, "%d. %s %s %s\n", i, article(look), look, noun->one);
        else say(s, "%d. %s %s %s\n", i, numbers[n], look, noun->many);
    }
    s->list.length = s->used - s->list.at;
}

/* One sentence or a few.  Sentences of one line can be quoted. */
static void tells(struct story *s)
{
    const int kind = pick(s, 100);
    const int who = s->subject >= 0 && pick(s, 2) ? s->subject : pick(s, PEOPLE);
    const size_t from = s->used;
    if (kind < 17) walks(s, who);
    else if (kind < 36) handles(s, who);
    else if (kind < 46) asks(s, who);
    else if (kind < 54) counts(s, who);
    else if (kind < 62) sees(s, who);
    else if (kind < 68) weather(s);
    else if (kind < 73) dates(s, who);
    else if (kind < 97) quotes(s, who);
    else lists(s, who);
    if (kind >= 73) return; /* quotations are not quoted again */
    const int i = s->sentences++ % SENTENCES;
    s->sentence[i].at = from;
    s->sentence[i].length = s->used - from;
}

static void begin(struct story *s)
{
    s->subject = -1;
    s->sentences = 0;
    s->list.length = 0;
    s->day = 1 + pick(s, 28);
    s->month = pick(s, 12);
    s->year = 1700 + pick(s, 200);
    const int initial = pick(s, SIZE(heads));
    for (int i = 0; i < PEOPLE; i++) {
        struct person *p = &s->person[i];
        p->woman = pick(s, 2);
        const char *head = heads[(initial + 3 * i) % SIZE(heads)], *middle = ANY(s, middles);
        const char *tail = tails[p->woman][pick(s, 8)];
        snprintf(p->name, sizeof p->name, "%s%s%s", head, pick(s, 2) ? middle : "", tail);
        p->place = pick(s, PLACES);
        p->coins = 1 + pick(s, 20);
    }
    /* walks through lists by odd steps, which never repeat an entry */
    const int first = pick(s, SIZE(places)), noun = pick(s, SIZE(nouns));
    for (int i = 0; i < PLACES; i++) s->place[i] = places[(first + 5 * i) % SIZE(places)];
    for (int i = 0; i < THINGS; i++) {
        struct thing *t = &s->thing[i];
        t->noun = &nouns[(noun + 7 * i) % SIZE(nouns)];
        t->look = ANY(s, looks);
        t->holder = -1;
        t->place = pick(s, PLACES);
    }
}

/* A title, and paragraphs. */
static void write_story(struct story *s)
{
    begin(s);
    say(s, "%s and the %s %s\n\n", s->person[0].name, s->thing[0].look, s->thing[0].noun->one);
    say(s, "In %s %d, %s, %s and %s met at the %s.", months[s->month], s->year, s->person[0].name,
        s->person[1].name, s->person[2].name, s->place[0]);
    for (int i = 0; i < PEOPLE; i++) s->person[i].place = 0;
    const int paragraphs = 3 + pick(s, 5);
    for (int i = 0; i < paragraphs; i++) {
        for (int n = 4 + pick(s, 6); n > 0; n--) {
            if (s->text[s->used - 1] != '\n') add(s, " ", 1);
            tells(s);
        }
        if (s->text[s->used - 1] != '\n') add(s, "\n", 1);
    }
    add(s, "\n", 1);
}

static void generate(unsigned char *to, size_t bytes)
{
    struct story s = { .text = (char *)to, .size = bytes };
    while (s.used < s.size) write_story(&s);
}

/* ---- Files ----------------------------------------------------------------------------------- */

static loci_status refuse(loci_error *e, const char *path, const char *what)
{
    lab_refuse(e, "corpus %.300s: %s", path, what);
    return LOCI_BAD_ARG;
}

static loci_status no_memory(loci_error *e, size_t bytes)
{
    lab_refuse(e, "corpus: no memory for %zu bytes", bytes);
    if (e) e->status = LOCI_NO_MEMORY;
    return LOCI_NO_MEMORY;
}

static loci_status check_file(const char *path, const struct file_info *i, loci_error *e)
{
    if (i->kind == FILE_FOLDER) return refuse(e, path, "this is a folder, not a file");
    if (i->kind != FILE_PLAIN) return refuse(e, path, "this is not a regular file");
    if (i->size == 0) return refuse(e, path, "the file is empty");
    const bool small = i->size < LEAST_BYTES;
    if (!small && i->size <= MOST_BYTES) return LOCI_OK;
    lab_refuse(e, "corpus %.300s: %lld bytes are too %s, it must have %d .. %d", path,
               (long long)i->size, small ? "few" : "many", LEAST_BYTES, MOST_BYTES);
    return LOCI_BAD_ARG;
}

/* Reads all bytes of a file.  Calls stat() first, since opening a FIFO could block. */
static loci_status read_file(const char *path, unsigned char **bytes, size_t *count, loci_error *e)
{
    struct file_info i;
    if (!loci_path_info(path, &i))
        return refuse(e, path, errno == ENOENT ? "there is no such file" : strerror(errno));
    const loci_status status = check_file(path, &i, e);
    if (status) return status;
    *count = (size_t)i.size;
    *bytes = malloc(*count);
    if (!*bytes) return no_memory(e, *count);
    const int file = loci_file_open(path);
    if (file < 0) return refuse(e, path, strerror(errno));
    size_t at = 0;
    for (ptrdiff_t n = 1; n > 0 && at<*count; at += n> 0 ? (size_t)n : 0)
        n = loci_file_read(file, *bytes + at, *count - at, at);
    loci_file_close(file);
    return at == *count ? LOCI_OK : refuse(e, path, "the file could not be read to its end");
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

/* Sets the last part of the path, on one line and in ASCII. */
static void set_name(struct lab_corpus *c, const char *path)
{
    snprintf(c->name, sizeof c->name, "%s", path ? path + loci_path_folder(path) : "generated");
    for (char *n = c->name; *n; n++)
        if ((unsigned char)*n < 0x20 || (unsigned char)*n >= 0x7f) *n = '?';
}

static void find_symbols(struct lab_corpus *c, const unsigned char *bytes, int32_t token[256])
{
    bool there[256] = { false };
    for (ptrdiff_t i = 0; i < c->count; i++) there[bytes[i]] = true;
    for (int b = 0; b < 256; b++)
        if (there[b]) {
            c->byte[c->symbols++] = (unsigned char)b;
            token[b] = c->symbols;
        }
}

static double entropy(const struct lab_corpus *c)
{
    ptrdiff_t times[257] = { 0 };
    double sum = 0;
    for (ptrdiff_t i = 0; i < c->train; i++) times[c->token[i]]++;
    for (int t = 1; t <= c->symbols; t++) {
        const double p = (double)times[t] / (double)c->train;
        if (times[t]) sum -= p * log(p);
    }
    return sum;
}

static loci_status tokenize(struct lab_corpus *c, const unsigned char *bytes, size_t count,
                            loci_error *e)
{
    int32_t token[256];
    struct sha256 sha;
    c->count = (ptrdiff_t)count;
    c->train = c->count / 20 * 18 + c->count % 20 * 18 / 20;
    c->tests = c->count / 20 * 19 + c->count % 20 * 19 / 20;
    c->token = malloc(count * sizeof *c->token);
    if (!c->token) return no_memory(e, count * sizeof *c->token);
    find_symbols(c, bytes, token);
    for (ptrdiff_t i = 0; i < c->count; i++) c->token[i] = token[bytes[i]];
    c->unigram = entropy(c);
    sha256_begin(&sha);
    sha256_add(&sha, bytes, count);
    sha256_end(&sha, c->sha256);
    return LOCI_OK;
}

/* The last 20th is for 64 tests of 8 times the length. */
size_t lab_corpus_bytes(int length)
{
    const size_t usual = 2 << 20, wanted = (size_t)length * 8 * 64 * 21;
    return wanted > usual ? wanted : usual;
}

loci_status lab_corpus_open(struct lab_corpus *c, const char *path, size_t bytes, loci_error *e)
{
    *c = (struct lab_corpus){ 0 };
    unsigned char *text = NULL;
    loci_status status = LOCI_OK;
    if (path) {
        status = read_file(path, &text, &bytes, e);
    } else if (bytes < LEAST_BYTES || bytes > MOST_BYTES) {
        lab_refuse(e, "corpus: %zu generated bytes must be %d .. %d", bytes, LEAST_BYTES,
                   MOST_BYTES);
        status = LOCI_BAD_ARG;
    } else if (!(text = malloc(bytes))) {
        status = no_memory(e, bytes);
    } else {
        generate(text, bytes);
    }
    if (!status) status = lab_corpus_of(c, path, text, bytes, e);
    free(text);
    return status;
}

loci_status lab_corpus_of(struct lab_corpus *c, const char *name, const unsigned char *bytes,
                          size_t count, loci_error *e)
{
    *c = (struct lab_corpus){ 0 };
    set_name(c, name);
    if (count < LEAST_BYTES || count > MOST_BYTES) {
        lab_refuse(e, "corpus %s: %zu bytes must be %d .. %d", c->name, count, LEAST_BYTES,
                   MOST_BYTES);
        return LOCI_BAD_ARG;
    }
    const loci_status status = tokenize(c, bytes, count, e);
    if (status) lab_corpus_close(c);
    return status;
}

void lab_corpus_close(struct lab_corpus *c)
{
    free(c->token);
    *c = (struct lab_corpus){ 0 };
}
