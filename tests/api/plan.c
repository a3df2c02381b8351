/* SPDX-License-Identifier: MIT */
/* plan.c -- plans: every rule of the encoding text and of the description, the required tensors,
 * tables, embeddings. */
#define _POSIX_C_SOURCE 200809L
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

#include "contract/engine.h"
#include "api/tables.h"
#include "harness.h"

/* One line of text, not empty, and terminated. */
static bool is_sentence(const loci_error *e)
{
    size_t n = strnlen(e->text, sizeof e->text);
    return n > 10 && n < sizeof e->text && !strpbrk(e->text, "\n\r\t") && e->text[n - 1] != ' ';
}

static loci_desc usual(const char *encoding)
{
    return (loci_desc)LOCI_DESC(.encoding = encoding, .heads = 4, .kv_heads = 2, .dim = 8);
}

/* Creates the plan of a description.  Returns NULL after checking the error text. */
static loci_plan *plan_of(const loci_desc *d, loci_error *e)
{
    loci_plan *p = (loci_plan *)e;
    memset(e, 0x55, sizeof *e);
    loci_status status = loci_plan_create(&p, d, e);
    const char *name = d->encoding ? d->encoding : "(NULL)";
    if (status)
        CHECK_THAT(!p && e->status == status && is_sentence(e),
                   "a failure has no plan and one sentence: %s", name);
    return p;
}

/* ---- Text ------------------------------------------------------------------------------------ */

static const struct {
    const char *text;
    loci_stage stage;
    const char *canonical;
} good[] = {
    { "nope", LOCI_ATTENTION, "nope scale=0.35355339059327373 isa=" },
    { "nope+t5", LOCI_ATTENTION,
      "nope+t5:buckets=32,max_distance=128,bidirectional=0,bias_scale=1 "
      "scale=1 isa=" },
    { "sinusoidal", LOCI_EMBED, "sinusoidal:base=10000,layout=interleaved,freq=paper " },
    { "sinusoidal:freq=t2t,layout=halves,base=10", LOCI_EMBED,
      "sinusoidal:base=10,layout=halves,freq=t2t " },
    { "learned", LOCI_EMBED, "learned " },
    { "index", LOCI_EMBED, "index " },
    { "normalised", LOCI_EMBED, "normalised:length=10 " },
    { "normalised:length=300", LOCI_EMBED, "normalised:length=300 " },
    { "binary", LOCI_EMBED, "binary " },
    { "alibi", LOCI_ATTENTION, "alibi:slopes=official scale=0.35355339059327373 " },
    { "alibi:slopes=given", LOCI_ATTENTION, "alibi:slopes=given " },
    { "alibi:slopes=both", LOCI_ATTENTION, "alibi:slopes=both " },
    { "angles:pairing=half", LOCI_ATTENTION, "angles:pairing=half,dim=8,offset=0 " },
    { "pope", LOCI_ATTENTION, "pope:base=10000 scale=0.35355339059327373 " },
    { "angles:offset=2,pairing=interleaved,dim=4", LOCI_ROTATE,
      "angles:pairing=interleaved,dim=4,offset=2 " },
    { "rope:pairing=half,positions=given", LOCI_ATTENTION,
      "rope:pairing=half,base=10000,dim=8,offset=0,freq=formula,attention_factor=1,angles=exact,"
      "scaling=none,positions=given " },
    { "ssmax", LOCI_ATTENTION, "ssmax:bias=0,count=keys " },
    { "logn:length=512", LOCI_ATTENTION, "logn:length=512,rule=ratio,count=keys " },
    { "logn:length=9,rule=added", LOCI_ATTENTION, "logn:length=9,rule=added,beta=0.1,count=keys " },
    { "t5", LOCI_ATTENTION,
      "t5:buckets=32,max_distance=128,bidirectional=0,bias_scale=1 "
      "scale=1 " },
    { "t5:buckets=8,max_distance=20", LOCI_ATTENTION,
      "t5:buckets=8,max_distance=20,bidirectional=0,bias_scale=1 " },
    { "t5:bias_scale=2.5", LOCI_ATTENTION,
      "t5:buckets=32,max_distance=128,bidirectional=0,bias_scale=2.5 " },
    { "t5:bias_scale=-1e+2+alibi", LOCI_ATTENTION,
      "t5:buckets=32,max_distance=128,bidirectional=0,bias_scale=-100+alibi:" },
    { "t5:bias_scale=+.5", LOCI_ATTENTION,
      "t5:buckets=32,max_distance=128,bidirectional=0,bias_scale=0.5 " },
    { "t5:bias_scale=5.E-1", LOCI_ATTENTION,
      "t5:buckets=32,max_distance=128,bidirectional=0,bias_scale=0.5 " },
    { "t5:bias_scale=0.1000000000000000055511151231257827", LOCI_ATTENTION,
      "t5:buckets=32,max_distance=128,bidirectional=0,bias_scale=0.1 " },
    { "t5:bias_scale=0.30000000000000004", LOCI_ATTENTION,
      "t5:buckets=32,max_distance=128,bidirectional=0,bias_scale=0.30000000000000004 " },
    { "t5:buckets=1.6e1", LOCI_ATTENTION, "t5:buckets=16," },
    { "rope:pairing=half", LOCI_ATTENTION,
      "rope:pairing=half,base=10000,dim=8,offset=0,freq=formula,attention_factor=1,angles=exact,"
      "scaling=none " },
    { "rope:dim=4,offset=4,pairing=interleaved", LOCI_ROTATE,
      "rope:pairing=interleaved,base=10000,dim=4,offset=4,freq=formula,attention_factor=1,"
      "angles=exact,scaling=none " },
    { "rope:pairing=half,freq=given", LOCI_ATTENTION,
      "rope:pairing=half,dim=8,offset=0,freq=given,attention_factor=1 " },
    { "rope:pairing=half,base=500000+fox", LOCI_ATTENTION,
      "rope:pairing=half,base=500000,dim=8,offset=0,freq=formula,attention_factor=1,angles=exact,"
      "scaling=none+fox:stop=0 " },
    { "rope:pairing=half+t5", LOCI_ATTENTION,
      "rope:pairing=half,base=10000,dim=8,offset=0,freq=formula,attention_factor=1,angles=exact,"
      "scaling=none+"
      "t5:buckets=32,max_distance=128,bidirectional=0,bias_scale=1 scale=0.35355339059327373 " },
    { "mrope:order=interleaved,sections=2/1/1", LOCI_ATTENTION,
      "mrope:pairing=half,base=10000,dim=8,offset=0,freq=formula,"
      "attention_factor=1,angles=exact,scaling=none,sections=2/1/1,order=interleaved " },
    { "rope:pairing=half,scaling=llama3,factor=8,original_length=8192", LOCI_ATTENTION,
      "rope:pairing=half,base=10000,dim=8,offset=0,"
      "freq=formula,attention_factor=1,angles=exact,scaling=llama3,factor=8,original_length=8192,"
      "low_freq_factor=1,high_freq_factor=4 " },
    { "rope:pairing=half,scaling=longrope,factor=1,original_length=64,short=1/1/2/3,long=1/2/3.5/4",
      LOCI_ATTENTION,
      "rope:pairing=half,base=10000,dim=8,offset=0,freq=formula,attention_factor=1,angles=exact,"
      "scaling=longrope,factor=1,original_length=64,"
      "length=64,short=1/1/2/3,long=1/2/3.5/4 " },
    { "shaw:left=3,right=5,values=0,sign=ij", LOCI_ATTENTION,
      "shaw:left=3,right=5,values=0,sign=ij " },
    { "xl:clamp=400", LOCI_ATTENTION, "xl:clamp=400,base=10000 scale=0.35355339059327373 " },
    { "deberta", LOCI_ATTENTION,
      "deberta:kind=v2,span=256,max_distance=512,terms=both,p2c=ij,saturate=1 "
      "scale=0.20412414523193154 " },
    { "deberta:kind=v1,terms=c2p", LOCI_ATTENTION,
      "deberta:kind=v1,span=512,terms=c2p scale=0.25 " },
    { "softcap:cap=30+deberta:kind=v1,terms=c2p", LOCI_ATTENTION,
      "softcap:cap=30+deberta:kind=v1,span=512,terms=c2p scale=0.25 " },
    { "deberta:kind=v1,terms=c2p+sink", LOCI_ATTENTION,
      "deberta:kind=v1,span=512,terms=c2p+sink scale=0.25 " },
    { "deberta+alibi", LOCI_ATTENTION,
      "deberta:kind=v2,span=256,max_distance=512,terms=both,p2c=ij,"
      "saturate=1+alibi:slopes=official "
      "scale=0.35" },
    { "shaw:left=0,right=0", LOCI_ATTENTION, "shaw:left=0,right=0,values=1,sign=ji " },
    { "cope", LOCI_ATTENTION, "cope:npos=64,gate_scale=0.35355339059327373,pos_scale=1,gates=k " },
    { "cope:gates=v,gate_scale=1", LOCI_ATTENTION,
      "cope:npos=64,gate_scale=1,pos_scale=1,gates=v " },
    { "sba:remainder=vector,current=1", LOCI_ATTENTION, "sba:current=1,remainder=vector,stop=0 " },
    { "alibi+cape:hidden=12", LOCI_ATTENTION,
      "alibi:slopes=official+cape:hidden=12,add_bias=1,leak=0.01 " },
    { "alibi+t5+fox+shaw+cope+sba+cape+rope:pairing=half", LOCI_ATTENTION, "alibi:" },
};

