/* SPDX-License-Identifier: MIT */
/* serve.h -- calls made by other processes, so that two builds of the program can be measured
 * alternately.  `loci bench ENCODING ... --serve` opens a problem, reports it, and then makes a
 * call for every line that it reads.
 *
 *     {"serve":1,"loci":"0.2.0","steps":37,"workspace_bytes":81920}       when it is ready
 *     37                                                                  a call of 37 steps
 *     {"seconds":0.00013,"before":1.1e11,"after":1.2e11,"flops":1.2e11,"taken":0.0}
 *                                                                         as in struct call */
#ifndef LOCI_CLI_SERVE_H
#define LOCI_CLI_SERVE_H

#include "cli/problem.h"

enum { MOST_STEPS = 1000000 }; /* of a call */

/* Answers until stdin ends.  Returns the program's exit code. */
int serve(struct problem *, const char *encoding);

struct server {
    const char *program; /* NULL: this program */
    long pid;
    int to;
    FILE *from, *said; /* said: its stderr */
    int steps;
    size_t workspace;
    char version[32];
};

/* Starts a process, and returns once it has opened the problem.  Both print their error, one
 * sentence whatever the program turns out to be, and return false.  You may close a server either
 * way, also one that is all zero. */
bool server_open(struct server *, struct problem *, const char *encoding, const char *program);
bool server_call(struct server *, int steps, struct call *);
void server_close(struct server *);

#endif
