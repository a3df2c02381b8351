/* SPDX-License-Identifier: MIT */
/* stick.h -- the options of sba, which its term also reads. */
#ifndef LOCI_LAYOUT_STICK_H
#define LOCI_LAYOUT_STICK_H

#include "contract/call.h"

enum { STICK_CURRENT, STICK_REMAINDER, STICK_STOP };
enum { REMAINDER_NONE, REMAINDER_VALUE, REMAINDER_VECTOR };

/* The options of the encoding that term x of the plan belongs to. */
static inline const struct config *stick_config(const struct call *c, int x)
{
    return &c->plan->enc[c->plan->use[x].enc];
}
static inline int stick_remainder(const struct call *c, int x)
{
    return (int)stick_config(c, x)->opt[STICK_REMAINDER];
}

#endif
