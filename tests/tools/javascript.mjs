// SPDX-License-Identifier: MIT
// javascript.mjs PACKAGE LOCI SUMS: tests of loci.js in a folder, by node --expose-gc, and of the
// module of tests/wasm/sums.c.  A line "ok WHAT" or "FAILED WHAT" for each check, and "end" when all
// are done.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [, , folder, program, sums] = process.argv;
const { load, LociError } = await import(pathToFileURL(resolve(folder, "loci.js")));
const loci = await load();

function check(what, holds, said = "") {
    console.log(holds ? `ok ${what}` : `FAILED ${what}${said === "" ? "" : `: ${said}`}`);
}
function says(what, run, words) {
    try {
        run();
        check(what, false, "it was accepted");
    } catch (e) {
        check(what, e instanceof LociError && e.message.includes(words), e instanceof LociError ? e.message : e.stack);
    }
}
let state = 1;
function random(n, type = Float32Array) {   // the same numbers each time
    return type.from({ length: n }, () => {
        state = Math.imul(state ^ state >>> 15, state | 1) + 0x6d2b79f5 | 0;
        return ((state ^ state >>> 14) >>> 0) / 2 ** 32 - 0.5;
    });
}
const same = (a, b) => a.length === b.length && Buffer.compare(Buffer.from(a.buffer, a.byteOffset, a.byteLength),
    Buffer.from(b.buffer, b.byteOffset, b.byteLength)) === 0;
const far = (a, b) => a.reduce((most, x, i) => Math.max(most, Math.abs(x - b[i])), 0);
// [heads, rows, width] to [rows, heads, width]
function swapped(x, heads, rows, width) {
    const y = new x.constructor(x.length);
    for (let h = 0; h < heads; h++)
        for (let i = 0; i < rows; i++) y.set(x.subarray((h * rows + i) * width, (h * rows + i + 1) * width), (i * heads + h) * width);
    return y;
}

// ---- Descriptions ---------------------------------------------------------------------------------

const listed = execFileSync(program, ["list", "--json"], { encoding: "utf8" }).trimEnd().split("\n").map(line => JSON.parse(line));
check("all encodings", loci.list().map(e => e.name).join() === listed.map(e => e.name).join());
check("its version", execFileSync(program, ["version"], { encoding: "utf8" }).trim() === `loci ${loci.version}`);
const t5 = loci.describe("t5");
check("options", t5.options.find(o => o.name === "buckets").default === 32 && t5.places.join() === "score", JSON.stringify(t5));
says("an unknown name", () => loci.describe("rop"), "did you mean 'rope'");
says("a text in place of a name", () => loci.describe("t5:buckets=8"), "the name alone");

// ---- Attention ------------------------------------------------------------------------------------

const H = 4, K = 2, D = 16, L = 70;
const q = random(H * L * D), k = random(K * L * D), v = random(K * L * D);
const problem = { encoding: "rope:pairing=half+t5:bidirectional=0", heads: H, kv_heads: K, dim: D };
const plan = loci.plan(problem), tensors = { "t5.table": random(32 * H) };
check("a plan's text", plan.text.includes("rope:") && plan.text.includes("buckets=32"), plan.text);
check("its tensors", plan.tensors.length === 1 && plan.tensors[0].shape.join() === `32,${H}` && plan.tensors[0].role === "learned");
check("their start", plan.init(1)["t5.table"].length === 32 * H);
check("frequencies", plan.frequencies.length === D / 2 && plan.frequencies[0] === 1 && plan.attention_factor === 1);
const { o, lse } = plan.forward(q, k, v, { tensors, return_lse: true });
check("sizes", o.length === H * L * D && lse.length === H * L && o instanceof Float32Array);
check("plain lists", same(o, plan.forward([...q], [...k], [...v], { tensors: { "t5.table": [...tensors["t5.table"]] } })));
const blhd = plan.forward(swapped(q, H, L, D), swapped(k, K, L, D), swapped(v, K, L, D), { tensors, layout: "blhd" });
check("layout blhd", same(blhd, swapped(o, H, L, D)));
const two = x => { const y = new x.constructor(2 * x.length); y.set(x); y.set(x, x.length); return y; };
check("a batch", same(plan.forward(two(q), two(k), two(v), { tensors, batch: 2 }), two(o)));
const lens = plan.forward(two(q), two(k), two(v), { tensors, batch: 2, k_lens: [L, 10] });
check("lengths", same(lens.subarray(0, o.length), o) && !same(lens.subarray(o.length), o));
const prepared = plan.prepared(tensors, { max_distance: L });
check("prepared tables", same(plan.forward(q, k, v, { tensors: prepared }), o));
const pos = Array.from({ length: L }, (_, i) => i + 1000);
check("positions", far(plan.forward(q, k, v, { tensors, pos }), o) < 1e-4);
const starts = [0, 20, L], packed = plan.forward(swapped(q, H, L, D), swapped(k, K, L, D), swapped(v, K, L, D),
    { tensors, layout: "thd", cu_seqlens_q: starts });