static const struct {
    const char *text;
    loci_stage stage;
    const char *says;
} bad[] = {
    { "", LOCI_ATTENTION, "lacks a name" },
    { "+", LOCI_ATTENTION, "lacks a name" },
    { "+t5", LOCI_ATTENTION, "lacks a name" },
    { "t5+", LOCI_ATTENTION, "lacks a name" },
    { "t5++alibi", LOCI_ATTENTION, "lacks a name" },
    { ":buckets=3", LOCI_ATTENTION, "lacks a name" },
    { "t5:", LOCI_ATTENTION, "an option has no name" },
    { "t5:,", LOCI_ATTENTION, "an option has no name" },
    { "t5:buckets=8,", LOCI_ATTENTION, "an option has no name" },
    { "t5:=8", LOCI_ATTENTION, "an option has no name" },
    { "t5:buckets", LOCI_ATTENTION, "buckets= has no value" },
    { "t5:buckets=", LOCI_ATTENTION, "buckets= has no value" },
    { "t5:buckets=,max_distance=9", LOCI_ATTENTION, "buckets= has no value" },
    { "t5 ", LOCI_ATTENTION, "unknown encoding 't5 '; did you mean 't5'?" },
    { "t5\n", LOCI_ATTENTION, "unknown encoding 't5?'" },
    { "T5", LOCI_ATTENTION, "did you mean 't5'?" },
    { "alibl", LOCI_ATTENTION, "did you mean 'alibi'?" },
    { "xenc:pairing=half", LOCI_ATTENTION, "unknown encoding 'xenc'; known: nope|sinusoidal|" },
    { "t5:bucket=16", LOCI_ATTENTION, "t5: unknown option 'bucket'; did you mean 'buckets'?" },
    { "t5:zzz=16", LOCI_ATTENTION, "t5: unknown option 'zzz'; known: buckets|max_distance|" },
    { "nope:x=1", LOCI_ATTENTION, "nope has no options" },
    { "t5:buckets=8,buckets=8", LOCI_ATTENTION, "buckets is given twice" },
    { "t5+alibi+t5", LOCI_ATTENTION, "t5 is named twice" },
    { "xl:clamp=-2", LOCI_ATTENTION, "must be a whole number from -1" },
    { "deberta:kind=v1,max_distance=64", LOCI_ATTENTION, "leave out max_distance with kind=v1" },
    { "deberta:kind=v1,saturate=0", LOCI_ATTENTION, "leave out saturate with kind=v1" },
    { "deberta:terms=c2p,p2c=ji", LOCI_ATTENTION, "leave out p2c with terms=c2p" },
    { "deberta:span=1", LOCI_ATTENTION, "span 1 must be at least 2" },
    { "deberta:span=8,max_distance=5", LOCI_ATTENTION,
      "max_distance 5 must exceed span/2 + 1 = 5" },
    { "deberta:span=5,max_distance=1000,saturate=0", LOCI_ATTENTION, "rows differ up to distance" },
    { "shaw:left=three", LOCI_ATTENTION, "shaw: left=three is not a number" },
    { "shaw:left=0x10", LOCI_ATTENTION, "is not a number" },
    { "shaw:left=inf", LOCI_ATTENTION, "is not a number" },
    { "shaw:left=nan", LOCI_ATTENTION, "is not a number" },
    { "shaw:left= 3", LOCI_ATTENTION, "is not a number" },
    { "shaw:left=3 ", LOCI_ATTENTION, "is not a number" },
    { "shaw:left=3e", LOCI_ATTENTION, "is not a number" },
    { "shaw:left=.", LOCI_ATTENTION, "is not a number" },
    { "shaw:left=3/4", LOCI_ATTENTION, "is not a number" },
    { "shaw:left=1e999", LOCI_ATTENTION, "too large" },
    { "shaw:left=00000000000000000000000000000000000000000000000000000000000000001", LOCI_ATTENTION,
      "at most 64 characters" },
    { "shaw:left=3.5", LOCI_ATTENTION, "must be a whole number from 0 to 65536" },
    { "shaw:left=-1", LOCI_ATTENTION, "left=-1 must be a whole number from 0" },
    { "t5:buckets=1", LOCI_ATTENTION, "buckets=1 must be a whole number from 2 to 65536" },
    { "t5:buckets=3,bidirectional=1", LOCI_ATTENTION, "at least 4" },
    { "t5:max_distance=16", LOCI_ATTENTION, "max_distance 16 must exceed 16" },
    { "t5:bidirectional=2", LOCI_ATTENTION, "bidirectional=2 is not one of 0|1" },
    { "t5:bidirectional=01", LOCI_ATTENTION, "is not one of 0|1" },
    { "alibi:slopes=learned", LOCI_ATTENTION, "is not one of official|geometric|given" },
    { "rope", LOCI_ATTENTION, "rope: the option pairing is required: half|interleaved" },
    { "rope", LOCI_ATTENTION, "Use half for a new model; `loci rope config.json`" },
    { "rotary:pairing=half", LOCI_ATTENTION, "unknown encoding 'rotary'; did you mean 'rope'?" },
    { "theta", LOCI_ATTENTION, "unknown encoding 'theta'; did you mean 'rope'?" },
    { "rope:pairing=half,theta=5", LOCI_ATTENTION, "unknown option 'theta'; did you mean 'base'?" },
    { "rope:base=500", LOCI_ATTENTION, "the option pairing is required" },
    { "rope:pairing=hal", LOCI_ATTENTION, "is not one of half|interleaved" },
    { "rope:pairing=half|interleaved", LOCI_ATTENTION, "is not one of" },
    { "rope:pairing=half,dim=5", LOCI_ATTENTION, "dim 5 must be even" },
    { "rope:pairing=half,dim=10", LOCI_ATTENTION, "must not exceed the head's 8 channels" },
    { "rope:pairing=half,offset=2", LOCI_ATTENTION, "must not exceed the head's 8 channels" },
    { "rope:pairing=half,freq=given,base=10000", LOCI_ATTENTION, "leave out base with freq=given" },
    { "rope:pairing=half,base=0", LOCI_ATTENTION, "base=0 must be a number from 1 to" },
    { "rope:pairing=half,attention_factor=0", LOCI_ATTENTION,
      "attention_factor=0 must be a number from" },
    { "rope:pairing=half,scaling=yarn", LOCI_ATTENTION, "scaling=yarn needs factor=" },
    { "rope:pairing=half,scaling=yarn,factor=4", LOCI_ATTENTION,
      "scaling=yarn needs original_length=" },
    { "rope:pairing=half,scaling=linear,factor=0", LOCI_ATTENTION,
      "factor=0 must be a number from" },
    { "rope:pairing=half,scaling=linear,factor=2,original_length=9", LOCI_ATTENTION,
      "leave out original_length, which scaling=linear does not have" },
    { "rope:pairing=half,factor=2", LOCI_ATTENTION,
      "leave out factor, which scaling=none does not have" },
    { "rope:pairing=half,freq=given,scaling=none", LOCI_ATTENTION,
      "leave out scaling with freq=given" },
    { "rope:pairing=half,freq=given,factor=2", LOCI_ATTENTION,
      "leave out factor, which scaling=none does not have" },
    { "rope:pairing=half,dim=2,scaling=ntk,factor=2", LOCI_ATTENTION, "needs a dim above 2" },
    { "rope:pairing=half,base=1,scaling=yarn,factor=2,original_length=64", LOCI_ATTENTION,
      "needs a base above 1" },
    { "rope:pairing=half,scaling=yarn,factor=2,original_length=64,truncate=2", LOCI_ATTENTION,
      "truncate=2 must be a whole number from 0 to 1" },
    { "rope:pairing=half,scaling=longrope,factor=2,original_length=64,short=1/2/3/4",
      LOCI_ATTENTION, "scaling=longrope needs long=" },
    { "rope:pairing=half,scaling=longrope,factor=2,original_length=64,short=1/2/3/4,long=1/2",
      LOCI_ATTENTION, "long has 2 numbers, but must have one per pair, 4" },
    { "rope:pairing=half,scaling=llama3,factor=2,original_length=64,low_freq_factor=5",
      LOCI_ATTENTION, "must not exceed high_freq_factor 4" },
    { "rope:pairing=half,dim=4,scaling=proportional,partial=0.5", LOCI_ATTENTION,
      "dim must be the whole head, 8" },
    { "alibi", LOCI_ROTATE, "alibi does not support stage rotate" },
    { "nope", LOCI_EMBED, "nope does not support stage embed" },
    { "mrope", LOCI_ATTENTION, "mrope: the option sections is required" },
    { "mrope:sections=1/3", LOCI_ATTENTION, "sections has 2 numbers" },
    { "mrope:sections=1/1/1", LOCI_ATTENTION, "must add up to dim/2 = 4" },
    { "mrope:sections=1//3", LOCI_ATTENTION, "mrope: sections= is not a number" },
    { "a-name-of-more-letters-than-any-encoding-will-ever-have", LOCI_ATTENTION,
      "unknown encoding 'a-name-of-more-letters-than-any-encoding-will-ev'; known: nope|" },
    { "mrope:sections=1/1.5/1.5", LOCI_ATTENTION, "1.5 must be a whole number" },
    { "mrope:sections=1/4/-1", LOCI_ATTENTION, "must be a number from 0" },
    { "mrope:sections=1/1/2,factor=2", LOCI_ATTENTION,
      "mrope: leave out factor, which scaling=none does not have" },
    { "xpos:dim=5", LOCI_ATTENTION, "xpos: dim 5 must be even" },
    { "xpos:dim=10", LOCI_ATTENTION, "must not exceed the head's 8 channels" },
    { "xpos:scale_base=1", LOCI_ATTENTION, "scores fade by more than 10^15 within 64 positions" },
    { "xpos+shaw", LOCI_ATTENTION, "shaw reads queries or keys alone" },
    { "deberta+xpos", LOCI_ATTENTION, "deberta reads queries or keys alone" },
    { "xpos+xl", LOCI_ATTENTION, "xl reads queries or keys alone" },
    { "cope+xpos", LOCI_ATTENTION, "cope reads queries or keys alone" },
    { "comrope:block=3", LOCI_ATTENTION, "8 channels must be a multiple of the block size 3" },
    { "comrope:axes=3", LOCI_ATTENTION, "the 4 blocks of a head must divide evenly among 3 axes" },
    { "comrope:kind=lp", LOCI_ATTENTION, "kind=lp is not one of ap|ld" },
    { "comrope+mixed", LOCI_ATTENTION, "comrope and mixed both rotate q and k" },
    { "liere", LOCI_ATTENTION, "liere: block 64 must not exceed the head's 8 channels" },
    { "fope:train_length=5", LOCI_ATTENTION, "fope: no frequency makes 1 turns in train_length 5" },
    { "fope:fourier_dim=9", LOCI_ATTENTION, "fourier_dim 9 must be even" },
    { "rope2d:layout=rows", LOCI_ATTENTION, "layout=rows is not one of concat|alternate" },
    { "rope2d:base=0.5", LOCI_ATTENTION, "base=0.5 must be a number from 1 to" },
    { "rope:pairing=half+rope2d", LOCI_ATTENTION, "rope and rope2d both rotate q and k" },
    { "alibi:slopes=all", LOCI_ATTENTION,
      "is not one of official|geometric|given|keys|queries|both" },
    { "angles", LOCI_ATTENTION, "angles: the option pairing is required: half|interleaved" },
    { "angles:pairing=half,base=500", LOCI_ATTENTION, "unknown option 'base'; known: pairing|" },
    { "angles:pairing=half,dim=5", LOCI_ATTENTION, "angles: dim 5 must be even" },
    { "angles:pairing=half,dim=10", LOCI_ATTENTION, "must not exceed the head's 8 channels" },
    { "angles:pairing=half+rope:pairing=half", LOCI_ATTENTION,
      "angles and rope both rotate q and k; at most one encoding can" },
    { "angles:pairing=half+tape", LOCI_ATTENTION, "angles and tape both rotate q and k" },
    { "angles:pairing=half", LOCI_EMBED, "angles does not support stage embed" },
    { "rope:pairing=half,positions=real", LOCI_ATTENTION, "is not one of token|given" },
    { "rope:pairing=half,positions=given,angles=f32", LOCI_ATTENTION,
      "leave out angles=f32 with positions=given: rounded angles have no gradient" },
    { "mrope:sections=2/1/1,positions=given", LOCI_ATTENTION, "unknown option 'positions'" },
    { "ssmax:count=rows", LOCI_ATTENTION, "is not one of keys|position" },
    { "ssmax", LOCI_ROTATE, "ssmax does not support stage rotate" },
    { "ssmax", LOCI_LINEAR_ATTENTION, "ssmax does not support stage linear_attention" },
    { "alibi+ssmax+cape", LOCI_ATTENTION, "cape needs scores and biases separately; put ssmax" },
    { "alibi+logn:length=9+cape", LOCI_ATTENTION, "put logn first" },
    { "logn", LOCI_ATTENTION, "logn: the option length is required" },
    { "logn:length=1", LOCI_ATTENTION, "logn: length 1 must be above 1" },
    { "logn:length=9,beta=0.2", LOCI_ATTENTION, "beta is an option of rule=added" },
    { "logn:length=9,rule=added,beta=0", LOCI_ATTENTION, "beta=0 must be a number from" },
    { "logn:length=9,rule=sum", LOCI_ATTENTION, "is not one of ratio|added" },
    { "tape", LOCI_ROTATE, "tape does not support stage rotate" },
    { "tape+rope:pairing=half", LOCI_ATTENTION, "tape and rope both rotate q and k" },
    { "rope:pairing=half", LOCI_EMBED, "does not support stage embed" },
    { "rope:pairing=half+alibi", LOCI_ROTATE, "stage rotate accepts one encoding, not 2" },
    { "sinusoidal+learned", LOCI_EMBED, "stage embed accepts one encoding, not 2" },
    { "sinusoidal", LOCI_ATTENTION, "in stage embed" },
    { "learned+t5", LOCI_ATTENTION, "in stage embed" },
    { "normalised:length=1", LOCI_EMBED, "normalised: length=1 must be a whole number from 2" },
    { "binary", LOCI_ATTENTION, "in stage embed" },
};

