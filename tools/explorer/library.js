// SPDX-License-Identifier: MIT
// library.js -- page.c in a thread of its own, so that the page moves while it computes.
//
//     { module }                                   -> { table }: the encodings and their options
//     { state, table, json, ... }                  -> { has, shown, html, json, about } or { sentence }
"use strict";

let module, library;                        // the exports of page.c, and its memory

// What is left of a system: no files and no environment, and whoever ends the program, as for want
// of memory, ends the call.
const NO_SUCH_FILE = 8;
const system = {
    environ_get: () => 0,
    environ_sizes_get(count, bytes) {
        const memory = new DataView(library.memory.buffer);
        memory.setUint32(count, 0, true);
        memory.setUint32(bytes, 0, true);
        return 0;
    },
    proc_exit(code) { throw new Error(`it ended with ${code}, most likely for want of memory`); },
};
const rest = { get: (known, name) => known[name] ?? (() => NO_SUCH_FILE) };

function start() {
    library = new WebAssembly.Instance(module, { wasi_snapshot_preview1: new Proxy(system, rest) }).exports;
    library._initialize();
}
function text(at) {
    if (!at) throw text(library.sentence());
    const bytes = new Uint8Array(library.memory.buffer);
    return new TextDecoder().decode(bytes.subarray(at, bytes.indexOf(0, at)));
}
// Makes the state's encoding the one that is shown: which figures it has, or throws the sentence.
function look(state) {
    const bytes = new TextEncoder().encode(state.text), at = library.room(bytes.length);
    if (!at) throw text(library.sentence());
    const memory = new Uint8Array(library.memory.buffer);
    memory.set(bytes, at);
    memory[at + bytes.length] = 0;
    const has = library.look(state.len, state.dim, state.heads, state.head, state.seed);
    if (has < 0) throw text(library.sentence());
    return has;
}
const JSON_TEXT = 0, HTML_TEXT = 1;
function answer({ state, what, json }) {
    const has = look(state), wish = what.indexOf(state.what);
    const which = has >> wish & 1 ? wish : what.findIndex((_, i) => has >> i & 1);
    return {
        has, shown: what[which], html: text(library.figures(which, HTML_TEXT)),
        json: json ? text(library.figures(which, JSON_TEXT)) : null, about: JSON.parse(text(library.about())),
    };
}

onmessage = ({ data }) => {
    if (data.module) {
        module = data.module;
        start();
        postMessage({ table: JSON.parse(text(library.encodings())) });
        return;
    }
    try {
        postMessage(answer(data));
    } catch (e) {
        if (typeof e !== "string") start();
        postMessage({ sentence: typeof e === "string" ? e : `This is too much for this page: ${e.message}` });
    }
};
