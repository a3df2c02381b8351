/* SPDX-License-Identifier: MIT */
/* harness_says.c -- the output of failing checks, and the end of such a test.  A child runs the
 * failing checks. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "scratch.h"

/* All fail but the last three.  It exits with the result of harness_end(). */
static void child(void)
{
    const int five = 5;
    loci_error e = { .text = "heads 0 must be 1 or more" };
    CHECK_THAT(2 * 2 == five, "row %d", 7);
    CHECK_CLOSE(1.5, 1, 0.25, "column %d", 8);
    CHECK_CLOSE(NAN, NAN, INFINITY, "a number");
    CHECK_SAYS(LOCI_UNSUPPORTED, LOCI_BAD_ARG, &e, "heads 0", "a plan");
    CHECK_SAYS(LOCI_BAD_ARG, LOCI_BAD_ARG, &e, "heads 1");
    CHECK_FAILED("no plan for %s", "t5");
    for (int i = 0; i < 20; i++) CHECK_THAT(false, "turn %d", i);
    CHECK_THAT(true, "%s", "");
    CHECK_CLOSE(-INFINITY, -INFINITY, 0, "infinities");
    CHECK_SAYS(LOCI_BAD_ARG, LOCI_BAD_ARG, &e, "heads 0");
    const int code = harness_end();
    fflush(stdout);
    _exit(code);
}

int main(void)
{
    char text[4096] = "";
    FILE *f = scratch_file();
    if (!f) return 2;
    const pid_t pid = fork();
    if (pid == 0) {
        if (dup2(fileno(f), STDOUT_FILENO) < 0) _exit(2);
        child();
    }
    int status = 0;
    CHECK_THAT(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 1,
               "a test with failures ended with %d", status);
    rewind(f);
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    static const char *const said[] = {
        ": row 7\n    2 * 2 == five\n",
        "column 8\n    1.5 is 1.5, wanted 1; off by 0.5, where 0.25 is allowed\n",
        "a number\n    NAN is ",
        "a plan: LOCI_UNSUPPORTED\n    status 2, wanted 1; it says 'heads 0 must be",
        "it says 'heads 0 must be 1 or more', wanted 'heads 1'\n",
        "no plan for t5\n",
        "turn 13\n    false\n6 more checks failed\n3 passed, 26 failed\n",
    };
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        CHECK_THAT(strstr(text, said[i]), "'%s' was not said in: %s", said[i], text);
    CHECK_THAT(!strncmp(text, "harness_says.c:", 15), "no place in: %s", text);
    CHECK_THAT(n > 0 && text[n - 1] == '\n' && harness_checks() == 9, "%d checks before this one",
               harness_checks());
    return harness_end();
}
