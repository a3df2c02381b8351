// SPDX-License-Identifier: MIT
// worker.js -- the library in a thread of its own, so that the page moves while it computes.  It
// stands behind loci.js, in one script.
//
//     { module }                                   -> { table }: the encodings and their options
//     { state, json }                              -> { has, shown, html, json, about } or { sentence }
"use strict";

let module, loci;
async function start() { loci = await load(module); }

function answer({ state, json }) {
    const { what: wish, text, ...problem } = state, { len, dim, heads, head, seed } = problem;
    const given = { len, dim, heads, head, seed }, { figures, ...about } = loci.about(text, given);
    const shown = figures.includes(wish) ? wish : figures[0], show = format => loci.show(text, { ...given, what: shown, format });
    return { has: figures, shown, html: show("html"), json: json ? show("json") : null, about };
}

onmessage = async ({ data }) => {
    if (data.module) {
        module = data.module;
        await start();
        postMessage({ table: loci.table });
        return;
    }
    try {
        postMessage(answer(data));
    } catch (e) {
        const refused = e instanceof LociError && e.status !== "no_memory";
        if (!refused) await start();
        postMessage({ sentence: refused ? e.message : `This is too much for this page: ${e.message}` });
    }
};