check("packed sequences: the first is the first of all", same(packed.subarray(0, 20 * H * D), blhd.subarray(0, 20 * H * D)));
check("and the second another", !same(packed.subarray(20 * H * D), blhd.subarray(20 * H * D)));
const seg = Array.from({ length: L }, (_, i) => i < 20 ? 0 : 1);
check("as segments", far(plan.forward(swapped(q, H, L, D), swapped(k, K, L, D), swapped(v, K, L, D), { tensors, layout: "blhd", seg }), packed) < 1e-6);

const open = loci.plan({ ...problem, causal: false, encoding: "rope:pairing=half+t5:bidirectional=0" });
const lower = Uint8Array.from({ length: L * L }, (_, i) => i % L <= Math.floor(i / L) ? 1 : 0);
check("a mask of bytes", same(open.forward(q, k, v, { tensors, mask: lower }), o));
check("a mask of numbers", same(open.forward(q, k, v, { tensors, mask: Float32Array.from(lower, x => x ? 0 : -Infinity) }), o));
check("last keys", same(open.forward(q, k, v, { tensors, k_last: Int32Array.from({ length: L }, (_, i) => i) }), o));
const narrow = loci.plan({ ...problem, window_size: [7, 0] });
const first = Array.from({ length: L }, (_, i) => Math.max(i - 7, 0));
check("a window", same(narrow.forward(q, k, v, { tensors }), plan.forward(q, k, v, { tensors, k_first: first })));
const weights = plan.weights(q, k, { tensors });
check("weights", Math.abs(weights.subarray((L - 1) * L, L * L).reduce((a, x) => a + x) - 1) < 1e-5 && weights[1] === 0);
const drop = { tensors, dropout_p: 0.5, dropout_seed: 7 };
check("dropout is decided by its seed", same(plan.forward(q, k, v, drop), plan.forward(q, k, v, drop)) && !same(plan.forward(q, k, v, drop), o));

// ---- Gradients: against differences, in double ------------------------------------------------------

{
    const double = loci.plan({ ...problem, dtype: "float64" }), n = 12, [a, b, c, dout] = [H, K, K, H].map(h => random(h * n * D, Float64Array));
    const table = { "t5.table": random(32 * H, Float64Array) }, out = double.forward(a, b, c, { tensors: table, return_lse: true });
    check("double", out.o instanceof Float64Array && far(out.o, loci.plan(problem).forward(Float32Array.from(a), Float32Array.from(b),
        Float32Array.from(c), { tensors: { "t5.table": Float32Array.from(table["t5.table"]) } })) < 1e-5);
    const grads = double.backward(dout, a, b, c, out.o, out.lse, { tensors: table });
    const loss = () => double.forward(a, b, c, { tensors: table }).reduce((sum, x, i) => sum + x * dout[i], 0);
    for (const [name, x, dx] of [["q", a, grads.dq], ["k", b, grads.dk], ["v", c, grads.dv], ["t5.table", table["t5.table"], grads.dtensors["t5.table"]]]) {
        const at = Math.floor(x.length / 3), was = x[at], step = 1e-6;
        x[at] = was + step;
        const more = loss();
        x[at] = was - step;
        const less = loss();
        x[at] = was;
        check(`the gradient of ${name}`, Math.abs((more - less) / (2 * step) - dx[at]) < 1e-7, `${(more - less) / (2 * step)} and ${dx[at]}`);
    }
    double.free();
}

