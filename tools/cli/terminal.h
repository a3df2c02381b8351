/* SPDX-License-Identifier: MIT */
/* terminal.h -- where figures of the program go. */
#ifndef LOCI_CLI_TERMINAL_H
#define LOCI_CLI_TERMINAL_H

#include "draw/figure.h"

/* COLUMNS, else the terminal's own; a pipe has 80 and no colours. */
struct terminal terminal(void);
/* Prints, or writes whole or not at all, and frees; what the command returns. */
int print_text(struct text *), write_text(struct text *, const char *path);

#endif
