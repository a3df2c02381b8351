/* SPDX-License-Identifier: MIT */
/* list.h -- what the lab says of encodings and tasks by their names, and its sizes.  Define the
 * lines that you read; the others are empty.
 *
 *     ARM(text, chief)                an arm of the presets, in the order of the report; chief: one
 *                                     of the main eight
 *     LEFT_OUT(name, why)             an encoding that no arm has
 *     LAYER(name, kind, encoding)     an arm that is a layer around an encoding, and stands alone
 *     QUICK(text)                     an arm where four are enough
 *     DRAWN(text)                     an arm that is trained at random positions
 *     REFERENCE(text)                 an arm that tables compare all others with
 *     USUAL(encoding, option, ...)    a value where the text of an arm gives none: a word, or a
 *                                     number that follows from the length of training, from the
 *                                     longest test or from a head's width; rows: what the option
 *                                     counts, if training may not reach all of them
 *     INPUT(encoding, tensor, ...)    what the model makes an input of: see inputs.c; start: the b
 *                                     at the start, open: in an arm @open; like: the tensor that
 *                                     this one repeats; named: a letter in the names of W and b,
 *                                     which are numbered otherwise
 *     SIZE(name, .field = value, ...)     fields of struct lab_config
 *     STEPS(task, steps)              training of a task if nothing else is said: of `overnight`
 *     WIDE(encoding, option, ...)     likewise in an arm @wide, instead of all USUAL lines of the
 *                                     encoding
 *     RANGE(encoding, size)           coordinates of an encoding of pictures: L tokens of a text
 *                                     fill the range that its authors' pictures had
 *     HEAD(encoding, width)           narrower heads have too few frequencies: a warning
 *
 * One rule for all that depends on the length L of training:
 *
 *     L/2         a distance where an encoding changes its form, or its scale
 *     L/4         a table with a row for each distance; L - 1, all that training meets, in @wide
 *     L           what the encoding's authors tie to it: a position or a count per row of a table
 *     longest     the positions that an encoding divides by the length of a text */
#ifndef ARM
#define ARM(text, chief)
#endif
#ifndef LEFT_OUT
#define LEFT_OUT(name, why)
#endif
#ifndef LAYER
#define LAYER(name, kind, encoding)
#endif
#ifndef QUICK
#define QUICK(text)
#endif
#ifndef DRAWN
#define DRAWN(text)
#endif
#ifndef REFERENCE
#define REFERENCE(text)
#endif
#ifndef USUAL
#define USUAL(encoding, option, ...)
#endif
#ifndef INPUT
#define INPUT(encoding, tensor, ...)
#endif
#ifndef SIZE
#define SIZE(name, ...)
#endif
#ifndef STEPS
#define STEPS(task, steps)
#endif
#ifndef WIDE
#define WIDE(encoding, option, ...)
#endif
#ifndef RANGE
#define RANGE(encoding, size)
#endif
#ifndef HEAD
#define HEAD(encoding, width)
#endif

ARM("nope", true)
ARM("sinusoidal", true)
ARM("learned", false)
ARM("index", false)
ARM("normalised", false)
ARM("binary", false)
ARM("alibi", true)
ARM("alibi:slopes=keys", false)
ARM("t5", true)
ARM("clip", false)
ARM("kerple", true)
ARM("sandwich", false)
ARM("fire", false)
ARM("rope", true)
ARM("rope:positions=given", false)
ARM("angles:pairing=half", false)
ARM("pope", false)
ARM("xpos", false)
ARM("rope2d", false)
ARM("mixed", false)
ARM("comrope", false)
ARM("liere", false)
ARM("fope", false)
ARM("tape", false)
ARM("path", false)
ARM("wall", false)
ARM("fox", true)
ARM("fox@open", false)
ARM("fox-pro", false)
ARM("nope-pro", false)
ARM("rope-pro", false)
ARM("shaw", false)
ARM("shaw@wide", false)
ARM("xl", false)
ARM("deberta", false)
ARM("deberta@wide", false)
ARM("cope", false)
ARM("sba", true)
ARM("alibi+cape", false)
ARM("kerple+cape", false)
ARM("fire+cape", false)

LEFT_OUT("mrope", "with one axis it is rope")
LEFT_OUT("rerope", "it reads longer texts than trained ones: a variant of a test of rope")
LEFT_OUT("selfextend", "likewise a variant of a test of rope")
LEFT_OUT("dca", "likewise a variant of a test of rope")
LEFT_OUT("ssmax", "it scales scores and says nothing of positions: rope+ssmax is an arm")
LEFT_OUT("logn", "it scales scores beyond the trained length: rope+logn is a variant of a test")
LEFT_OUT("softcap", "it bends scores and says nothing of positions: rope+softcap:cap=50 is an arm")
LEFT_OUT("sink", "it adds to the softmax's sum and says nothing of positions: rope+sink is an arm")

LAYER("fox-pro", LAB_FOX_PRO, "fox")
/* its controls: the same layer without forget gates */
LAYER("nope-pro", LAB_FOX_PRO, "nope")
LAYER("rope-pro", LAB_FOX_PRO, "rope")

