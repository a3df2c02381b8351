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
 *                                     at the start; like: the tensor that this one repeats
 *     SIZE(name, .field = value, ...)     fields of struct lab_config
 *     STEPS(task, steps)              training of a task if nothing else is said: of `overnight` */
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

ARM("nope", true)
ARM("sinusoidal", true)
ARM("learned", false)
ARM("index", false)
ARM("normalised", false)
ARM("binary", false)
ARM("alibi", true)
ARM("t5", true)
ARM("clip", false)
ARM("kerple", true)
ARM("sandwich", false)
ARM("fire", false)
ARM("rope", true)
ARM("xpos", false)
ARM("rope2d", false)
ARM("mixed", false)
ARM("comrope", false)
ARM("liere", false)
ARM("fope", false)
ARM("tape", false)
ARM("fox", true)
ARM("fox-pro", false)
ARM("shaw", false)
ARM("xl", false)
ARM("deberta", false)
ARM("cope", false)
ARM("sba", true)
ARM("alibi+cape", false)
ARM("kerple+cape", false)
ARM("fire+cape", false)

LEFT_OUT("mrope", "with one axis it is rope")
LEFT_OUT("angles", "its angles are what a layer makes them: angles:pairing=half is an arm, see "
                   "lab/inputs.c")
LEFT_OUT("rerope", "it reads longer texts than trained ones: a variant of a test of rope")
LEFT_OUT("selfextend", "likewise a variant of a test of rope")
LEFT_OUT("dca", "likewise a variant of a test of rope")
LEFT_OUT("ssmax", "it scales scores and says nothing of positions: rope+ssmax is an arm")
LEFT_OUT("logn", "it scales scores beyond the trained length: rope+logn is a variant of a test")
LEFT_OUT("softcap", "it bends scores and says nothing of positions: rope+softcap:cap=50 is an arm")
LEFT_OUT("sink", "it adds to the softmax's sum and says nothing of positions: rope+sink is an arm")

LAYER("fox-pro", LAB_FOX_PRO, "fox")

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

USUAL("rope", "pairing", .word = "half")
USUAL("rerope", "pairing", .word = "half")
USUAL("rerope", "window", .of_length = 0.5, .least = 1)
USUAL("selfextend", "pairing", .word = "half")
USUAL("dca", "pairing", .word = "half")
USUAL("dca", "chunk", .of_length = 0.75, .least = 3)
USUAL("dca", "local", .of_length = 0.125, .least = 1)
USUAL("t5", "bidirectional", .word = "0")
USUAL("t5", "max_distance", .of_length = 0.5, .least = 20, .rows = "buckets of distances")
USUAL("clip", "max", .of_length = 0.25, .least = 2, .rows = "biases of distances")
USUAL("shaw", "left", .of_length = 0.25, .least = 2, .rows = "vectors of distances")
USUAL("shaw", "right", .of_length = 0.25, .least = 2)
/* counts 0 .. L, a token itself too */
USUAL("cope", "npos", .of_length = 1, .plus = 1, .rows = "vectors of positions")
USUAL("fire", "threshold", .of_length = 0.5)
USUAL("deberta", "span", .of_length = 0.25, .least = 4)
USUAL("deberta", "max_distance", .of_length = 0.5, .least = 8, .rows = "vectors of distances")
USUAL("fope", "train_length", .of_length = 1)
USUAL("normalised", "length", .of_longest = 1)
USUAL("mixed", "axes", .word = "1")
USUAL("comrope", "axes", .word = "1")
USUAL("liere", "axes", .word = "1")
USUAL("liere", "block", .of_dim = 1)

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
STEPS(copy, 3000)
STEPS(copy1, 2000)
STEPS(reverse, 2500)
STEPS(add, 3000)
STEPS(count, 3000)
STEPS(selcopy, 2000)
STEPS(passkey, 2000)
STEPS(parity, 1000)

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
