/* SPDX-License-Identifier: MIT */
/* serve_client_none.c -- replaces serve_client.c where a program cannot fork. */
#include "cli/serve.h"

bool server_open(struct server *s, struct problem *p, const char *encoding, const char *program)
{
    (void)p, (void)encoding;
    *s = (struct server){ .program = program };
    return refuse("bench: a second process is not supported on this system; without --against all "
                  "calls are made in this one");
}
bool server_call(struct server *s, int steps, struct call *call)
{
    (void)s, (void)steps, (void)call;
    return false;
}
void server_close(struct server *s) { *s = (struct server){ 0 }; }
