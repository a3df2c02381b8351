/* SPDX-License-Identifier: MIT */
/* reader.c -- a program outside the tree that reads the rotation of a model. */
#include <loci/io.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    loci_model *model;
    loci_rope rope;
    loci_error e;
    if (argc < 2 || loci_model_open(&model, argv[1], &e)) {
        fprintf(stderr, "%s\n", argc < 2 ? "no file" : e.text);
        return 1;
    }
    if (loci_model_rope(model, 0, 0, &rope, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    printf("%s, %d layers: %.80s\n", loci_model_type(model), loci_model_layers(model),
           rope.encoding);
    loci_rope_free(&rope);
    loci_model_close(model);
    return 0;
}