// ---- Decode -----------------------------------------------------------------------------------------

// A prompt, then row by row: the bits of one call.
for (const encoding of ["rope:pairing=half+alibi", "fox", "t5:bidirectional=0", "rope:pairing=half+fox"]) {
    const whole = loci.plan({ encoding, heads: H, kv_heads: K, dim: D }), learned = whole.init(2);
    const gates = whole.tensors.filter(t => t.role === "input").map(t => t.name);
    const inputs = Object.fromEntries(gates.map(name => [name, random(H * L).map(x => -Math.abs(x))]));
    const want = swapped(whole.forward(q, k, v, { tensors: { ...learned, ...inputs } }), H, L, D);
    const cache = loci.cache({ encoding, heads: H, kv_heads: K, dim: D, capacity: 100, tensors: learned, layout: "blhd" });
    const [qs, ks, vs] = [swapped(q, H, L, D), swapped(k, K, L, D), swapped(v, K, L, D)], got = new Float32Array(want.length);
    const cut = (x, heads, from, to) => x.subarray(from * heads * D, to * heads * D);
    const step = (from, to) => {
        const own = Object.fromEntries(gates.map(name => [name, Float32Array.from({ length: H * (to - from) },
            (_, i) => inputs[name][Math.floor(i / (to - from)) * L + from + i % (to - from)])]));
        return cache.step(cut(qs, H, from, to), cut(ks, K, from, to), cut(vs, K, from, to), { inputs: own });
    };
    got.set(step(0, 60));
    for (let i = 60; i < L; i++) got.set(step(i, i + 1), i * H * D);
    check(`decode with ${encoding}`, same(got, want), far(got, want));
    cache.truncate(60);
    check("again after truncate()", same(step(60, 65), want.slice(60 * H * D, 65 * H * D)) && cache.length() === 65);
    says("a full cache", () => { for (let i = 0; i < 100; i++) step(0, 60); }, "do not fit");
    check("is unchanged by what failed", cache.length() % 60 === 5, cache.length());
    cache.remove(0, 10);
    check("remove()", cache.lengths[0] % 60 === 55, cache.lengths);
    whole.free();
    cache.free();
    says("a freed cache", () => cache.length(), "has been freed");
}

// ---- Other stages and figures -------------------------------------------------------------------------

{
    const rope = loci.plan({ encoding: "rope:pairing=half", heads: H, dim: D, stage: "rotate" }), y = rope.rotate(q);
    check("rotate", !same(y, q) && same(y.subarray(0, D), q.subarray(0, D)) && far(rope.rotate_backward(y, q).dx, q) < 1e-6);
    const embed = loci.plan({ encoding: "sinusoidal", model_dim: D, stage: "embed" });
    check("embed", Math.abs(embed.embed(new Float32Array(2 * D))[D] - Math.sin(1)) < 1e-6);
    const linear = loci.plan({ encoding: "nope", heads: H, kv_heads: K, dim: D, stage: "linear_attention" });
    check("linear attention", linear.forward(q, k, v).length === q.length);
    says("another stage", () => rope.forward(q, q, q), "stage rotate");
    const svg = loci.show("alibi", { what: "curve", heads: 4 });
    check("a figure", svg.startsWith("<svg") && svg.trimEnd().endsWith("</svg>") && !svg.includes("NaN"), svg.slice(0, 80));
    const numbers = JSON.parse(loci.show("alibi", { what: "curve", heads: 4, format: "json" }));
    const said = JSON.parse(execFileSync(program, ["show", "alibi", "--what", "curve", "--heads", "4", "--json"], { encoding: "utf8" }));
    check("has the numbers of loci show", JSON.stringify(numbers) === JSON.stringify(said.figures));
    check("which figures", loci.about("alibi").figures.includes("map"));
    says("no such figure", () => loci.show("alibi", { what: "spectrum" }), "has no figure 'spectrum', only map");
    says("no such length", () => loci.show("alibi", { len: 1 }), "length must be a whole number");
}