static loci_desc in_stage(const char *text, loci_stage stage)
{
    loci_desc d = usual(text);
    d.stage = stage;
    d.model_dim = stage == LOCI_EMBED ? 6 : 0;
    d.max_len = stage == LOCI_EMBED ? 10 : 0;
    return d;
}

/* The encoding part of a plan's text means the same plan. */
static void check_again(const loci_plan *p, loci_desc d)
{
    char again[1024];
    loci_error e;
    snprintf(again, sizeof again, "%.*s", (int)strcspn(loci_plan_text(p), " "), loci_plan_text(p));
    d.encoding = again;
    loci_plan *second = NULL;
    if (strstr(again, "freq=given")) return; /* there base is by rule */
    CHECK_THAT(!loci_plan_create(&second, &d, &e)
                   && !strcmp(loci_plan_text(p), loci_plan_text(second)),
               "text of a text: %s", again);
    loci_plan_destroy(second);
}

static void texts(void)
{
    loci_error e;
    for (int i = 0; i < COUNT(good); i++) {
        loci_desc d = in_stage(good[i].text, good[i].stage);
        loci_plan *p = plan_of(&d, &e);
        if (!CHECK_THAT(p != NULL, "must be understood: %s: %s", good[i].text, e.text)) continue;
        CHECK_THAT(!strncmp(loci_plan_text(p), good[i].canonical, strlen(good[i].canonical)),
                   "plan text of %s: %s", good[i].text, loci_plan_text(p));
        check_again(p, d);
        loci_plan_destroy(p);
    }
    for (int i = 0; i < COUNT(bad); i++) {
        loci_desc d = in_stage(bad[i].text, bad[i].stage);
        loci_plan *p = plan_of(&d, &e);
        CHECK_THAT(!p && e.status == LOCI_BAD_ARG && strstr(e.text, bad[i].says),
                   "must be refused: %s: %s", bad[i].text, p ? loci_plan_text(p) : e.text);
        loci_plan_destroy(p);
    }
}

/* No text crashes, and each gives a plan or a sentence: prefixes, random edits, very long ones. */
static void wild_texts(void)
{
    static const char start[] =
        "rope:pairing=half,base=5e+5,dim=4+t5:buckets=16,bias_scale=-.5e-1+shaw:left=3,sign=ij+fox";
    char text[sizeof start];
    uint64_t random = 1;
    loci_error e;
    for (size_t n = 0; n < sizeof start; n++) {
        snprintf(text, n + 1, "%s", start);
        loci_desc d = usual(text);
        loci_plan_destroy(plan_of(&d, &e));
    }
    for (int i = 0; i < 3000; i++) {
        memcpy(text, start, sizeof start);
        for (int k = 0; k <= i % 3; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            text[(random >> 33) % (sizeof start - 1)] =
                i % 2 ? "+:=,/.-e0123 |"[(random >> 20) % 14] : (char)(random >> 55);
        }
        loci_desc d = usual(text);
        loci_plan_destroy(plan_of(&d, &e));
    }
    size_t n = 70000;
    char *text_of = malloc(n + 1);
    if (!text_of) exit(1);
    for (int end = 0; end < 4; end++) {
        memset(text_of, "ab+0"[end], n);
        memcpy(text_of, "t5:buckets=", 11);
        text_of[end % 2 ? n : 60000] = 0;
        loci_desc d = usual(text_of);
        loci_plan *p = plan_of(&d, &e);
        CHECK_THAT(!p, "a long text: must be refused");
        loci_plan_destroy(p);
    }
    memcpy(text_of, "mrope:sections=1", 16);
    for (size_t i = 0; i < 2 * 4096; i++) text_of[16 + i] = "/1"[i % 2];
    text_of[16 + 2 * 4096] = 0;
    loci_desc d = usual(text_of);
    CHECK_THAT(!plan_of(&d, &e) && strstr(e.text, "sections has 4097 numbers, but at most 4096"),
               "a long list: %s", e.text);
    free(text_of);
    d = usual("nope+alibi+t5+fox+shaw+cope+sba+cape+nope");
    CHECK_THAT(!plan_of(&d, &e) && strstr(e.text, "more than 8"), "nine encodings: %s", e.text);
}

/* ---- Description ----------------------------------------------------------------------------- */

