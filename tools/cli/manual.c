/* SPDX-License-Identifier: MIT */
/* manual.c -- `loci man`: manual pages, from the same tables as --help. */

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/terminal.h"
#include "draw/text.h"

/* ---- Text in roff ---------------------------------------------------------------------------- */

/* Escapes characters that roff interprets or prints as others, so that text can be copied from a
 * page.  A hyphen inside a word is a hyphen; before a word, and in typed text, it is a minus
 * sign. */
static void put_escaped(struct text *t, const char *s, size_t n, bool typed)
{
    for (size_t i = 0; i < n; i++) {
        const bool begins = i == 0 || !isalnum((unsigned char)s[i - 1]);
        switch (s[i]) {
        case '\\':
            text_add(t, "\\e");
            break;
        case '\'':
            text_add(t, "\\(aq");
            break;
        case '`':
            text_add(t, "\\(ga");
            break;
        case '^':
            text_add(t, "\\(ha");
            break;
        case '~':
            text_add(t, "\\(ti");
            break;
        case '-':
            text_add(t, typed || begins ? "\\-" : "-");
            break;
        default:
            text_put(t, s + i, 1);
        }
    }
}
static void put_typed(struct text *t, const char *s) { put_escaped(t, s, strlen(s), true); }

/* A line of text.  Escapes a dot in front, and prints options in bold. */
static void put_line(struct text *t, const char *s, size_t n)
{
    if (n && (*s == '.' || *s == '\'')) text_add(t, "\\&");
    for (size_t i = 0; i < n;) {
        size_t word = 0, skip = 0;
        while (i + skip < n && strchr(" ('", s[i + skip])) skip++;
        put_escaped(t, s + i, skip, false);
        i += skip;
        while (i + word < n && s[i + word] != ' ') word++;
        size_t option = 0;
        if (word > 1 && s[i] == '-' && (isalpha((unsigned char)s[i + 1]) || s[i + 1] == '-'))
            while (option < word && (isalnum((unsigned char)s[i + option]) || s[i + option] == '-'))
                option++;
        if (option) {
            text_add(t, "\\fB");
            put_escaped(t, s + i, option, true);
            text_add(t, "\\fR");
        }
        put_escaped(t, s + i + option, word - option, false);
        i += word;
    }
    text_add(t, "\n");
}

/* If the line is a list entry, "    word     what it is", returns the offset of its text behind the
 * indent, else 0.  Words of an entry contain no dot.  Sentences end with one, and two blanks follow
 * it. */
static size_t entry(const char *s, size_t n)
{
    size_t word = 0, text;
    while (word < n && s[word] != ' ') word++;
    for (text = word; text < n && s[text] == ' ';) text++;
    return word && text - word > 1 && text < n && !strchr(".,:;?!", s[word - 1]) ? text : 0;
}

/* Input lines end with '\n' and have four blanks in front.  Empty lines separate paragraphs.  A
 * paragraph of entries only becomes a list.  Lines with a deeper indent stay as they are. */
static void put_text(struct text *t, const char *s)
{
    for (bool first = true; *s; first = false) {
        const char *end = s;
        bool list = true, verbatim = true;
        while (*end && *end != '\n') {
            const size_t n = strcspn(end, "\n");
            list = list && n > 4 && entry(end + 4, n - 4);
            verbatim = verbatim && n > 4 && end[4] == ' ';
            end += n + (end[n] == '\n');
        }
        if (!first && !list) text_add(t, ".PP\n");
        if (verbatim) text_add(t, ".nf\n");
        while (s < end) {
            const size_t n = strcspn(s, "\n"), indent = n < 4 ? n : 4;
            const size_t skip = list ? entry(s + 4, n - 4) : 0;
            if (skip) {
                size_t word = 0;
                while (s[4 + word] != ' ') word++;
                text_add(t, ".TP\n.B ");
                put_escaped(t, s + 4, word, true);
                text_add(t, "\n");
            }
            put_line(t, s + indent + skip, n - indent - skip);
            s += n + (s[n] == '\n');
        }
        if (verbatim) text_add(t, ".fi\n");
        while (*s == '\n') s++;
    }
}

