/* SPDX-License-Identifier: MIT */
/* corpora.c -- see corpora.h. */
#include "lab/corpora.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/file.h"
#include "platform/system.h"
#include "lab/draw.h"

/* The modules in the order of their paths, without tests and without what is installed beside them.
 * What the machine's configuration has written is left out. */
static const char python[] =
    "python3 -I -c '\n"
    "import os, sys, sysconfig\n"
    "top = sysconfig.get_path(\"stdlib\")\n"
    "skip = {\"site-packages\", \"dist-packages\", \"test\", \"tests\", \"__pycache__\"}\n"
    "found = []\n"
    "for folder, below, files in os.walk(top):\n"
    "    below[:] = [name for name in below if name not in skip]\n"
    "    for name in files:\n"
    "        if name.endswith(\".py\") and not name.startswith(\"_sysconfigdata\"):\n"
    "            found.append(os.path.relpath(os.path.join(folder, name), top))\n"
    "for name in sorted(found):\n"
    "    with open(os.path.join(top, name), \"rb\") as file:\n"
    "        sys.stdout.buffer.write(file.read())\n"
    "' 2>/dev/null";

static const struct lab_source sources[] = {
    { "python", "source of Python's standard library", "PSF-2.0", NULL, "install python3", python },
    { "jargon", "the Jargon File", "public domain", "/usr/share/doc/jargon-text/jargon.txt.gz",
      "apt install jargon-text", "gzip -dc /usr/share/doc/jargon-text/jargon.txt.gz 2>/dev/null" },
    { "kjv", "the King James Bible, a verse per line", "public domain", "/usr/lib/bible.data",
      "apt install bible-kjv", "bible -p /usr/lib -f gen1:1-rev22:21 </dev/null 2>/dev/null" },
};

int lab_sources(const struct lab_source **list)
{
    *list = sources;
    return (int)(sizeof sources / sizeof *sources);
}

static loci_status missing(const struct lab_source *s, const char *what, loci_error *e)
{
    lab_refuse(e, "corpus %s: %s; to get it: %s", s->name, what, s->get);
    return LOCI_BAD_ARG;
}

/* All that the program writes.  The caller frees it. */
static loci_status read_output(const struct lab_source *s, unsigned char **bytes, size_t *count,
                               loci_error *e)
{
    enum { STEP = 1 << 20, MOST = 1 << 30 };
    size_t capacity = 0;
    struct file_info there;
    *bytes = NULL;
    *count = 0;
    if (s->file && !loci_path_info(s->file, &there)) {
        lab_refuse(e, "corpus %s: there is no %s; to get it: %s", s->name, s->file, s->get);
        return LOCI_BAD_ARG;
    }
    struct command_output *f = loci_command_begin(s->command);
    if (!f) return missing(s, "its program could not be started", e);
    for (size_t n = 1; n > 0 && *count < MOST; *count += n) {
        if (capacity - *count < STEP) {
            capacity = 2 * capacity + STEP;
            unsigned char *more = realloc(*bytes, capacity);
            if (!more) exit((fputs("loci: out of memory\n", stderr), 2));
            *bytes = more;
        }
        n = loci_command_read(f, *bytes + *count, STEP);
    }
    const int code = loci_command_end(f);
    if (code == 0 && *count > 0) return LOCI_OK;
    free(*bytes);
    *bytes = NULL;
    return missing(s, code == 127 ? "its program is not there" : "its program wrote no whole text",
                   e);
}

loci_status lab_corpus_find(struct lab_corpus *c, const char *what, size_t bytes, loci_error *e)
{
    if (!what || !strcmp(what, "generated")) return lab_corpus_open(c, NULL, bytes, e);
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        unsigned char *text;
        if (strcmp(sources[i].name, what) != 0) continue;
        *c = (struct lab_corpus){ 0 };
        loci_status status = read_output(&sources[i], &text, &bytes, e);
        if (status) return status;
        status = lab_corpus_of(c, what, text, bytes, e);
        free(text);
        return status;
    }
    return lab_corpus_open(c, what, bytes, e);
}