#define GIVEN(h, kv, width, ...) \
    { \
        .d = LOCI_DESC(.heads = h, .kv_heads = kv, .dim = width, __VA_ARGS__)
/* clang-format off */
#define SIZED(n) { .d = { .size = n, .heads = 4, .kv_heads = 2, .dim = 8 }
static const struct { loci_desc d; loci_status status; const char *says; } wishes[] = {
    SIZED(0), LOCI_BAD_ARG, "loci_desc: size is 0 and must be sizeof(loci_desc)" },
    SIZED(sizeof(loci_desc)), LOCI_OK, "" },
    SIZED(offsetof(loci_desc, k_dtype)), LOCI_OK, "" },
    SIZED(offsetof(loci_desc, tensors)), LOCI_BAD_ARG, "loci_desc: size" },
    SIZED(1), LOCI_BAD_ARG, "loci_desc: size" },
    GIVEN(0, 2, 8, .full = 0), LOCI_BAD_ARG, "heads 0 must be from 1 to 65536" },
    GIVEN(-4, 2, 8, .full = 0), LOCI_BAD_ARG, "heads -4" },
    GIVEN(65536, 2, 8, .full = 0), LOCI_OK, "" },
    GIVEN(65538, 2, 8, .full = 0), LOCI_BAD_ARG, "heads 65538" },
    GIVEN(4, 3, 8, .full = 0), LOCI_BAD_ARG, "kv_heads 3 must divide heads 4" },
    GIVEN(4, 8, 8, .full = 0), LOCI_BAD_ARG, "kv_heads 8 must divide heads 4" },
    GIVEN(4, -1, 8, .full = 0), LOCI_BAD_ARG, "kv_heads -1" },
    GIVEN(4, 0, 8, .full = 0), LOCI_OK, "" },
    GIVEN(4, 4, 8, .full = 0), LOCI_OK, "" },
    GIVEN(4, 2, 0, .full = 0), LOCI_BAD_ARG, "dim 0 must be from 1 to 1024" },
    GIVEN(4, 2, -8, .full = 0), LOCI_BAD_ARG, "dim -8" },
    GIVEN(4, 2, 1, .full = 0), LOCI_OK, "" },
    GIVEN(4, 2, 512, .full = 0), LOCI_OK, "" },
    GIVEN(4, 2, 1025, .full = 0), LOCI_BAD_ARG, "dim 1025" },
    GIVEN(4, 2, 8, .value_dim = -1), LOCI_BAD_ARG, "value_dim -1" },
    GIVEN(4, 2, 8, .value_dim = 1), LOCI_OK, "" },
    GIVEN(4, 2, 8, .model_dim = -1), LOCI_BAD_ARG, "model_dim -1" },
    GIVEN(4, 2, 8, .encoding = "learned", .stage = LOCI_EMBED, .max_len = 4), LOCI_BAD_ARG,
    "model_dim 0" },
    GIVEN(4, 2, 8, .encoding = "learned", .stage = LOCI_EMBED, .model_dim = 4), LOCI_BAD_ARG,
    "set max_len" },
    GIVEN(0, 0, 0, .encoding = "learned", .stage = LOCI_EMBED, .model_dim = 4, .max_len = 4),
    LOCI_OK, "" },
    GIVEN(0, 0, 0, .encoding = "normalised", .stage = LOCI_EMBED, .model_dim = 4), LOCI_BAD_ARG,
    "the length is unknown" },
    GIVEN(0, 0, 0, .encoding = "normalised", .stage = LOCI_EMBED, .model_dim = 4, .max_len = 1),
    LOCI_BAD_ARG, "the length must be at least 2" },
    GIVEN(0, 0, 0, .encoding = "learned", .stage = LOCI_EMBED, .model_dim = 4,
          .max_len = PTRDIFF_MAX), LOCI_BAD_ARG, "learned: tensor 'table' of shape [" },
    GIVEN(0, 0, 0, .encoding = "learned", .stage = LOCI_EMBED, .model_dim = 4,
          .max_len = PTRDIFF_MAX / 32), LOCI_BAD_ARG, "has too many numbers" },
    GIVEN(0, 0, 0, .encoding = "normalised", .stage = LOCI_EMBED, .model_dim = 4,
          .max_len = PTRDIFF_MAX),
    sizeof(void *) == 8 ? LOCI_BAD_ARG : LOCI_OK, sizeof(void *) == 8 ? "must be at most" : "" },
    GIVEN(4, 2, 8, .max_len = -1), LOCI_BAD_ARG, "max_len -1" },
    GIVEN(4, 2, 8, .stage = (loci_stage)4), LOCI_BAD_ARG, "stage 4" },
    GIVEN(4, 2, 8, .dtype = LOCI_F64), LOCI_OK, "" },
    GIVEN(4, 2, 8, .dtype = LOCI_BF16), LOCI_OK, "" },
    GIVEN(4, 2, 8, .dtype = LOCI_F16), LOCI_OK, "" },
    GIVEN(4, 2, 8, .dtype = LOCI_BF16, .fast = 1), LOCI_OK, "" },
    GIVEN(4, 2, 8, .dtype = LOCI_F16, .fast = 1), LOCI_BAD_ARG,
    "fast requires dtype BF16, not F16" },
    GIVEN(4, 2, 8, .dtype = LOCI_F64, .fast = 1), LOCI_BAD_ARG,
    "fast requires dtype BF16, not F64" },
    GIVEN(4, 2, 8, .fast = 1), LOCI_BAD_ARG, "fast requires dtype BF16, not F32" },
    GIVEN(4, 2, 8, .dtype = (loci_dtype)7), LOCI_BAD_ARG, "dtype 7 must be" },
    GIVEN(4, 2, 8, .scale = NAN), LOCI_BAD_ARG, "scale" },
    GIVEN(4, 2, 8, .scale = INFINITY), LOCI_BAD_ARG, "scale" },
    GIVEN(4, 2, 8, .window_left = LOCI_NONE), LOCI_OK, "" },
    GIVEN(4, 2, 8, .window_left = -2), LOCI_BAD_ARG, "window_left -2" },
    GIVEN(4, 2, 8, .window_right = INT64_MIN), LOCI_BAD_ARG, "window_right -9223372036854775808" },
    GIVEN(4, 2, 8, .isa = "mmx"), LOCI_BAD_ARG,
    "isa 'mmx' is unknown or cannot run on this CPU, which runs " },
    GIVEN(4, 2, 8, .isa = ""), LOCI_BAD_ARG, "isa ''" },
    GIVEN(4, 2, 8, .encoding = "fox", .full = 1), LOCI_BAD_ARG,
    "fox requires a causal plan" },
    GIVEN(4, 2, 8, .encoding = "rope:pairing=half+sba", .full = 1), LOCI_BAD_ARG,
    "sba requires a causal plan" },
    GIVEN(4, 2, 8, .encoding = "cope", .full = 1), LOCI_OK, "" },
    GIVEN(4, 2, 8, .encoding = "t5", .full = 1), LOCI_BAD_ARG,
    "set bidirectional=1 to give them their own buckets, or bidirectional=0 for bucket 0" },
    GIVEN(4, 2, 8, .encoding = "alibi+t5:buckets=8", .full = 1), LOCI_BAD_ARG,
    "t5: with a full plan, keys may lie ahead of the query" },
    GIVEN(4, 2, 8, .encoding = "t5:bidirectional=0", .full = 1), LOCI_OK, "" },
    GIVEN(4, 2, 8, .encoding = "t5:bidirectional=1", .full = 1), LOCI_OK, "" },
    GIVEN(4, 2, 8, .encoding = "rope:pairing=half+sink", .full = 1), LOCI_OK, "" },
    GIVEN(4, 2, 8, .encoding = "softcap"), LOCI_BAD_ARG,
    "softcap: the option cap is required" },
    GIVEN(4, 2, 8, .encoding = "softcap:cap=0"), LOCI_BAD_ARG, "softcap: cap" },
    GIVEN(4, 2, 8, .encoding = "softcap:cap=30+sba"), LOCI_OK, "" },
    GIVEN(4, 2, 8, .encoding = "sba+sink"), LOCI_BAD_ARG,
    "sink adds to the sum of a softmax, but sba has no softmax; leave one out" },
    GIVEN(4, 2, 8, .encoding = "sink", .stage = LOCI_LINEAR_ATTENTION), LOCI_BAD_ARG,
    "sink does not support stage linear_attention" },
    GIVEN(4, 2, 9, .encoding = "rope:pairing=half"), LOCI_BAD_ARG, "dim 9 must be even" },
    GIVEN(4, 2, 9, .encoding = "rope:pairing=half,dim=8"), LOCI_OK, "" },
    GIVEN(4, 2, 7, .encoding = "tape"), LOCI_BAD_ARG,
    "tape: the head's 7 channels must be an even number" },
    GIVEN(4, 2, 8, .encoding = "tape", .full = 1), LOCI_OK, "" },
    GIVEN(4, 4, 8, .encoding = "tape", .keys_rotated = 1), LOCI_OK, "" },
    GIVEN(4, 2, 8, .encoding = "tape", .keys_rotated = 1), LOCI_BAD_ARG,
    "tape: keys_rotated requires kv_heads equal to heads 4, not 2" },
    GIVEN(4, 2, 8, .encoding = "path", .full = 1), LOCI_BAD_ARG,
    "path requires a causal plan, but full is 1" },
    GIVEN(4, 2, 8, .encoding = "path", .stage = LOCI_ROTATE), LOCI_BAD_ARG,
    "path does not support stage rotate" },
    GIVEN(4, 2, 8, .encoding = "path", .stage = LOCI_EMBED, .model_dim = 8), LOCI_BAD_ARG,
    "path does not support stage embed" },
    GIVEN(4, 2, 8, .encoding = "path", .stage = LOCI_LINEAR_ATTENTION), LOCI_BAD_ARG,
    "path does not support stage linear_attention" },
    GIVEN(4, 2, 8, .encoding = "rope:pairing=half+path"), LOCI_BAD_ARG,
    "rope and path both rotate q and k; at most one encoding can" },
    GIVEN(4, 2, 8, .encoding = "path+wall"), LOCI_BAD_ARG,
    "path and wall both change queries from key to key; at most one encoding can" },
    GIVEN(4, 2, 8, .encoding = "path+cope"), LOCI_BAD_ARG,
    "cope reads queries or keys alone, but path changes queries from key to key; leave one out" },
    GIVEN(4, 4, 8, .encoding = "tape+path"), LOCI_BAD_ARG, "both rotate q and k" },
    GIVEN(4, 2, 8, .encoding = "wall", .full = 1), LOCI_BAD_ARG,
    "wall requires a causal plan, but full is 1" },
    GIVEN(4, 2, 8, .encoding = "wall", .stage = LOCI_ROTATE), LOCI_BAD_ARG,
    "wall does not support stage rotate" },
    GIVEN(4, 2, 8, .encoding = "wall", .stage = LOCI_LINEAR_ATTENTION), LOCI_BAD_ARG,
    "wall does not support stage linear_attention" },
    GIVEN(4, 2, 8, .encoding = "wall+cope"), LOCI_BAD_ARG,
    "cope reads queries or keys alone, but wall changes queries from key to key; leave one out" },
    GIVEN(4, 2, 8, .encoding = "wall+shaw"), LOCI_BAD_ARG, "shaw reads queries or keys alone" },
    GIVEN(4, 2, 8, .encoding = "wall+xl"), LOCI_BAD_ARG, "xl reads queries or keys alone" },
    GIVEN(4, 2, 8, .encoding = "wall+deberta"), LOCI_BAD_ARG,
    "deberta reads queries or keys alone" },
    GIVEN(4, 4, 8, .encoding = "tape+wall"), LOCI_BAD_ARG, "wall does not go with tape" },
    GIVEN(4, 2, 8, .encoding = "xpos+wall"), LOCI_BAD_ARG, "wall does not go with xpos" },
    GIVEN(4, 2, 8, .encoding = "rerope:pairing=half,window=4+wall"), LOCI_BAD_ARG,
    "wall does not go with rerope" },
    GIVEN(4, 2, 8, .encoding = "dca:pairing=half,chunk=6,local=2+wall"), LOCI_BAD_ARG,
    "wall does not go with dca" },
    GIVEN(4, 2, 8, .encoding = "wall+rope:pairing=half+fox", .keys_rotated = 1), LOCI_OK, "" },
    GIVEN(4, 2, 8, .encoding = "rerope:window=4"), LOCI_BAD_ARG,
    "rerope: the option pairing is required" },
    GIVEN(4, 2, 8, .encoding = "rerope:pairing=half"), LOCI_BAD_ARG,
    "rerope: the option window is required" },
    GIVEN(4, 2, 8, .encoding = "rerope:pairing=half,window=4,leak=1.5"), LOCI_BAD_ARG, "leak" },
    GIVEN(4, 2, 8, .encoding = "rerope:pairing=half,window=0"), LOCI_BAD_ARG, "window" },
    GIVEN(4, 2, 8, .encoding = "rerope:pairing=half,window=4,angles=f32"), LOCI_BAD_ARG, "exact" },
    GIVEN(4, 2, 8, .encoding = "rerope:pairing=half,window=4,values=1"), LOCI_BAD_ARG, "values" },
    GIVEN(4, 2, 8, .encoding = "rerope:pairing=half,window=4", .full = 1), LOCI_BAD_ARG,
    "rerope requires a causal plan, but full is 1" },
    GIVEN(4, 2, 8, .encoding = "rerope:pairing=half,window=4", .keys_rotated = 1), LOCI_BAD_ARG,
    "rerope: keys_rotated must be 0: a key is rotated differently for near and far rows" },
    GIVEN(4, 2, 8, .encoding = "rerope:pairing=half,window=4", .stage = LOCI_ROTATE), LOCI_BAD_ARG,
    "rerope does not support stage rotate" },
    GIVEN(4, 2, 8, .encoding = "rerope:pairing=half,window=4+rope:pairing=half"), LOCI_BAD_ARG,
    "both rotate q and k" },
    GIVEN(4, 2, 8, .encoding = "selfextend:pairing=half,window=4"), LOCI_BAD_ARG,
    "selfextend: the option group is required" },
    GIVEN(4, 2, 8, .encoding = "selfextend:pairing=half,group=3,window=4"), LOCI_BAD_ARG,
    "selfextend: window 4 must be a multiple of group 3" },
    GIVEN(4, 2, 8, .encoding = "selfextend:pairing=half,group=2,window=4", .keys_rotated = 1),
    LOCI_BAD_ARG, "selfextend: keys_rotated must be 0" },
    GIVEN(4, 2, 8, .encoding = "selfextend:pairing=half,group=2,window=4+xl"), LOCI_BAD_ARG,
    "xl reads queries or keys alone, but selfextend rotates them differently for near and far "
    "keys; leave one out" },
    GIVEN(4, 2, 9, .encoding = "pope", .full = 1), LOCI_OK, "" },
    GIVEN(4, 2, 512, .encoding = "pope", .keys_rotated = 1), LOCI_OK, "" },
    GIVEN(4, 2, 513, .encoding = "pope"), LOCI_BAD_ARG,
    "pope: dim 513 must be at most 512: scores read rows of 2 dim channels" },
    GIVEN(4, 2, 8, .encoding = "pope:dim=4"), LOCI_BAD_ARG, "unknown option 'dim'; known: base" },
    GIVEN(4, 2, 8, .encoding = "pope+rope:pairing=half"), LOCI_BAD_ARG,
    "pope and rope both rotate q and k" },
    GIVEN(4, 2, 8, .encoding = "shaw+pope"), LOCI_BAD_ARG,
    "shaw reads queries or keys alone, but pope makes wider rows of them; leave one out" },
    GIVEN(4, 2, 8, .encoding = "pope+cope"), LOCI_BAD_ARG, "leave one out" },
    GIVEN(4, 2, 8, .encoding = "pope", .stage = LOCI_ROTATE), LOCI_BAD_ARG,
    "pope does not support stage rotate" },
    GIVEN(4, 2, 8, .encoding = "pope", .stage = LOCI_LINEAR_ATTENTION), LOCI_BAD_ARG,
    "pope does not support stage linear_attention" },
    GIVEN(4, 2, 8, .encoding = "pope", .stage = LOCI_EMBED, .model_dim = 8), LOCI_BAD_ARG,
    "pope does not support stage embed" },
    GIVEN(4, 2, 8, .encoding = "dca:pairing=half,chunk=8"), LOCI_BAD_ARG,
    "dca: the option local is required" },
    GIVEN(4, 2, 8, .encoding = "dca:pairing=half,local=8"), LOCI_BAD_ARG,
    "dca: the option chunk is required" },
    GIVEN(4, 2, 8, .encoding = "dca:pairing=half,chunk=8,local=8"), LOCI_BAD_ARG,
    "dca: local 8 must be less than chunk 8" },
    GIVEN(4, 2, 8, .encoding = "dca:pairing=half,chunk=8,local=2", .keys_rotated = 1), LOCI_OK,
    "" },
    GIVEN(4, 2, 8, .encoding = "dca:pairing=half,chunk=8,local=2", .stage = LOCI_LINEAR_ATTENTION),
    LOCI_BAD_ARG, "dca does not support stage linear_attention" },
    GIVEN(4, 2, 8, .encoding = "cope+dca:pairing=half,chunk=8,local=2"), LOCI_BAD_ARG,
    "cope reads queries or keys alone, but dca rotates them differently" },
    GIVEN(4, 2, 8, .encoding = "shaw+dca:pairing=half,chunk=8,local=2"), LOCI_BAD_ARG,
    "leave one out" },
    GIVEN(4, 2, 8, .encoding = "deberta+dca:pairing=half,chunk=8,local=2"), LOCI_BAD_ARG,
    "leave one out" },
    GIVEN(4, 2, 8, .encoding = "tape+dca:pairing=half,chunk=8,local=2"), LOCI_BAD_ARG,
    "both rotate q and k" },
    GIVEN(4, 2, 8, .encoding = "cope:gates=v", .value_dim = 9), LOCI_BAD_ARG,
    "gates=v needs value_dim 9 to be dim 8" },
    GIVEN(4, 2, 8, .tensor_count = 1), LOCI_BAD_ARG, "tensors is NULL" },
    GIVEN(4, 2, 8, .tensor_count = -1), LOCI_BAD_ARG, "tensor_count -1" },
};
/* clang-format on */

