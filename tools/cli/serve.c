/* SPDX-License-Identifier: MIT */
/* serve.c -- see serve.h: answers the calls of another process. */
#include <stdlib.h>
#include <string.h>

#include "cli/json.h"
#include "cli/serve.h"

static void print_ready(const struct contender *c)
{
    json_t *j = json_object();
    json_object_set_new(j, "serve", json_integer(1));
    json_object_set_new(j, "loci", json_string(loci_version_text()));
    json_object_set_new(j, "steps", json_integer(c->steps));
    json_object_set_new(j, "workspace_bytes", json_integer((json_int_t)c->main.work_bytes));
    json_print(j);
}

static void print_call(const struct call *call)
{
    json_t *j = json_object();
    json_object_set_new(j, "seconds", json_real(call->seconds));
    json_object_set_new(j, "before", json_real(call->before));
    json_object_set_new(j, "after", json_real(call->after));
    json_object_set_new(j, "flops", json_real(call->flops));
    json_object_set_new(j, "taken", json_real(call->taken));
    json_print(j);
}

/* Calls are minutes or microseconds apart, so each has its own probe before it. */
static bool answer(struct problem *p, struct contender *c)
{
    char line[32];
    while (fgets(line, sizeof line, stdin)) {
        struct call call;
        double probe = 0;
        int64_t steps;
        line[strcspn(line, "\n")] = 0;
        if (!parse_whole(line, &steps) || steps < 1 || steps > MOST_STEPS)
            return refuse("bench: --serve reads a number of steps from 1 to %d per line, not '%s'",
                          MOST_STEPS, line);
        if (!contender_call(p, c, (int)steps, &probe, &call)) return false;
        print_call(&call);
    }
    return true;
}

int serve(struct problem *p, const char *encoding)
{
    struct contender c = { 0 };
    problem_open(p);
    bool ok = contender_open(p, &c, encoding);
    if (ok) {
        print_ready(&c);
        ok = answer(p, &c);
    }
    contender_close(&c);
    problem_close(p);
    return ok ? EXIT_DONE : EXIT_ERROR;
}
