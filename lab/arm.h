/* SPDX-License-Identifier: MIT */
/* arm.h -- the subject of a comparison: an encoding, given as text.
 *
 *     alibi              as everywhere in loci; what a text leaves open and the length of training
 *                        decides is filled in (t5's max_distance, rows of cope), and so is what
 *                        has no usual value
 *     sinusoidal+alibi   what is added to embeddings, and what attention knows
 *     fox-pro            the layer of the forgetting Transformer; nope-pro, rope-pro: the same
 *                        without forget gates
 *     tape               whose states go from layer to layer
 *     bias:file=X        a table of biases from a file, fixed or learned: see bias.h
 *     rope@random        positions drawn in rising order from a longer range, in training and tests
 *     shaw@wide          tables of distances that reach all that training meets
 *     fox@open           forget gates that hardly forget at first: their bias starts at 2, not 0
 *
 * A variant tests a trained model in another way, without training:  rope@ntk. */
#ifndef LOCI_LAB_ARM_H
#define LOCI_LAB_ARM_H

#include <stdbool.h>

#include "lab/bias.h"
#include "lab/task.h"

enum { LAB_ARM = 128, LAB_TEXT = 256 };
enum lab_layer { LAB_PLAIN, LAB_FOX_PRO, LAB_TAPE };

struct lab_arm {
    char text[LAB_ARM];                        /* as given */
    char embed[LAB_TEXT], attention[LAB_TEXT]; /* in full; embed "": nothing is added */
    enum lab_layer layer;
    bool random, wide, open;
    int range;   /* of random positions; 0: none */
    double unit; /* coordinates per token; 0: the positions themselves */
    /* by distance it is the table of the encoding lab_bias_encoding, which is in `attention` */
    struct lab_bias bias;
};
extern const char lab_bias_encoding[];
bool lab_arm_bias_by_distance(const struct lab_arm *);
/* Positions that a bias by row and key has, or the largest number there is. */
ptrdiff_t lab_arm_reach(const struct lab_arm *);
/* length: L, the longest sequence of training; longest: of the tests; dim: a head's width. */
loci_status lab_arm_parse(struct lab_arm *, const char *text, int length, int longest, int dim,
                          loci_error *);

/* The part of an encoding text that is this encoding, of *n characters (NULL: not wanted), or NULL;
 * the first one whose encoding has this option, or acts in one of these places (LOCI_PLACE_...);
 * the number that an option has there, or NaN (encoding NULL: of the first that has the option). */
const char *lab_arm_part(const char *text, const char *encoding, size_t *n);
const char *lab_arm_with(const char *text, const char *option, size_t *n);
const char *lab_arm_at(const char *text, int places, size_t *n);
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
/* An arm that is a layer around an encoding; NULL: the name, of n characters, is none. */
struct lab_around {
    const char *name;
    enum lab_layer layer;
    const char *encoding;
};
const struct lab_around *lab_arm_around(const char *name, size_t n);
/* The encoding that a part of an arm is about, by its name of n characters.  NULL: none. */
struct loci_pe;
const struct loci_pe *lab_arm_pe(const char *name, size_t n);
/* What a text leaves open and the lab decides: a word, or a number.  Tables that reach beyond the
 * trained window would have rows that are never trained. */
struct lab_usual {
    const char *encoding, *option, *word;
    double of_length, of_longest, of_dim, plus, least;
    const char *rows; /* what the option counts, or NULL */
};
int lab_usuals(const struct lab_usual **list);
/* The name of an encoding that wants wider heads, and their width; NULL: none does. */
const char *lab_arm_narrow(const struct lab_arm *, int head, int *width);
/* Is the arm more than an encoding in the same Transformer?  Such rows of a table are marked. */
bool lab_is_layer(const char *arm);

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
    LAB_REROPE,
    LAB_SELFEXTEND,
    LAB_DCA,
    LAB_CHANGES
};
const char *lab_change_name(enum lab_change);
bool lab_change_fits(enum lab_change, const struct lab_arm *);
/* The attention of a variant, for sequences `times` the length of training. */
loci_status lab_change_text(enum lab_change, const struct lab_arm *, int length, double times,
                            char text[LAB_TEXT], loci_error *);

#endif