static void descriptions(void)
{
    loci_error e;
    for (int i = 0; i < COUNT(wishes); i++) {
        loci_plan *p = plan_of(&wishes[i].d, &e);
        bool ok = wishes[i].status
                    ? !p && e.status == wishes[i].status && strstr(e.text, wishes[i].says)
                    : p != NULL;
        CHECK_THAT(ok, "wish %d: %s, wanted: %s", i, p ? "accepted" : e.text,
                   wishes[i].says ? wishes[i].says : "a plan");
        loci_plan_destroy(p);
    }
    loci_desc d = usual(NULL);
    loci_plan *p = NULL;
    CHECK_THAT(loci_plan_create(NULL, &d, &e) == LOCI_BAD_ARG && is_sentence(&e), "NULL: plan");
    CHECK_THAT(loci_plan_create(&p, NULL, &e) == LOCI_BAD_ARG && !p && is_sentence(&e),
               "NULL: desc");
    CHECK_THAT(loci_plan_create(&p, &d, NULL) == LOCI_OK && p, "NULL: error");
    loci_plan_destroy(p);
    d.heads = 0;
    CHECK_THAT(loci_plan_create(&p, &d, NULL) == LOCI_BAD_ARG && !p, "NULL: error, failing");
    loci_plan_destroy(NULL);
    CHECK_THAT(loci_tensors(NULL, NULL, 3) == 0 && loci_tables_size(NULL, 3) == 0
                   && loci_plan_text(NULL),
               "NULL: plan");
}

static void resolved(void)
{
    loci_error e;
    loci_desc d = usual("sba+rope:pairing=half");
    d.window_right = LOCI_NONE;
    d.value_dim = 5;
    loci_plan *p = plan_of(&d, &e);
    if (CHECK_THAT(p != NULL, "resolved: a plan")) {
        CHECK_THAT(p->heads == 4 && p->kv_heads == 2 && p->group == 2 && p->dim == 8
                       && p->value_dim == 5,
                   "resolved: shape");
        CHECK_THAT(p->window_left == INT64_MAX && p->window_right == 0, "resolved: windows");
        CHECK_THAT(p->uses == 2 && p->weight == 0 && p->rotate == 1 && p->mix == -1,
                   "resolved: places");
        CHECK_THAT(p->use[0].term == TERM_stick && p->use[1].term == TERM_pairs
                       && p->use[1].enc == 1,
                   "resolved: terms");
        CHECK_THAT(p->strict && !p->f64 && p->real == 4 && p->axes == 1 && !p->full,
                   "resolved: flags");
        CHECK_THAT(p->scale == 1 / sqrt(8), "resolved: scale");
    }
    loci_plan_destroy(p);
    d = usual("sba:current=1");
    d.dtype = LOCI_F64;
    d.scale = 0.25;
    d.window_left = 7;
    d.kv_heads = 0;
    p = plan_of(&d, &e);
    if (CHECK_THAT(p != NULL, "resolved: a plan in double"))
        CHECK_THAT(!p->strict && p->f64 && p->real == 8 && p->scale == 0.25 && p->window_left == 7
                       && p->kv_heads == 4 && p->value_dim == 8 && !strcmp(p->engine->isa, "f64"),
                   "resolved: in double");
    loci_plan_destroy(p);
}

/* In a locale that writes 0,5, options are read and written with a point.  Skipped if no such
 * locale is installed. */
static void locales(void)
{
    static const char *const names[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8",
                                         "pl_PL.UTF-8" };
    loci_error e;
    int i = 0;
    while (i < COUNT(names) && !setlocale(LC_ALL, names[i])) i++;
    if (i == COUNT(names)) return;
    loci_desc d = usual("t5:bias_scale=0.5");
    loci_plan *p = plan_of(&d, &e);
    CHECK_THAT(p && strstr(loci_plan_text(p), "bias_scale=0.5 "), "locale: %s", names[i]);
    loci_plan_destroy(p);
    d.encoding = "t5:bias_scale=0,5";
    CHECK_THAT(!plan_of(&d, &e), "locale: a comma ends an option");
    CHECK_THAT(strcmp(localeconv()->decimal_point, ",") == 0, "locale: is the program's again");
    setlocale(LC_ALL, "C");
}

/* ---- Tensors --------------------------------------------------------------------------------- */