// ---- Mistakes -----------------------------------------------------------------------------------------

says("a misspelt option", () => loci.plan({ encoding: "nope", head: 4, dim: 8 }), "no option 'head'");
says("a misspelt option of a call", () => plan.forward(q, k, v, { tensors, k_len: 3 }), "no option 'k_len'");
says("an unknown encoding", () => loci.plan({ encoding: "alibbi", heads: 4, dim: 8 }), "did you mean 'alibi'");
says("no pairing", () => loci.plan({ encoding: "rope", heads: 4, dim: 8 }), "pairing");
says("another type", () => plan.forward(Float64Array.from(q), k, v, { tensors }), "q must be a Float32Array");
says("a wrong length", () => plan.forward(q.subarray(1), k, v, { tensors }), "no multiple");
says("v of other keys", () => plan.forward(q, k, v.subarray(K * D), { tensors }), "v has 69 rows and k 70");
says("no table", () => plan.forward(q, k, v), "t5.table is missing, with the shape [32,4]");
says("a table of another size", () => plan.forward(q, k, v, { tensors: { "t5.table": random(3) } }), "but must have 128");
says("an unknown tensor", () => plan.forward(q, k, v, { tensors: { ...tensors, "t5.tables": random(3) } }), "has no tensor 't5.tables'");
says("half a position", () => plan.forward(q, k, v, { tensors, pos: pos.map(x => x / 3) }), "must have whole numbers");
says("too few positions", () => plan.forward(q, k, v, { tensors, pos: [1, 2] }), "must have 70");
says("q_pos alone", () => plan.forward(q, k, v, { tensors, q_pos: pos }), "go together");
says("far positions", () => plan.forward(q, k, v, { tensors, q_pos: pos.map(x => x + 2 ** 39), k_pos: pos }), "apart");
says("scale 0", () => loci.plan({ ...problem, scale: 0 }), "scale must not be 0");
says("a mask of another size", () => plan.forward(q, k, v, { tensors, mask: lower.subarray(1) }), "mask has 4899 numbers");
says("no lse", () => plan.backward(o, q, k, v, o, null, { tensors }), "lse is missing");
says("dropout without a seed", () => plan.forward(q, k, v, { tensors, dropout_p: 0.1 }), "wants a dropout_seed");
says("tables of another plan", () => narrow.forward(q, k, v, { tensors: prepared }), "by another plan");
prepared.free();
says("freed tables", () => plan.forward(q, k, v, { tensors: prepared }), "has been freed");
open.free();
open.free();
says("a freed plan", () => open.forward(q, k, v, { tensors }), "has been freed");
says("no batch", () => plan.forward(q, k, v, { tensors, batch: 0 }), "batch must be a whole number from 1");
says("a cache beyond memory", () => loci.cache({ ...problem, tensors, capacity: 2 ** 29 }), "cannot be");
check("and after all that the same bits", same(plan.forward(q, k, v, { tensors }), o));

// ---- Memory -------------------------------------------------------------------------------------------