/* Typed text, line by line without the indent. */
static void put_verbatim(struct text *t, const char *s)
{
    text_add(t, ".nf\n");
    while (*s) {
        const size_t n = strcspn(s, "\n"), indent = n >= 4 && !strncmp(s, "    ", 4) ? 4 : 0;
        if (s[indent] == '.') text_add(t, "\\&");
        put_escaped(t, s + indent, n - indent, true);
        text_add(t, "\n");
        s += n + (s[n] == '\n');
    }
    text_add(t, ".fi\n");
}

/* ---- Pages ----------------------------------------------------------------------------------- */

/* "loci", "loci-bench", "loci-lab-run" */
static void page_name(const struct command *c, char name[64])
{
    snprintf(name, 64, "loci%s%s", *c->name ? "-" : "", c->name);
    for (char *p = name; *p; p++)
        if (*p == ' ') *p = '-';
}

/* The date of the page: the source date from the environment, as reproducible builds set it, else
 * none. */
static void put_day(struct text *t)
{
    const char *given = getenv("SOURCE_DATE_EPOCH");
    int64_t seconds;
    if (!given || !parse_whole(given, &seconds) || seconds < 0 || seconds > 253402300799) return;
    const time_t when = (time_t)seconds;
    const struct tm *day = gmtime(&when);
    if (day) text_add(t, "%04d-%02d-%02d", day->tm_year + 1900, day->tm_mon + 1, day->tm_mday);
}

static void put_flag(struct text *t, const struct flag *f)
{
    text_add(t, ".TP\n");
    if (f->letter) text_add(t, "\\fB\\-%s\\fR, ", f->letter);
    text_add(t, "\\fB\\-\\-");
    put_typed(t, f->name);
    text_add(t, "\\fR");
    if (f->value) {
        text_add(t, " \\fI");
        put_escaped(t, f->value, (size_t)value_name(f), true);
        text_add(t, "\\fR");
    }
    text_add(t, "\n");
    put_line(t, f->help, strlen(f->help));
}

static void put_reference(struct text *t, const struct command *c, bool more)
{
    char name[64];
    page_name(c, name);
    text_add(t, ".BR ");
    put_typed(t, name);
    text_add(t, " (1)%s\n", more ? "," : "");
}

/* The encodings, for the program's page and others that list them. */
static void put_encodings(struct text *t)
{
    const loci_encoding_info *list;
    const int n = loci_encodings(&list);
    text_add(t, ".SH ENCODINGS\nA text names one or several, with options:\n"
                "\\fIname\\fR:\\fIoption\\fR=\\fIvalue\\fR,...+\\fIname\\fR...\n"
                ".BR \"loci list\" \" \\fINAME\\fR\"\nshows the options of each.\n");
    for (int i = 0; i < n; i++) {
        text_add(t, ".TP\n.B ");
        put_typed(t, list[i].name);
        text_add(t, "\n");
        put_line(t, list[i].brief, strlen(list[i].brief));
    }
}