enum { B = LOCI_DIM_BATCH, Q = LOCI_DIM_QUERIES, K = LOCI_DIM_KEYS };
static const struct {
    const char *text, *name;
    loci_role role;
    int rank;
    ptrdiff_t shape[5];
} wanted[] = {
    { "t5:buckets=16", "table", LOCI_LEARNED, 2, { 16, 4 } },
    { "alibi:slopes=given", "slopes", LOCI_LEARNED, 1, { 4 } },
    { "rope:pairing=half,freq=given,dim=6", "freq", LOCI_LEARNED, 1, { 3 } },
    { "alibi:slopes=both", "slope_k", LOCI_INPUT, 3, { B, 4, K } },
    { "alibi:slopes=both", "slope_q", LOCI_INPUT, 3, { B, 4, Q } },
    { "angles:pairing=half", "phi_q", LOCI_INPUT, 4, { B, 4, Q, 4 } },
    { "angles:pairing=half,dim=6", "phi_k", LOCI_INPUT, 4, { B, 2, K, 3 } },
    { "rope:pairing=half,positions=given", "z_q", LOCI_INPUT, 3, { B, 4, Q } },
    { "rope:pairing=half,positions=given", "z_k", LOCI_INPUT, 3, { B, 2, K } },
    { "pope", "delta", LOCI_LEARNED, 2, { 2, 8 } },
    { "ssmax", "s", LOCI_LEARNED, 1, { 4 } },
    { "ssmax:bias=1", "b", LOCI_LEARNED, 1, { 4 } },
    { "fox", "log_f", LOCI_INPUT, 3, { B, 4, K } },
    { "tape", "eq", LOCI_INPUT, 5, { B, 4, Q, 4, 2 } },
    { "tape", "ek", LOCI_INPUT, 5, { B, 4, K, 4, 2 } },
    { "xl", "w", LOCI_LEARNED, 3, { 4, 8, 32 } },
    { "xl", "v", LOCI_LEARNED, 2, { 4, 8 } },
    { "deberta:span=6,max_distance=20", "k", LOCI_LEARNED, 3, { 4, 12, 8 } },
    { "deberta:kind=v1,span=7,terms=p2c", "q", LOCI_LEARNED, 3, { 4, 14, 8 } },
    { "shaw:left=3,right=5", "k", LOCI_LEARNED, 2, { 9, 8 } },
    { "shaw:left=3,right=5", "v", LOCI_LEARNED, 2, { 9, 6 } },
    { "cope:npos=7", "e", LOCI_LEARNED, 2, { 7, 8 } },
    { "cope:npos=7,gates=given", "gate_k", LOCI_INPUT, 4, { B, 2, K, 8 } },
    { "sba:remainder=vector", "r", LOCI_LEARNED, 2, { 4, 6 } },
    { "sink", "logit", LOCI_LEARNED, 1, { 4 } },
    { "cape:hidden=5", "w1", LOCI_LEARNED, 2, { 5, 4 } },
    { "rope:pairing=half+cape:hidden=5", "w1", LOCI_LEARNED, 2, { 5, 4 } },
    { "shaw+cape:hidden=5", "w1", LOCI_LEARNED, 2, { 5, 4 } },
    { "cape:hidden=5+fox", "w1", LOCI_LEARNED, 2, { 5, 8 } },
    { "cape:hidden=5", "b1", LOCI_LEARNED, 1, { 5 } },
    { "cape:hidden=5", "w2", LOCI_LEARNED, 2, { 4, 5 } },
    { "cape:hidden=5", "b2", LOCI_LEARNED, 1, { 4 } },
};

static void shapes(void)
{
    loci_error e;
    loci_tensor list[MAX_TENSORS];
    for (int i = 0; i < COUNT(wanted); i++) {
        loci_desc d = usual(wanted[i].text);
        d.value_dim = 6;
        loci_plan *p = plan_of(&d, &e);
        int n = loci_tensors(p, list, MAX_TENSORS), found = 0;
        for (int k = 0; k < n; k++)
            found += !strcmp(list[k].name, wanted[i].name) && list[k].role == wanted[i].role
                  && list[k].rank == wanted[i].rank
                  && !memcmp(list[k].shape, wanted[i].shape, sizeof list[k].shape);
        CHECK_THAT(found == 1, "%s: %s", wanted[i].text, wanted[i].name);
        loci_plan_destroy(p);
    }
    loci_desc d = usual("t5+cape");
    loci_plan *p = plan_of(&d, &e);
    memset(list, 0, sizeof list);
    CHECK_THAT(loci_tensors(p, list, 2) == 5 && !strcmp(list[1].name, "w1") && !list[2].name,
               "loci_tensors: fills what fits");
    CHECK_THAT(loci_tensors(p, NULL, 0) == 5, "loci_tensors: counts");
    loci_plan_destroy(p);
}

/* clang-format off */
#define HELD(e, n, r, ...) { .encoding = e, .name = n, .rank = r, .shape = { __VA_ARGS__ } }
/* clang-format on */
static const struct {
    const char *text;
    loci_status status;
    const char *says;
    int n;
    loci_tensor held[3];
} forms[] = {
    { "t5", LOCI_OK, "", 1, { HELD("t5", "table", 2, 32, 4) } },
    { "t5",
      LOCI_BAD_ARG,
      "t5: tensor 'table' has shape [16,4], but must have [32,4]",
      1,
      { HELD("t5", "table", 2, 16, 4) } },
    { "t5",
      LOCI_BAD_ARG,
      "t5: tensor 'table' has shape [128], but must have [32,4]",
      1,
      { HELD("t5", "table", 1, 128) } },
    { "t5",
      LOCI_BAD_ARG,
      "t5: tensor 'table' has shape [B,4], but must have [32,4]",
      1,
      { HELD("t5", "table", 2, B, 4) } },
    { "t5",
      LOCI_BAD_ARG,
      "t5: tensor 'table' of shape [32,4] is missing",
      0,
      { HELD("", "", 0, 0) } },
    { "t5",
      LOCI_BAD_ARG,
      "t5 has no tensor 'tabel' here; it has: table",
      1,
      { HELD("t5", "tabel", 2, 32, 4) } },
    { "t5",
      LOCI_BAD_ARG,
      "belongs to clip, which the encoding text does not name",
      1,
      { HELD("clip", "table", 2, 32, 4) } },
    { "t5",
      LOCI_BAD_ARG,
      "is listed twice",
      2,
      { HELD("t5", "table", 2, 32, 4), HELD("t5", "table", 2, 32, 4) } },
    { "t5", LOCI_BAD_ARG, "must have an encoding and a name", 1, { HELD("t5", NULL, 2, 32, 4) } },
    { "t5",
      LOCI_BAD_ARG,
      "must have an encoding and a name",
      1,
      { HELD(NULL, "table", 2, 32, 4) } },
    { "t5", LOCI_BAD_ARG, "has rank 6", 1, { HELD("t5", "table", 6, 32, 4) } },
    { "t5", LOCI_BAD_ARG, "has rank -1", 1, { HELD("t5", "table", -1, 32, 4) } },
    { "alibi",
      LOCI_BAD_ARG,
      "alibi has no tensor 'slopes' here; it has: none",
      1,
      { HELD("alibi", "slopes", 1, 4) } },
    { "alibi:slopes=given", LOCI_OK, "", 1, { HELD("alibi", "slopes", 1, 4) } },
    { "alibi:slopes=given",
      LOCI_OK,
      "",
      2,
      { HELD("alibi", "slopes_right", 1, 4), HELD("alibi", "slopes", 1, 4) } },
    { "alibi:slopes=given",
      LOCI_BAD_ARG,
      "must have [4]",
      2,
      { HELD("alibi", "slopes_right", 1, 2), HELD("alibi", "slopes", 1, 4) } },
    { "alibi:slopes=given",
      LOCI_BAD_ARG,
      "'slopes' of shape [4] is missing",
      1,
      { HELD("alibi", "slopes_right", 1, 4) } },
    { "fox", LOCI_OK, "", 1, { HELD("fox", "log_f", 3, B, 4, K) } },
    { "fox", LOCI_OK, "", 1, { HELD("fox", "log_f", 3, 7, 4, 99) } },
    { "fox",
      LOCI_BAD_ARG,
      "has shape [7,2,99], but must have [B,4,Lk]",
      1,
      { HELD("fox", "log_f", 3, 7, 2, 99) } },
    { "fox",
      LOCI_BAD_ARG,
      "has shape [7,4,Lq], but must have [B,4,Lk]",
      1,
      { HELD("fox", "log_f", 3, 7, 4, LOCI_DIM_QUERIES) } },
    { "angles:pairing=half",
      LOCI_BAD_ARG,
      "has shape [7,4,9,3], but must have [B,4,Lq,4]",
      1,
      { HELD("angles", "phi_q", 4, 7, 4, 9, 3) } },
    { "rope:pairing=half,positions=given",
      LOCI_BAD_ARG,
      "has shape [7,4,9], but must have [B,2,Lk]",
      2,
      { HELD("rope", "z_q", 3, 7, 4, 9), HELD("rope", "z_k", 3, 7, 4, 9) } },
    { "alibi:slopes=keys",
      LOCI_BAD_ARG,
      "has shape [7,2,9], but must have [B,4,Lk]",
      1,
      { HELD("alibi", "slope_k", 3, 7, 2, 9) } },
    { "shaw:left=1,right=1",
      LOCI_OK,
      "",
      2,
      { HELD("shaw", "k", 3, 4, 3, 8), HELD("shaw", "v", 3, 4, 3, 8) } },
    { "shaw:left=1,right=1",
      LOCI_BAD_ARG,
      "'v' has shape [3,8], but must have [4,3,8]",
      2,
      { HELD("shaw", "k", 3, 4, 3, 8), HELD("shaw", "v", 2, 3, 8) } },
    { "shaw:left=1,right=1",
      LOCI_BAD_ARG,
      "'v' has shape [4,3,8], but must have [3,8]",
      2,
      { HELD("shaw", "k", 2, 3, 8), HELD("shaw", "v", 3, 4, 3, 8) } },
    { "cope:npos=3", LOCI_OK, "", 1, { HELD("cope", "e", 3, 4, 3, 8) } },
    { "cope:npos=3",
      LOCI_BAD_ARG,
      "has shape [2,3,8], but must have [4,3,8]",
      1,
      { HELD("cope", "e", 3, 2, 3, 8) } },
};

