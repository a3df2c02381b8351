/* SPDX-License-Identifier: MIT */
/* encoding.c -- encoding texts.  The numbers of an accepted one are within the ranges of
 * loci_encodings(). */
#include <string.h>

#include "fuzz.h"
#include "loci/loci.h"

/* The text of a plan begins with the encodings, including every option. */
static void check_ranges(const char *text)
{
    const loci_encoding_info *list;
    const int n = loci_encodings(&list);
    for (int i = 0; i < n; i++) {
        const size_t length = strlen(list[i].name);
        const char *at = text;
        if (strncmp(text, list[i].name, length) || text[length] != ':') continue;
        for (int o = 0; o < list[i].option_count; o++) {
            char key[64];
            const loci_option *option = &list[i].options[o];
            snprintf(key, sizeof key, "%s=", option->name);
            if (option->kind > LOCI_WHOLE || !(at = strstr(text, key))
                || (at[-1] != ',' && at[-1] != ':'))
                continue;
            const double x = strtod(at + strlen(key), NULL);
            FUZZ_CHECK((x >= option->min && x <= option->max) || x == option->default_value);
        }
    }
}

static loci_status plan_of(loci_plan **p, const char *text, loci_error *e)
{
    const loci_desc d = LOCI_DESC(.encoding = text, .heads = 2, .dim = 16, .stage = LOCI_ATTENTION);
    return loci_plan_create(p, &d, e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    loci_plan *p;
    loci_error e = { 0 };
    FUZZ_CHECK(text);
    memcpy(text, data, size);
    text[size] = 0;
    if (plan_of(&p, text, &e)) FUZZ_CHECK(!p && e.status && e.text[0]);
    else {
        check_ranges(loci_plan_text(p));
        loci_plan_destroy(p);
    }
    free(text);
    return 0;
}

void fuzz_seeds(void (*add)(const void *, size_t))
{
    static const char *const more[] = {
        "rope:pairing=half,scaling=yarn,factor=4,original_length=4096,beta_fast=32,beta_slow=1,"
        "truncate=0,mscale=0.7,mscale_all_dim=1",
        "rope:pairing=interleaved,dim=4,offset=2,scaling=longrope,factor=2,original_length=64,"
        "short=1/1.5,long=1.25/3e0,length=65+fox",
        "mrope:sections=2/3/"
        "3,order=interleaved,base=1e+6,scaling=llama3,factor=8,original_length=8192",
        "alibi+kerple:kernel=power+t5",
    };
    const loci_encoding_info *list;
    const int n = loci_encodings(&list);
    for (int i = 0; i < n; i++) add(list[i].example, strlen(list[i].example));
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) add(more[i], strlen(more[i]));
}
