/* SPDX-License-Identifier: MIT */
/* terminal.h -- output of figures by the program. */
#ifndef LOCI_CLI_TERMINAL_H
#define LOCI_CLI_TERMINAL_H

#include "draw/figure.h"

/* COLUMNS, else the terminal's own width.  A pipe has 80 and no colours. */
struct terminal terminal(void);
/* Print the text, or write it completely or not at all, and free it.  Return the command's exit
 * code. */
int print_text(struct text *), write_text(struct text *, const char *path);

#endif