static void held_forms(void)
{
    loci_error e;
    for (int i = 0; i < COUNT(forms); i++) {
        loci_desc d = usual(forms[i].text);
        d.tensors = forms[i].held;
        d.tensor_count = forms[i].n;
        loci_plan *p = plan_of(&d, &e);
        bool ok = forms[i].status ? !p && strstr(e.text, forms[i].says) : p != NULL;
        CHECK_THAT(ok, "form %d, %s: %s, wanted: %s", i, forms[i].text, p ? "accepted" : e.text,
                   forms[i].says);
        loci_plan_destroy(p);
    }
}

/* What a layer makes of each input, and what training keeps numbers at. */
static void sources(void)
{
    static const struct {
        const char *text;
        loci_source source;
        double low;
    } want[] = {
        { "fox", LOCI_SOURCE_LOG_GATE, -INFINITY },
        { "t5:bidirectional=0+fox", LOCI_SOURCE_LOG_GATE, -INFINITY },
        { "cope:gates=given", LOCI_SOURCE_KEYS, -INFINITY },
        { "tape", LOCI_SOURCE_STATES, -INFINITY },
        { "kerple", LOCI_SOURCE_OTHER, 0.01 },
        { "kerple:kernel=log3,weight=1", LOCI_SOURCE_OTHER, 0.01 },
        { "alibi:slopes=given", LOCI_SOURCE_OTHER, -INFINITY },
    };
    {
        loci_error e;
        const loci_desc d = usual("path");
        loci_plan *p = plan_of(&d, &e);
        CHECK_THAT(p && loci_tensor_source(p, 0) == LOCI_SOURCE_UNIT
                       && loci_tensor_source(p, 1) == LOCI_SOURCE_STRENGTH,
                   "sources: w and beta of path");
        loci_plan_destroy(p);
    }
    for (int i = 0; i < COUNT(want); i++) {
        loci_error e;
        loci_tensor list[MAX_TENSORS];
        const loci_desc d = usual(want[i].text);
        loci_plan *p = plan_of(&d, &e);
        if (!CHECK_THAT(p != NULL, "sources: %s: %s", want[i].text, e.text)) continue;
        const int n = loci_tensors(p, list, MAX_TENSORS);
        CHECK_THAT(n > 0, "sources: %s has tensors", want[i].text);
        for (int t = 0; t < n; t++) {
            const loci_source source = loci_tensor_source(p, t);
            const double low = loci_tensor_low(p, t);
            CHECK_THAT(source == (list[t].role == LOCI_INPUT ? want[i].source : LOCI_SOURCE_OTHER),
                       "sources: %s: %s has %d", want[i].text, list[t].name, (int)source);
            CHECK_THAT(low == want[i].low, "low: %s: %s has %g", want[i].text, list[t].name, low);
        }
        loci_plan_destroy(p);
    }
}

