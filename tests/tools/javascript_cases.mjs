// SPDX-License-Identifier: MIT
// javascript_cases.mjs PACKAGE: the golden cases by loci.js in a folder, bit for bit: their hashes
// are those of tests/bits/hashes.txt.  A line "ok CASE" or "FAILED CASE: ..." for each, and the hash
// of all hashes, which `test_hashes` prints too.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const CASES = "tests/cases", RECORD = "tests/bits/hashes.txt";
const { load } = await import(pathToFileURL(resolve(process.argv[2], "loci.js")));
const loci = await load();
const TYPES = { F32: Float32Array, F64: Float64Array, I64: BigInt64Array };

// ---- A case file (docs/cases.md) ----------------------------------------------------------------

function read(path) {
    const bytes = readFileSync(path), size = Number(bytes.readBigUInt64LE(0));
    const { __metadata__: meta, ...list } = JSON.parse(bytes.toString("utf8", 8, 8 + size));
    const tensors = {};
    for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(list)) {
        const own = new Uint8Array(bytes.subarray(8 + size + from, 8 + size + to));
        tensors[name] = { shape, data: new TYPES[dtype](own.buffer) };
    }
    return { meta, tensors };
}
const get = (c, name) => c.tensors[name]?.data;
const present = list => Object.fromEntries(Object.entries(list).filter(([, x]) => x !== undefined));
const params = (c, pick) => Object.fromEntries(Object.keys(c.tensors).filter(name => name.startsWith("param."))
    .map(name => [name.slice(6), pick(c.tensors[name])]));

// An option that a case omits has its default value, even where a full mask requires it.
function open(problem) {
    try {
        return loci.plan(problem);
    } catch {
        const causal = loci.plan({ ...problem, causal: true });
        const encoding = causal.text.split(" scale=")[0];
        causal.free();
        return loci.plan({ ...problem, encoding });
    }
}
function problem(c, rest) {
    const { meta } = c, number = name => meta[`loci.${name}`] === undefined ? undefined : Number(meta[`loci.${name}`]);
    return present({
        encoding: meta["loci.encoding"], stage: meta["loci.stage"], causal: meta["loci.mask"] !== "full",
        window_size: [number("window_left") ?? -1, number("window_right") ?? -1], scale: number("scale"),
        shapes: params(c, t => t.shape), ...rest,
    });
}
const sides = (c, q, k) => {
    const real = c.tensors[q]?.data instanceof Float64Array;
    return { [real ? "q_coords" : "q_pos"]: get(c, q), [real ? "k_coords" : "k_pos"]: get(c, k) };
};

function attention(c) {
    const [batch, heads, , dim] = c.tensors.q.shape, [, kv_heads] = c.tensors.k.shape, value_dim = c.tensors.v.shape[3];
    const plan = open(problem(c, { heads, kv_heads, dim, value_dim })), { q, k, v } = c.tensors;
    const call = present({
        batch, ...sides(c, "q_pos", "k_pos"), q_seg: get(c, "q_seg"), k_seg: get(c, "k_seg"), tensors: params(c, t => t.data),
        dropout_p: Number(c.meta["loci.dropout"] ?? 0), dropout_seed: BigInt(c.meta["loci.seed"] ?? 0),
        dropout_offset: BigInt(c.meta["loci.offset"] ?? 0),
    });
    const made = plan.forward(q.data, k.data, v.data, { ...call, return_lse: true });
    const row = plan.weighs ? "rem" : "lse", outputs = present({ out: made.o, [row]: made.lse, ae: made.ae });
    const [dout, dlse, dae] = [get(c, "dout"), get(c, `d${row}`), get(c, "dae")];
    if (dout || dlse || dae) {
        const grads = plan.backward(dout, q.data, k.data, v.data, made.o, made.lse,
            { ...call, ...present({ dlse, dae, ae: made.ae }) });
        Object.assign(outputs, { "d.q": grads.dq, "d.k": grads.dk, "d.v": grads.dv });
        for (const [name, x] of Object.entries(grads.dtensors)) outputs[`d.param.${name}`] = x;
    }
    plan.free();
    return outputs;
}
function rows(c) {
    const embeds = c.meta["loci.stage"] === "embed", { shape, data: x } = c.tensors.x, batch = shape[0];
    const plan = open(problem(c, embeds ? { model_dim: shape[2] } : { heads: shape[1], dim: shape[3] }));
    const call = present({
        batch, [get(c, "pos") instanceof Float64Array ? "coords" : "pos"]: get(c, "pos"), tensors: params(c, t => t.data),
        role: embeds ? undefined : c.meta["loci.role"] ?? "query",
    });
    const outputs = { out: embeds ? plan.embed(x, call) : plan.rotate(x, call) }, dy = get(c, "dout");
    if (dy) {
        const { dx, dtensors } = embeds ? plan.embed_backward(dy, call) : plan.rotate_backward(dy, x, call);
        outputs["d.x"] = dx;
        for (const [name, d] of Object.entries(dtensors)) outputs[`d.param.${name}`] = d;
    }
    plan.free();
    return outputs;
}

// ---- Hashes --------------------------------------------------------------------------------------

function hash(outputs) {
    const sum = createHash("sha256");
    for (const [name, x] of Object.entries(outputs)) {
        sum.update(`${name}\0`);
        // NaN has one form here, as in C.
        const bits = new BigUint64Array(Float64Array.from(x).buffer);
        x.forEach((each, i) => { if (Number.isNaN(each)) bits[i] = 0x7ff8000000000000n; });
        sum.update(new Uint8Array(bits.buffer));
    }
    return sum.digest("hex");
}

// The package has no keys in other types than queries.
const stored = name => name.startsWith("stored-");
const names = readdirSync(CASES).filter(name => name.endsWith(".safetensors") && !stored(name)).map(name => name.slice(0, -12)).sort();
const record = readFileSync(RECORD, "latin1").trimEnd().split("\n").filter(line => !stored(line.slice(33)));
const all = createHash("sha256");
if (names.length !== record.length) console.log(`FAILED ${names.length} cases, and the record has ${record.length}`);
names.forEach((name, i) => {
    try {
        const c = read(`${CASES}/${name}.safetensors`), stage = c.meta["loci.stage"];
        const hex = hash(stage === "rotate" || stage === "embed" ? rows(c) : attention(c));
        const said = `${hex.slice(0, 32)} ${name}`;
        all.update(hex);
        console.log(said === record[i] ? `ok ${name}` : `FAILED '${said}', but the record has '${record[i]}'`);
    } catch (e) {
        console.log(`FAILED ${name}: ${e.stack}`);
    }
});
console.log(`${names.length} cases: ${all.digest("hex")}`);
console.log("end");
