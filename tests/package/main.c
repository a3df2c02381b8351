/* SPDX-License-Identifier: MIT */
/* main.c -- a program outside the tree that uses the installed library only. */
#include <loci/layers.h>
#include <loci/loci.h>
#include <stdio.h>

int main(void)
{
    loci_plan *plan;
    loci_error e;
    loci_desc d = LOCI_DESC(.encoding = "alibi", .heads = 4, .dim = 16);
    if (loci_plan_create(&plan, &d, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    printf("loci %s: %s\n", loci_version_text(), loci_plan_text(plan));
    loci_plan_destroy(plan);
    float x = 3, y;
    const loci_layer l = LOCI_LAYER(.batch = 1, .rows = 1, .heads = 1, .width = 1);
    if (loci_rmsnorm(&l, (loci_view){ &x, 0, 0, 0 }, NULL, 0, (loci_view){ &y, 0, 0, 0 }) || y != 1)
        return 1;
    return loci_version() != LOCI_VERSION;
}