/* Every start is what its file says: repeatable, another for another seed, as wide as wanted. */
static void starts(void)
{
    loci_error e;
    enum { N = 64 * 1024 };
    static float a[N], b[N];
    loci_desc d =
        LOCI_DESC(.encoding = "learned", .stage = LOCI_EMBED, .model_dim = 64, .max_len = 1024);
    loci_plan *p = plan_of(&d, &e);
    if (!CHECK_THAT(p != NULL, "start: learned")) return;
    loci_tensor_init(p, 0, 1, a);
    loci_tensor_init(p, 0, 1, b);
    CHECK_THAT(!memcmp(a, b, sizeof a), "start: repeats");
    loci_tensor_init(p, 0, 2, b);
    CHECK_THAT(memcmp(a, b, sizeof a) != 0, "start: depends on the seed");
    double sum = 0, square = 0;
    for (int i = 0; i < N; i++) {
        sum += a[i];
        square += (double)a[i] * a[i];
    }
    CHECK_THAT(fabs(sum / N) < 4e-4 && fabs(sqrt(square / N) - 0.02) < 4e-4, "start: normal, 0.02");
    loci_tensor_init(p, 1, 1, b);
    loci_tensor_init(p, -1, 1, b);
    loci_tensor_init(p, 0, 1, NULL);
    loci_plan_destroy(p);

    d = usual("cape:hidden=64");
    p = plan_of(&d, &e);
    loci_tensor_init(p, 0, 1, a);
    double low = 1, high = -1;
    for (int i = 0; i < 64 * 4; i++) {
        low = fmin(low, a[i]);
        high = fmax(high, a[i]);
    }
    CHECK_THAT(low >= -0.5 && low < -0.45 && high <= 0.5 && high > 0.45, "start: uniform");
    loci_plan_destroy(p);

    static const double official[12] = { 0.5,
                                         0.25,
                                         0.125,
                                         0.0625,
                                         0.03125,
                                         0.015625,
                                         0.0078125,
                                         0.00390625,
                                         0.70710678118654752,
                                         0.35355339059327376,
                                         0.17677669529663688,
                                         0.088388347648318447 };
    double slopes[12];
    d = usual("alibi:slopes=given");
    d.heads = 12;
    d.dtype = LOCI_F64;
    p = plan_of(&d, &e);
    loci_tensor_init(p, 0, 1, slopes);
    bool same = true;
    for (int h = 0; h < 12; h++)
        same = same && (h < 8 ? slopes[h] == official[h] : fabs(slopes[h] - official[h]) < 1e-16);
    CHECK_THAT(same, "start: alibi's slopes");
    loci_plan_destroy(p);
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static void tables(void)
{
    loci_error e;
    loci_desc d = usual("alibi:slopes=given");
    loci_plan *p = plan_of(&d, &e);
    if (!CHECK_THAT(p != NULL, "tables: a plan")) return;
    float slopes[4] = { 1, 2, 3, 4 };
    const void *tensors[] = { slopes }, *none[] = { NULL };
    size_t n = loci_tables_size(p, 100);
    CHECK_THAT(n == 128 && loci_tables_size(p, 0) && loci_tables_size(p, POWER(40)),
               "tables: size");
    CHECK_THAT(!loci_tables_size(p, -1) && !loci_tables_size(p, POWER(40) + 1),
               "tables: impossible size");
    _Alignas(64) char memory[192], other[192] = { 0 };
    memset(memory, 0xff, sizeof memory);
    CHECK_THAT(loci_check_tables(p, other, 0, &e) == LOCI_BAD_ARG && is_sentence(&e),
               "tables: never prepared");
    CHECK_THAT(loci_check_tables(p, NULL, 0, &e) == LOCI_BAD_ARG
                   && loci_check_tables(p, memory + 8, 0, &e) == LOCI_BAD_ARG,
               "tables: NULL, askew");
    CHECK_THAT(loci_prepare(p, 100, tensors, memory + 4) == LOCI_BAD_ARG, "prepare: askew");
    CHECK_THAT(loci_prepare(p, 100, tensors, NULL) == LOCI_BAD_ARG, "prepare: NULL");
    CHECK_THAT(loci_prepare(p, 100, none, memory) == LOCI_BAD_ARG
                   && loci_prepare(p, 100, NULL, memory) == LOCI_BAD_ARG,
               "prepare: no tensor");
    CHECK_THAT(loci_prepare(p, -1, tensors, memory) == LOCI_BAD_ARG
                   && loci_prepare(NULL, 1, tensors, memory) == LOCI_BAD_ARG,
               "prepare: range");
    CHECK_THAT(memory[0] == (char)0xff, "prepare: a failure writes nothing");
    CHECK_THAT(loci_prepare(p, 100, tensors, memory) == LOCI_OK && memory[n] == (char)0xff,
               "prepare: writes its size");
    CHECK_THAT(loci_prepare(p, 100, tensors, other) == LOCI_OK && !memcmp(memory, other, n),
               "prepare: repeats");
    CHECK_THAT(loci_check_tables(p, memory, 0, &e) == LOCI_OK && loci_table_range(memory) == 100,
               "tables: prepared");
    const float *table = loci_table_of(memory, p, 0);
    CHECK_THAT((const char *)table == memory + 64 && table[0] == 1 && table[1] == 1 && table[6] == 4
                   && table[7] == 4,
               "tables: alibi's slopes on both sides");
    loci_plan_destroy(p);

    d = usual("nope+rope:pairing=half");
    d.heads = 64;
    p = plan_of(&d, &e);
    CHECK_THAT(loci_check_tables(p, memory, 0, &e) == LOCI_BAD_ARG || loci_tables_size(p, 100) == n,
               "tables: of another plan");
    loci_plan_destroy(p);
}

/* ---- Embeddings ------------------------------------------------------------------------------ */

static loci_desc embedding(const char *text, int width)
{
    return (loci_desc)LOCI_DESC(.encoding = text, .stage = LOCI_EMBED, .model_dim = width,
                                .max_len = 9, .dtype = LOCI_F64);
}

static double wave(bool t2t, bool halves, int width, int column, double pos)
{
    int n = t2t ? width / 2 : (width + 1) / 2, cosine = halves ? column >= n : column % 2,
        t = halves ? column - cosine * n : column / 2;
    double angle = pos * pow(10000, t2t ? -(double)t / fmax(n - 1, 1) : -2.0 * t / width);
    return t >= n ? 0 : cosine ? cos(angle) : sin(angle);
}

static void sinusoids(void)
{
    static const char *const texts_of[] = { "sinusoidal", "sinusoidal:layout=halves",
                                            "sinusoidal:freq=t2t",
                                            "sinusoidal:freq=t2t,layout=halves" };
    static const int widths[] = { 1, 2, 3, 4, 13, 16, 300 };
    static const int64_t pos[] = { 0, 1, -3, 17, 100000 };
    loci_error e;
    for (int k = 0; k < COUNT(texts_of); k++)
        for (int w = 0; w < COUNT(widths); w++) {
            loci_desc d = embedding(texts_of[k], widths[w]);
            loci_plan *p = plan_of(&d, &e);
            void *memory = aligned_alloc(64, loci_tables_size(p, 0));
            double x[5 * 300];
            loci_prepare(p, 0, NULL, memory);
            for (int i = 0; i < COUNT(x); i++) x[i] = i;
            loci_call call = LOCI_CALL(.batch = 1, .q_len = 5, .q_pos = pos, .error = &e);
            bool ok =
                loci_embed(p, memory, &call, (loci_view){ x, 0, 0, 0 }, (loci_view){ x, 0, 0, 0 })
                == LOCI_OK;
            for (int i = 0; i < 5 * widths[w]; i++) {
                double want =
                    i + wave(k >= 2, k % 2, widths[w], i % widths[w], (double)pos[i / widths[w]]);
                ok = ok && fabs(x[i] - want) < 1e-9;
            }
            CHECK_THAT(ok, "%s: rows", texts_of[k]);
            free(memory);
            loci_plan_destroy(p);
        }
}

static void run_backwards(void *user, int n, void (*job)(void *arg, int index), void *arg)
{
    (void)user;
    while (n-- > 0) job(arg, n);
}
static int yes(void *user)
{
    (void)user;
    return 1;
}

static void learned_rows(void)
{
    enum { L = 200, W = 3, N = 9 };
    static double table[N * W], x[2 * L * W], y[2 * L * W], z[2 * L * W], dtable[N * W];
    int64_t pos[L];
    loci_error e;
    loci_desc d = embedding("learned", W);
    loci_plan *p = plan_of(&d, &e);
    for (int i = 0; i < N * W; i++) table[i] = i;
    for (int i = 0; i < 2 * L * W; i++) x[i] = 1000 + i % 7;
    for (int i = 0; i < L; i++) pos[i] = i * 7 % N;
    const void *tensors[] = { table };
    void *memory = aligned_alloc(64, loci_tables_size(p, 0));
    loci_prepare(p, 0, tensors, memory);

    loci_call call = LOCI_CALL(.batch = 2, .q_len = L, .q_pos = pos, .error = &e);
    loci_view in = { x, 0, 0, 0 }, out = { y, 0, 0, 0 };
    bool ok = loci_embed(p, memory, &call, in, out) == LOCI_OK;
    for (int i = 0; i < 2 * L * W; i++) ok = ok && y[i] == x[i] + table[pos[i / W % L] * W + i % W];
    CHECK_THAT(ok, "learned: rows");
    loci_host host = { .run = run_backwards, .threads = 1 };
    call.host = &host;
    ok = loci_embed(p, memory, &call, in, (loci_view){ z, 0, 0, 0 }) == LOCI_OK
      && !memcmp(y, z, sizeof y);
    CHECK_THAT(ok, "learned: rows by a host");
    host.cancelled = yes;
    CHECK_THAT(loci_embed(p, memory, &call, in, out) == LOCI_CANCELLED && is_sentence(&e),
               "learned: cancelled");
    call.host = NULL;

    size_t bytes = loci_embed_workspace(p, &call);
    void *work = aligned_alloc(64, bytes), *dtensors[] = { dtable }, *unwanted[] = { NULL };
    memset(work, 0xff, bytes);
    memset(dtable, 0xff, sizeof dtable);
    ok = loci_embed_backward(p, memory, work, &call, in, dtensors) == LOCI_OK;
    for (int i = 0; i < N * W; i++) {
        double sum = 0;
        for (int k = 0; k < 2 * L; k++) sum += pos[k % L] == i / W ? x[k * W + i % W] : 0;
        ok = ok && dtable[i] == sum;
    }
    CHECK_THAT(ok, "learned: gradient");
    CHECK_THAT(!loci_embed_backward(p, memory, work, &call, in, unwanted)
                   && !loci_embed_backward(p, memory, work, &call, in, NULL),
               "learned: gradient not wanted");

    pos[150] = N;
    memcpy(z, y, sizeof z);
    CHECK_THAT(loci_embed(p, memory, &call, in, out) == LOCI_BAD_ARG
                   && strstr(e.text, "position 9 of row 150 must be from 0 to 8")
                   && !memcmp(y, z, sizeof y),
               "learned: position outside");
    pos[150] = -1;
    CHECK_THAT(loci_embed(p, memory, &call, in, out) == LOCI_BAD_ARG, "learned: position before");
    CHECK_THAT(loci_embed_backward(p, memory, work, &call, in, dtensors) == LOCI_BAD_ARG,
               "learned: position before, backward");
    call = (loci_call)LOCI_CALL(.batch = 1, .q_len = 2, .k_len = 9, .error = &e);
    CHECK_THAT(!loci_embed(p, memory, &call, in, out) && y[0] == x[0] + table[7 * W],
               "learned: the last two of nine");
    call.k_len = 1;
    CHECK_THAT(loci_embed(p, memory, &call, in, out) == LOCI_BAD_ARG, "learned: k_len below q_len");
    call.k_len = 0;
    CHECK_THAT(loci_embed(p, NULL, &call, in, out) == LOCI_BAD_ARG
                   && loci_embed(p, memory, NULL, in, out) == LOCI_BAD_ARG
                   && loci_embed(NULL, memory, &call, in, out) == LOCI_BAD_ARG,
               "learned: NULL");
    CHECK_THAT(loci_embed(p, memory, &call, (loci_view){ 0 }, out) == LOCI_BAD_ARG
                   && loci_embed(p, memory, &call, in, (loci_view){ 0 }) == LOCI_BAD_ARG,
               "learned: NULL data");
    CHECK_SAYS(loci_embed(p, memory, &call, in, (loci_view){ y, 0, 0, 1 }), LOCI_BAD_ARG, &e,
               "overlap", "learned: overlapping rows");
    call.size = 8;
    CHECK_THAT(loci_embed(p, memory, &call, in, out) == LOCI_BAD_ARG, "learned: call.size");
    free(work);
    free(memory);
    loci_plan_destroy(p);
}

/* Rows of the textbooks' encodings, and the first position on either side without a row. */
static void textbook_rows(void)
{
    static const struct {
        const char *text;
        int width;
        int64_t pos;
        double row[3];
        int64_t limit;
    } rows[] = {
        { "index", 3, 16777216, { 16777216, 16777216, 16777216 }, 16777217 },
        { "normalised", 3, 2, { 0.25, 0.25, 0.25 }, 9 },
        { "normalised:length=101", 2, 100, { 1, 1 }, 101 },
        { "binary", 3, 6, { 0, 1, 1 }, 8 },
        { "binary", 1, 1, { 1 }, 2 },
    };
    loci_error e;
    for (int k = 0; k < COUNT(rows); k++) {
        loci_desc d = embedding(rows[k].text, rows[k].width);
        loci_plan *p = plan_of(&d, &e);
        void *memory = aligned_alloc(64, loci_tables_size(p, 0));
        double x[3] = { 0.5, 0.5, 0.5 };
        int64_t pos = rows[k].pos;
        loci_prepare(p, 0, NULL, memory);
        loci_call call = LOCI_CALL(.batch = 1, .q_len = 1, .q_pos = &pos, .error = &e);
        const loci_view view = { x, 0, 0, 0 };
        bool ok = loci_embed(p, memory, &call, view, view) == LOCI_OK;
        for (int i = 0; i < rows[k].width; i++) ok = ok && x[i] == 0.5 + rows[k].row[i];
        CHECK_THAT(ok, "%s: row", rows[k].text);
        for (int side = 0; side < 2; side++) {
            pos = side ? rows[k].limit : -1;
            CHECK_THAT(loci_embed(p, memory, &call, view, view) == LOCI_BAD_ARG && is_sentence(&e),
                       "%s: position outside", rows[k].text);
        }
        free(memory);
        loci_plan_destroy(p);
    }
}

/* ---- The list -------------------------------------------------------------------------------- */

static void list_of_encodings(void)
{
    const loci_encoding_info *list, *again;
    static const int dims[] = { 8, 12, 20, 64, 80, 128, 256, 512 };
    loci_error e;
    int n = loci_encodings(&list);
    int all = 0;
#define PE(name) all++;
#include "encodings/list.h"
#undef PE
    CHECK_THAT(n == all && loci_encodings(&again) == n && list == again
                   && loci_encodings(NULL) == n,
               "encodings: count");
    CHECK_THAT(!strcmp(list[0].name, "nope") && !strcmp(list[n - 1].name, "cape"),
               "encodings: order");
    for (int i = 0; i < n; i++) {
        const loci_encoding_info *x = &list[i];
        CHECK_THAT(x->cite && x->brief && x->example && x->options && x->tolerance > 0
                       && x->tolerance < 1e-4,
                   "%s: described", x->name);
        CHECK_THAT(strncmp(x->example, x->name, strlen(x->name)) == 0
                       && !x->options[x->option_count].name,
                   "%s: example", x->name);
        for (int o = 0; o < x->option_count; o++) {
            const loci_option *opt = &x->options[o];
            bool word = opt->kind == LOCI_WORD;
            const double value = opt->default_value;
            CHECK_THAT(opt->help && (word == (opt->words != NULL)) && (word || opt->min < opt->max)
                           && (opt->required ? isnan(value) : !word || !isnan(value)),
                       "%s: %s", x->name, opt->name);
            CHECK_THAT(isnan(value) || word || (value >= opt->min && value <= opt->max), "%s: %s",
                       x->name, opt->name);
        }
        for (int k = 0; k < COUNT(dims); k++) {
            loci_desc d =
                in_stage(x->example, x->places == LOCI_PLACE_EMBED ? LOCI_EMBED : LOCI_ATTENTION);
            d.dim = dims[k];
            loci_plan *p = plan_of(&d, &e);
            CHECK_THAT(p != NULL, "%s: example works: %s", x->name, e.text);
            loci_plan_destroy(p);
        }
    }
    CHECK_THAT(loci_version() == LOCI_VERSION && !strcmp(loci_version_text(), "0.3.0"),
               "version: %s", loci_version_text());
}

int main(void)
{
    texts();
    wild_texts();
    descriptions();
    resolved();
    locales();
    shapes();
    held_forms();
    sources();
    starts();
    tables();
    sinusoids();
    learned_rows();
    textbook_rows();
    list_of_encodings();
    return harness_end();
}