function once() {
    const p = loci.plan(problem), made = p.forward(q, k, v, { tensors, return_lse: true });
    p.backward(o, q, k, v, made.o, made.lse, { tensors });
    const c = loci.cache({ ...problem, capacity: 64, tensors });
    c.step(q.subarray(0, H * D), k.subarray(0, K * D), v.subarray(0, K * D));
    try { p.forward(q, k, v); } catch { /* no table */ }
    c.free();
    p.free();
}
// Addresses that were allocated and not freed.
const held = new Set(), { aligned_alloc, free } = loci.c;
loci.c = {
    ...loci.c,
    aligned_alloc(line, bytes) {
        const at = aligned_alloc(line, bytes);
        held.add(at >>> 0);
        return at;
    },
    free(at) {
        held.delete(at >>> 0);
        free(at);
    },
};
for (let i = 0; i < 3; i++) once();
check("a call leaves nothing", held.size === 0, `${held.size} blocks`);
for (let room = 0; room < 30; room += 3) {
    let left = room;
    const { aligned_alloc: counted } = loci.c;
    loci.c.aligned_alloc = (...size) => left-- > 0 ? counted(...size) : 0;
    try {
        const p = loci.plan(problem);
        try { p.forward(q, k, v, { tensors }); } finally { p.free(); }
    } catch (e) {
        check(`no memory after ${room} blocks`, e instanceof LociError && e.status === "no_memory" && held.size === 0, `${e.message}, ${held.size} blocks`);
    }
    loci.c.aligned_alloc = counted;
}
const settled = loci.buffer.byteLength;
for (let i = 0; i < 100; i++) once();
for (let i = 0; i < 1000; i++) loci.plan(problem).free();
check("1000 plans and 100 calls leave nothing", loci.buffer.byteLength === settled, `${loci.buffer.byteLength - settled} bytes more`);
{
    const long = 3000, small = loci.plan({ encoding: "alibi", heads: 1, dim: 64 }), x = random(long * 64), before = loci.buffer.byteLength;
    const part = small.forward(x.subarray(0, 50 * 64), x.subarray(0, 50 * 64), x.subarray(0, 50 * 64));
    const all = small.forward(x, x, x);
    check("memory grows in a call", loci.buffer.byteLength > before && same(all.slice(0, 50 * 64), part));
    small.free();
}
{
    const forget = () => { for (let i = 0; i < 25; i++) loci.cache({ ...problem, tensors, capacity: 8192 }); };
    forget();
    const most = loci.buffer.byteLength;
    for (let i = 0; i < 4; i++) {
        globalThis.gc();
        await new Promise(done => setTimeout(done, 20));
        forget();
    }
    // One round is 54 MB.  It need not be all at once.
    const more = loci.buffer.byteLength - most;
    check("what is forgotten is freed some time", more < 50e6, `${more} bytes more`);
}

// ---- Other ways to load, and the types ------------------------------------------------------------------

const bytes = readFileSync(resolve(folder, "loci.wasm")), module = await WebAssembly.compile(bytes);
for (const [name, source] of [["bytes", bytes], ["a module", module], ["an address", pathToFileURL(resolve(folder, "loci.wasm"))],
    ["a response", new Response(bytes, { headers: { "content-type": "application/wasm" } })]]) {
    const other = await load(source), p = other.plan(problem);
    check(`loaded from ${name}`, same(p.forward(q, k, v, { tensors }), o));
}
const types = readFileSync(resolve(folder, "loci.d.ts"), "utf8"), cache = loci.cache({ ...problem, capacity: 64, tensors });
for (const [name, object] of [["Plan", plan], ["Cache", cache], ["Loci", loci]]) {
    const body = types.split(`export interface ${name} {`)[1].split("\n}")[0];
    const missing = [...body.matchAll(/^ {4}(?:readonly )?([a-z_0-9]+)[(:?]/gm)].map(m => m[1]).filter(member => !(member in object));
    check(`the types of ${name} are there`, missing.length === 0 && body.length > 100, missing);
}
// ---- Sums of vectors --------------------------------------------------------------------------------------

const system = new Proxy({}, { get: () => () => 8 });
const words = new WebAssembly.Instance(await WebAssembly.compile(readFileSync(sums)), { wasi_snapshot_preview1: system }).exports;
words._initialize();
const differ = words.differ(200000);
check("vectors are summed like numbers", differ === 0, `${differ} lanes differ`);
console.log("end");
