/* SPDX-License-Identifier: MIT */
/* usual.h -- sizes of the lab, and how many steps a task is trained if nobody says otherwise: those
 * of `overnight`.  Define the lines that you read; the others are empty.
 *
 *     SIZE(name, .field = value, ...)     fields of struct lab_config, or of a struct that has them
 *     STEPS(task, steps) */
#ifndef SIZE
#define SIZE(name, ...)
#endif
#ifndef STEPS
#define STEPS(task, steps)
#endif

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

#undef SIZE
#undef STEPS
