/* SPDX-License-Identifier: MIT */
/* reflect.c -- path: keys that follow change the query before an older key meets it.
 *
 *     q_i.k_j becomes k_j . u_j,  u_j = H_(j+1) H_(j+2) .. H_last q_i,  H_l = I - beta_l w_l w_l^T
 *
 * `last` is the newest key that the row sees, in index order.  All keys between j and last that
 * belong to the row's sequence act on it, whether it sees them or not. */
#include "reference/budget.h"

/* Where the rows of w begin for head h, and in D numbers each those of beta. */
static ptrdiff_t path_rows(const struct problem *p, int h)
{
    return (p->b * p->Hkv + kv_head(p, h)) * p->Lk;
}
static ptrdiff_t newest(const struct problem *p)
{
    ptrdiff_t j = p->Lk - 1;
    while (j >= 0 && !p->seen[j]) j--;
    return j;
}
static bool acts(const struct problem *p, ptrdiff_t j)
{
    return k_segment(p, j) == q_segment(p, p->i);
}

/* From the newest key on: u is the row as key j meets it, in scratch[1]. */
static void path(struct problem *p, int e, int h, double *product)
{
    const double *w = tensor(p, e, "w") + path_rows(p, h) * p->D,
                 *beta = tensor(p, e, "beta") + path_rows(p, h), *q = p->q + q_row(p, h);
    double *u = p->scratch[1];
    memcpy(u, q, (size_t)p->D * sizeof *u);
    for (ptrdiff_t j = newest(p); j >= 0; j--) {
        if (p->seen[j]) product[j] = dot(u, p->k + k_row(p, h, j), p->D);
        if (acts(p, j)) add_scaled(u, -beta[j] * dot(w + j * p->D, u, p->D), w + j * p->D, p->D);
    }
}

/* a is the gradient of u, oldest key first; u is taken back by what each key took from it, in
 * scratch[0]. */
static void path_backward(struct problem *p, int e, int h, const double *dproduct)
{
    const ptrdiff_t rows = path_rows(p, h);
    const double *w = tensor(p, e, "w") + rows * p->D, *beta = tensor(p, e, "beta") + rows,
                 *q = p->q + q_row(p, h);
    double *dw = dtensor(p, e, "w") + rows * p->D, *dbeta = dtensor(p, e, "beta") + rows;
    double *took = p->scratch[0], *u = p->scratch[1], *a = p->scratch[2];
    const ptrdiff_t last = newest(p);
    memcpy(u, q, (size_t)p->D * sizeof *u);
    for (ptrdiff_t j = last; j >= 0; j--) {
        took[j] = acts(p, j) ? dot(w + j * p->D, u, p->D) : 0;
        add_scaled(u, -beta[j] * took[j], w + j * p->D, p->D);
    }
    for (int c = 0; c < p->D; c++) a[c] = 0;
    for (ptrdiff_t j = 0; j <= last; j++) {
        const double *k = p->k + k_row(p, h, j), *wj = w + j * p->D;
        add_scaled(u, beta[j] * took[j], wj, p->D);
        if (acts(p, j)) {
            const double wa = dot(wj, a, p->D);
            dbeta[j] -= took[j] * wa;
            add_scaled(dw + j * p->D, -beta[j] * took[j], a, p->D);
            add_scaled(dw + j * p->D, -beta[j] * wa, u, p->D);
            add_scaled(a, -beta[j] * wa, wj, p->D);
        }
        if (!p->seen[j]) continue;
        add_scaled(a, dproduct[j], k, p->D);
        add_scaled(p->dk + k_row(p, h, j), dproduct[j], u, p->D);
    }
    add_scaled(p->dq + q_row(p, h), 1, a, p->D);
}

/* A product of many reflections is rounded at each of them, or at each of the matrices that replace
 * them, always relative to the length of the row.  These errors add up like random ones.  by: sizes
 * of the gradients of products; NULL: sizes of products are wanted. */
static void path_sizes(struct problem *p, int e, int h, double *size, const double *by)
{
    struct sizes *z = p->budget;
    const ptrdiff_t rows = path_rows(p, h), last = newest(p), D = p->D,
                    tw = tensor_number(p, e, "w"), tb = tensor_number(p, e, "beta");
    const double *w = tensor(p, e, "w") + rows * D, *beta = tensor(p, e, "beta") + rows,
                 *q = p->q + q_row(p, h);
    double *dw = z->dtensor[tw] + rows * D, *dbeta = z->dtensor[tb] + rows;
    double *length = p->scratch[0], *u = p->scratch[1], steps = 1, grown = 1, a = 0;
    memcpy(u, q, (size_t)D * sizeof *u);
    for (ptrdiff_t j = last; j >= 0; j--) {
        const double *k = p->k + k_row(p, h, j), *wj = w + j * D, ww = dot(wj, wj, D);
        const double kk = sqrt(dot(k, k, D)), most = fmax(sqrt(dot(u, u, D)), grown * 1e-300);
        length[j] = most * sqrt(steps);
        if (p->seen[j]) {
            double product = 0;
            for (int c = 0; c < D; c++) product += fabs(u[c] * k[c]);
            if (size) size[j] = product + kk * length[j];
            for (int c = 0; c < D && by; c++) {
                z->dk[k_row(p, h, j) + c] += by[j] * length[j] + z->to->least;
                z->dq[q_row(p, h) + c] += by[j] * kk * grown * sqrt(steps) + z->to->least;
            }
        }
        if (!acts(p, j)) continue;
        steps += fabs(beta[j]) * ww;
        grown *= fmax(1, fabs(1 - beta[j] * ww));
        add_scaled(u, -beta[j] * dot(wj, u, D), wj, D);
    }
    for (ptrdiff_t j = 0; j <= last && by; j++) {
        const double *k = p->k + k_row(p, h, j), *wj = w + j * D, ww = dot(wj, wj, D);
        if (acts(p, j)) {
            dbeta[j] += ww * length[j] * a + 16 * (double)D * z->to->least;
            for (int c = 0; c < D; c++)
                dw[j * D + c] +=
                    2 * fabs(beta[j]) * sqrt(ww) * length[j] * a + 16 * (double)D * z->to->least;
            a *= fmax(1, fabs(1 - beta[j] * ww));
        }
        if (p->seen[j]) a += by[j] * sqrt(dot(k, k, D));
    }
}
const struct definition loci_define_path = {
    .name = "path",
    .products = path,
    .products_backward = path_backward,
    .product_sizes = path_sizes,
};