static void put_page(struct text *t, const struct command *c, const struct command *above)
{
    static const struct flag help = { "help", "h", NULL, "a short form of this page" };
    const bool whole = c == &whole_program;
    char name[64];
    page_name(c, name);
    text_add(t, ".\\\" SPDX-License-Identifier: MIT\n.\\\" Made by loci man.\n.TH ");
    for (const char *p = name; *p; p++)
        text_add(t, *p == '-' ? "\\-" : "%c", toupper((unsigned char)*p));
    text_add(t, " 1 \"");
    put_day(t);
    text_add(t, "\" \"loci %s\" \"User Commands\"\n.SH NAME\n", loci_version_text());
    put_typed(t, name);
    text_add(t, " \\- ");
    put_escaped(t, c->brief, strlen(c->brief), false);
    text_add(t, "\n.SH SYNOPSIS\n");
    put_verbatim(t, c->synopsis);
    if (c->about) {
        text_add(t, ".SH DESCRIPTION\n");
        put_text(t, c->about);
    }
    if (c->under) {
        text_add(t, ".SH COMMANDS\n");
        for (int i = 0; c->under[i]; i++) {
            text_add(t, ".TP\n.B ");
            put_typed(t, word_of(c->under[i]));
            text_add(t, "\n");
            put_line(t, c->under[i]->brief, strlen(c->under[i]->brief));
        }
    }
    text_add(t, ".SH OPTIONS\n");
    for (const struct flag *f = c->flags; f->name; f++) put_flag(t, f);
    put_flag(t, &help);
    if (whole) put_encodings(t);
    text_add(t, ".SH EXAMPLES\n");
    put_verbatim(t, c->examples);
    text_add(t, ".SH EXIT STATUS\n");
    for (int i = 0; i < COUNT(exit_codes); i++) {
        text_add(t, ".TP\n.B %d\n", i);
        put_line(t, exit_codes[i], strlen(exit_codes[i]));
    }
    text_add(t, ".SH SEE ALSO\n");
    if (!whole) put_reference(t, &whole_program, above != &whole_program || c->under);
    if (above != &whole_program && !whole) put_reference(t, above, false);
    for (int i = 0; c->under && c->under[i]; i++)
        put_reference(t, c->under[i], c->under[i + 1] != NULL);
}

/* ---- The command ----------------------------------------------------------------------------- */

static bool write_page(const char *folder, const struct command *c, const struct command *above)
{
    struct text t = { 0 };
    char name[64];
    page_name(c, name);
    const size_t capacity = strlen(folder) + sizeof name + 4;
    char *path = alloc(capacity, 1);
    snprintf(path, capacity, "%s/%s.1", folder, name);
    put_page(&t, c, above);
    const int code = write_text(&t, path);
    free(path);
    return code == EXIT_DONE;
}

/* Writes the page of a command, and those of its subcommands. */
static bool write_pages(const char *folder, const struct command *c, const struct command *above)
{
    bool ok = write_page(folder, c, above);
    for (int i = 0; ok && c->under && c->under[i]; i++) ok = write_pages(folder, c->under[i], c);
    return ok;
}

enum { OUTPUT };
static const struct flag flags[] = {
    [OUTPUT] = { "output", "o", "DIR:@folder",
                 "write all pages to DIR: loci.1, loci-bench.1, ..." },
    { NULL, NULL, NULL, NULL }
};

static int run(const struct args *a)
{
    const struct command *c = &whole_program, *above = &whole_program;
    if (a->value[OUTPUT]) {
        if (!args_rest(a, 0)) return EXIT_ERROR;
        return write_pages(a->value[OUTPUT], c, above) ? EXIT_DONE : EXIT_ERROR;
    }
    for (int i = 0; i < a->rest_count; i++) {
        above = c;
        c = find_command(c->under, a->rest[i]);
        if (!c)
            return fail("man: unknown command '%s%s%s'; 'loci --help' lists all", above->name,
                        *above->name ? " " : "", a->rest[i]);
    }
    struct text t = { 0 };
    put_page(&t, c, above);
    return print_text(&t);
}

const struct command cmd_man = {
    .name = "man",
    .brief = "print pages of the manual",
    .synopsis = "loci man [COMMAND...]\n    loci man -o DIR",
    .about = "    Prints the page of a command, or of the program, for man, groff or mandoc.  It\n"
             "    has the text of --help.  SOURCE_DATE_EPOCH in the environment sets its date.\n",
    .examples = "    loci man bench | man -l -\n    loci man -o share/man/man1\n",
    .operand_text = "@command @command",
    .flags = flags,
    .run = run,
};
