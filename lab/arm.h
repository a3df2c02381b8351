/* SPDX-License-Identifier: MIT */
/* arm.h -- the subject of a comparison: an encoding, given as text.
 *
 *     alibi              as everywhere in loci; options that the text omits and the length of
 *                        training decides are filled in (t5's max_distance, rows of cope), and so
 *                        are those without a default
 *     sinusoidal+alibi   an encoding of embeddings, and one of attention
 *     fox-pro            the layer of the forgetting Transformer
 *     tape               passes its states from layer to layer
 *     rope@random        positions drawn in rising order from a longer range, in training and tests
 *
 * A variant tests a trained model in another way, without training:  rope@ntk. */
#ifndef LOCI_LAB_ARM_H
#define LOCI_LAB_ARM_H

#include <stdbool.h>

#include "lab/task.h"

enum { LAB_ARM = 128, LAB_TEXT = 256 };
enum lab_layer { LAB_PLAIN, LAB_FOX_PRO, LAB_TAPE };

struct lab_arm {
    char text[LAB_ARM];                        /* as given */
    char embed[LAB_TEXT], attention[LAB_TEXT]; /* in full; embed "": nothing is added */
    enum lab_layer layer;
    bool random;
    int range; /* of random positions; 0: none */
};
/* length: L, the longest sequence of training; longest: of the tests; dim: a head's width. */
loci_status lab_arm_parse(struct lab_arm *, const char *text, int length, int longest, int dim,
                          loci_error *);

/* lab_arm_part(): the part of an encoding text that is this encoding, of *n characters (NULL: not
 * needed), or NULL.  The other: the number that one of its options has there, or NaN. */
const char *lab_arm_part(const char *text, const char *encoding, size_t *n);
double lab_arm_option(const char *text, const char *encoding, const char *option);

/* The places of an arm, as in `loci list`: "score", "embed+rotate"; "nothing" for nope. */
void lab_arm_family(const struct lab_arm *, char family[LAB_NAME * 2]);

/* The built-in arms of the lab, in the order of the report. */
struct lab_known {
    const char *text;
    bool chief;
}; /* chief: one of the main eight */
int lab_known_arms(const struct lab_known **list);
/* Encodings of `loci list` that no arm of the lab has, with the reason. */
struct lab_left_out {
    const char *name, *why;
};
int lab_left_out(const struct lab_left_out **list);

/* ---- Variants -------------------------------------------------------------------------------- */

enum lab_change {
    LAB_AS_TRAINED,
    LAB_PI,
    LAB_NTK,
    LAB_YARN,
    LAB_DYNAMIC,
    LAB_INTERPOLATE,
    LAB_WINDOW,
    LAB_LOGN,
    LAB_CHANGES
};
const char *lab_change_name(enum lab_change);
bool lab_change_fits(enum lab_change, const struct lab_arm *);
/* The attention of a variant, for sequences `times` the length of training. */
loci_status lab_change_text(enum lab_change, const struct lab_arm *, int length, double times,
                            char text[LAB_TEXT], loci_error *);

#endif