QUICK("nope")
QUICK("rope")
QUICK("alibi")
QUICK("fox")

DRAWN("sinusoidal@random")
DRAWN("rope@random")
DRAWN("alibi@random")
DRAWN("fire@random")

REFERENCE("rope")
REFERENCE("nope")

/* words that a text must give */
USUAL("rope", "pairing", .word = "half")
USUAL("rerope", "pairing", .word = "half")
USUAL("selfextend", "pairing", .word = "half")
USUAL("dca", "pairing", .word = "half")
USUAL("t5", "bidirectional", .word = "0")
USUAL("mixed", "axes", .word = "1")
USUAL("comrope", "axes", .word = "1")
USUAL("liere", "axes", .word = "1")
USUAL("liere", "block", .of_dim = 1)

/* L/2 */
USUAL("rerope", "window", .of_length = 0.5, .least = 1)
USUAL("t5", "max_distance", .of_length = 0.5, .least = 20, .rows = "buckets of distances")
USUAL("fire", "threshold", .of_length = 0.5)
USUAL("xpos", "scale_base", .of_length = 0.5, .least = 1) /* its authors: 512 of 1024 */
USUAL("deberta", "max_distance", .of_length = 0.5, .least = 8, .rows = "vectors of distances")

/* L/4, and L - 1 in @wide */
USUAL("clip", "max", .of_length = 0.25, .least = 2, .rows = "biases of distances")
USUAL("shaw", "left", .of_length = 0.25, .least = 2, .rows = "vectors of distances")
USUAL("shaw", "right", .of_length = 0.25, .least = 2)
USUAL("deberta", "span", .of_length = 0.25, .least = 4)
WIDE("clip", "max", .of_length = 1, .plus = -1)
WIDE("shaw", "left", .of_length = 1, .plus = -1)
WIDE("shaw", "right", .of_length = 1, .plus = -1)
WIDE("deberta", "kind", .word = "v1") /* a row for each distance, up to span */
WIDE("deberta", "span", .of_length = 1)

/* L; counts of cope are 0 .. L, a token itself too */
USUAL("cope", "npos", .of_length = 1, .plus = 1, .rows = "vectors of positions")
USUAL("fope", "train_length", .of_length = 1)

/* parts of L, in the proportions of ChunkLlama */
USUAL("dca", "chunk", .of_length = 0.75, .least = 3)
USUAL("dca", "local", .of_length = 0.125, .least = 1)

/* the longest test */
USUAL("normalised", "length", .of_longest = 1)

RANGE("mixed", 14) /* patches of a picture of 224 pixels */
RANGE("comrope", 1)
RANGE("liere", 1)

HEAD("fope", 64) /* as its authors have */

INPUT("fox", "log_f", .made = LAB_LOG_SIGMOID, .named = "f", .open = 2) /* its authors start at 0 */
INPUT("cope", "gate_k", .made = LAB_PROJECTION, .named = "g")
INPUT("angles", "phi_k", .made = LAB_RUNNING)
INPUT("angles", "phi_q", .made = LAB_RUNNING, .like = "phi_k")
INPUT("rope", "z_k", .made = LAB_POSITION)
INPUT("rope", "z_q", .made = LAB_POSITION, .like = "z_k")
INPUT("wall", "log_f", .made = LAB_LOG_SIGMOID, .start = 2)
INPUT("path", "w", .made = LAB_UNIT)
INPUT("path", "beta", .made = LAB_STRENGTH)
INPUT("alibi", "slope_k", .made = LAB_SOFTPLUS, .start = -2)
INPUT("alibi", "slope_q", .made = LAB_SOFTPLUS, .start = -2)

SIZE("XS", .layers = 2, .dim = 32, .heads = 4, .length = 32, .tokens = 512, .rate = 6e-3)
SIZE("S", .layers = 2, .dim = 64, .heads = 4, .length = 64, .tokens = 2048, .rate = 3e-3)
SIZE("M", .layers = 3, .dim = 128, .heads = 4, .length = 128, .tokens = 4096, .rate = 2e-3)
SIZE("L", .layers = 4, .dim = 256, .heads = 8, .length = 256, .tokens = 8192, .rate = 1e-3)

STEPS(text, 1500)
STEPS(flipflop, 500)
STEPS(recall, 3000)
STEPS(mqar, 3000)
STEPS(induct, 3000)
STEPS(copy, 3000)
STEPS(copy1, 2000)
STEPS(reverse, 2500)
STEPS(add, 3000)
STEPS(addhint, 3000)
STEPS(count, 3000)
STEPS(selcopy, 2000)
STEPS(passkey, 2000)
STEPS(parity, 1000)
STEPS(evenpairs, 1000)
STEPS(modular, 2000)
STEPS(permute, 3000)

#undef ARM
#undef LEFT_OUT
#undef LAYER
#undef QUICK
#undef DRAWN
#undef REFERENCE
#undef USUAL
#undef INPUT
#undef SIZE
#undef STEPS
#undef WIDE
#undef RANGE
#undef HEAD
