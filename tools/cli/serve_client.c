/* SPDX-License-Identifier: MIT */
/* serve_client.c -- see serve.h: starts other processes and makes calls in them. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/json.h"
#include "cli/serve.h"

/* Spells out the whole problem, since defaults may differ between builds. */
static void run_program(const struct problem *p, const char *encoding, const char *program)
{
    char len[24], rows[24], number[5][16], values[16], dropout[32];
    const int numbers[] = { p->dim, p->heads, p->kv_heads, p->batch, p->threads };
    const char *const names[] = { "--dim", "--heads", "--kv-heads", "--batch", "--threads" };
    const char *argv[40] = { program,   "bench",
                             encoding,  "--serve",
                             "--pass",  pass_names[p->pass],
                             "--dtype", dtype_names[p->dtype],
                             "--isa",   p->isa,
                             "--len",   len };
    int n = 12;
    snprintf(len, sizeof len, "%td", p->len);
    snprintf(rows, sizeof rows, "%td", p->rows);
    for (int i = 0; i < COUNT(numbers); i++) {
        snprintf(number[i], sizeof number[i], "%d", numbers[i]);
        argv[n++] = names[i];
        argv[n++] = number[i];
    }
    if (p->pass == CHUNK) {
        argv[n++] = "--rows";
        argv[n++] = rows;
    }
    if (p->kv_dtype) {
        argv[n++] = "--kv-dtype";
        argv[n++] = kv_dtype_name(p);
    }
    if (p->values_in_keys) {
        snprintf(values, sizeof values, "%d", p->values_in_keys);
        argv[n++] = "--values-in-keys";
        argv[n++] = values;
    }
    if (p->cached) argv[n++] = "--cache";
    if (p->fast) argv[n++] = "--fast";
    if (p->full) argv[n++] = "--full";
    if (p->lasting) argv[n++] = "--lasting";
    if (p->dropout > 0) {
        snprintf(dropout, sizeof dropout, "%.17g", p->dropout);
        argv[n++] = "--dropout";
        argv[n++] = dropout;
    }
    execvp(program, (char *const *)argv);
    fprintf(stderr, "cannot be started: %s\n", strerror(errno));
    _exit(EXIT_ERROR);
}

/* Forks this program rather than starting it: it already knows the problem, and both processes have
 * the same age.  Threads do not survive a fork, so they start afterwards. */
static int serve_forked(struct problem *p, const char *encoding)
{
    loci_host pool;
    if (p->threads > 1) {
        if (loci_pool_create(&pool, p->threads))
            return fail("bench: cannot start %d threads", p->threads);
        p->host = &pool;
    }
    const int code = serve(p, encoding);
    if (p->host) loci_pool_destroy(&pool);
    return code;
}

/* Closes the server's stdin, which ends it, even if another process has inherited this end of the
 * pipe. */
static void end(struct server *s)
{
    if (s->from) {
        shutdown(s->to, SHUT_RDWR);
        fclose(s->from);
    }
    if (s->pid > 0) waitpid((pid_t)s->pid, NULL, 0);
    s->from = NULL;
    s->pid = 0;
}

void server_close(struct server *s)
{
    end(s);
    if (s->said) fclose(s->said);
    *s = (struct server){ 0 };
}

/* The error is the first line of its stderr, without our program's name in front.  A program that
 * is not loci may run for ever. */
static bool failed(struct server *s)
{
    char said[512];
    if (s->program) kill((pid_t)s->pid, SIGTERM);
    end(s);
    rewind(s->said);
    if (!fgets(said, sizeof said, s->said)) said[0] = 0;
    said[strcspn(said, "\n")] = 0;
    const char *text = strncmp(said, "loci: ", 6) ? said : said + 6;
    if (!s->program)
        return refuse("%s", *text ? text : "bench: a process ended before it answered");
    if (!*text) text = "it does not answer as 'loci bench --serve' does";
    if (strstr(text, "unknown option '--serve'"))
        text = "it is an older loci, without 'bench --serve'";
    return refuse("bench: --against %s: %s", s->program, text);
}

/* Returns a line of JSON, or NULL. */
static json_t *read_reply(struct server *s)
{
    char line[1024];
    return fgets(line, sizeof line, s->from) ? json_loads(line, 0, NULL) : NULL;
}

static bool read_ready(struct server *s)
{
    json_t *j = read_reply(s);
    json_int_t serves = 0, steps = 0, workspace = 0;
    const char *version = "";
    const bool ok = j
                 && !json_unpack(j, "{s:I, s:s, s:I, s:I}", "serve", &serves, "loci", &version,
                                 "steps", &steps, "workspace_bytes", &workspace)
                 && serves == 1 && steps >= 1 && steps <= MOST_STEPS && workspace >= 0;
    if (ok) {
        s->steps = (int)steps;
        s->workspace = (size_t)workspace;
        snprintf(s->version, sizeof s->version, "%s", version);
        make_plain(s->version);
    }
    json_decref(j);
    return ok || failed(s);
}

bool server_open(struct server *s, struct problem *p, const char *encoding, const char *program)
{
    int pair[2];
    *s = (struct server){ .program = program, .said = tmpfile() };
    if (!s->said || socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        return refuse("bench: cannot start a process: %s", strerror(errno));
    fcntl(pair[0], F_SETFD, FD_CLOEXEC);
    fflush(stdout);
    s->pid = (long)fork();
    if (s->pid == 0) {
        if (dup2(pair[1], STDIN_FILENO) < 0 || dup2(pair[1], STDOUT_FILENO) < 0
            || dup2(fileno(s->said), STDERR_FILENO) < 0)
            _exit(EXIT_ERROR);
        close(pair[0]);
        close(pair[1]);
        if (program) run_program(p, encoding, program);
        exit(serve_forked(p, encoding));
    }
    close(pair[1]);
    s->to = pair[0];
    s->from = fdopen(pair[0], "r");
    if (s->pid < 0 || !s->from) return refuse("bench: cannot start a process");
    return read_ready(s);
}

/* Prevents a signal if the reader has gone. */
bool server_call(struct server *s, int steps, struct call *call)
{
    char line[16];
    const int n = snprintf(line, sizeof line, "%d\n", steps);
    if (send(s->to, line, (size_t)n, MSG_NOSIGNAL) != n) return failed(s);
    json_t *j = read_reply(s);
    const bool ok = j
                 && !json_unpack(j, "{s:F, s:F, s:F, s:F, s:F}", "seconds", &call->seconds,
                                 "before", &call->before, "after", &call->after, "flops",
                                 &call->flops, "taken", &call->taken)
                 && call->seconds > 0 && call->before > 0 && call->after > 0;
    json_decref(j);
    return ok || failed(s);
}
