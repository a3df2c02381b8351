// SPDX-License-Identifier: MIT
// loci.js -- positional encodings fused into attention: the C library as WebAssembly, for browsers
// and node.  Names and defaults are those of the Python package (docs/python.md).
//
//     import { load } from "loci-attention";
//     const loci = await load();
//     const plan = loci.plan({ encoding: "rope:pairing=half+alibi", heads: 2, dim: 8 });
//     const o = plan.forward(q, k, v);                // Float32Array, [heads, rows, dim]
//     plan.free();
"use strict";

/** What loci refuses, with the reason in one sentence. */
export class LociError extends Error {
    constructor(text, status = "bad_arg") {
        super(text);
        this.name = "LociError";
        this.status = status;
    }
}

const STATUS = ["ok", "bad_arg", "unsupported", "no_memory", "cancelled", "transport"];
const STAGES = ["attention", "rotate", "embed", "linear_attention"];
const ROLES = ["learned", "fixed", "input"];
const SOURCES = ["other", "log gate", "keys", "states", "unit", "strength"];
const WHICH = { query: 0, key: 1, value: 3 };
const LAYOUTS = ["bhld", "blhd", "thd"];
const FORMATS = ["json", "html", "svg"];
const BATCH = -1, QUERIES = -2, KEYS = -3;  // in a tensor's shape
const NONE = -1, BROADCAST = -(2 ** 31), SEEN = 1, ADDED = 2;
const LINE = 64;                            // tables, workspaces and caches start on as many bytes
const TYPES = { float32: Float32Array, float64: Float64Array };

const PLAN = ["encoding", "heads", "dim", "kv_heads", "value_dim", "model_dim", "dtype", "stage",
    "causal", "window_size", "scale", "max_len", "keys_rotated", "shapes"];
const PLACES = ["batch", "pos", "coords"];
const TENSORS = ["tensors", "inputs"];
const CALL = [...PLACES, ...TENSORS, "q_pos", "k_pos", "q_coords", "k_coords", "seg", "q_seg", "k_seg",
    "k_lens", "cu_seqlens_q", "cu_seqlens_k", "k_first", "k_last", "mask", "layout", "dropout_p",
    "dropout_seed", "dropout_offset"];
const FIGURE = ["what", "len", "dim", "heads", "head", "seed"];

// ---- Arguments --------------------------------------------------------------------------------

function check(holds, text, status) {
    if (!holds) throw new LociError(text, status);
}
function options(given, known, where) {
    check(given !== null && typeof given === "object" && !Array.isArray(given), `${where} takes its options as an object`);
    for (const name of Object.keys(given))
        check(known.includes(name), `${where} has no option '${name}', only ${known.join(", ")}`);
    return given;
}
function whole(x, name, low, high = 2 ** 31 - 1) {
    check(Number.isInteger(x) && x >= low && x <= high, `${name} must be a whole number from ${low} to ${high}, not ${x}`);
    return x;
}
function number(x, name) {
    check(typeof x === "number" && Number.isFinite(x), `${name} must be a finite number, not ${x}`);
    return x;
}
function oneOf(x, list, name) {
    check(list.includes(x), `${name} must be one of ${list.join(", ")}, not '${x}'`);
    return list.indexOf(x);
}
function text(x, name) {
    check(typeof x === "string", `${name} must be a text such as 'rope:pairing=half', not ${x}`);
    return x;
}
// Numbers as the plan stores them.  Plain lists are converted, other types are mistakes.
function reals(x, type, name) {
    if (Array.isArray(x)) return type.from(x);
    check(x instanceof type, `${name} must be a ${type.name}, not ${x?.constructor?.name ?? x}`);
    return x;
}
function int64(x, name) {
    if (x instanceof BigInt64Array) return x;
    check(Array.isArray(x) || (ArrayBuffer.isView(x) && !(x instanceof DataView)), `${name} must be a list of whole numbers`);
    return BigInt64Array.from(x, each => {
        check(typeof each === "bigint" || Number.isSafeInteger(each), `${name} must have whole numbers, not ${each}`);
        return BigInt(each);
    });
}
const many = shape => shape.reduce((n, size) => n * size, 1);
const dense = (name, at) => ({ [`${name}.data`]: at });

// ---- Memory -----------------------------------------------------------------------------------

// What one call has in the module's memory.  Views of it are made anew each time, because the
// buffer is another one whenever memory has grown.
class Frame {
    constructor(library) {
        this.library = library;
        this.list = [];
    }
    room(bytes) {
        const at = this.library.c.aligned_alloc(LINE, Math.max(Math.ceil(bytes / LINE), 1) * LINE) >>> 0;
        check(at, `${bytes} bytes more do not fit into the memory of WebAssembly`, "no_memory");
        this.list.push(at);
        return at;
    }
    put(x) {
        const at = this.room(x.byteLength);
        new x.constructor(this.library.buffer, at, x.length).set(x);
        return at;
    }
    numbers(type, count) { return this.room(count * type.BYTES_PER_ELEMENT); }
    get(type, at, count) { return new type(this.library.buffer, at, count).slice(); }
    text(x) {
        const bytes = new TextEncoder().encode(x), at = this.room(bytes.length + 1);
        new Uint8Array(this.library.buffer, at, bytes.length + 1).set([...bytes, 0]);
        return at;
    }
    struct(name, values) {
        const layout = this.library.structs[name], at = this.room(layout.bytes);
        new Uint8Array(this.library.buffer, at, layout.bytes).fill(0);
        this.library.set(name, at, layout.size ? { size: layout.bytes, ...values } : values);
        return at;
    }
    keep(at) { this.list.splice(this.list.indexOf(at), 1); }
    free() {
        for (const at of this.list) this.library.c.free(at);
        this.list = [];
    }
}

// Runs a function with memory that is freed after it.
function framed(library, run) {
    const frame = new Frame(library);
    try {
        return run(frame);
    } finally {
        frame.free();
    }
}

// Objects that were forgotten rather than freed.  This is a help, and comes late: call free().
const forgotten = new FinalizationRegistry(held => held.free());

// Functions that free.  They are made here, because one that is made in a constructor keeps all that
// other functions of the constructor use, and so the object itself: it would never be forgotten.
function planFreer(c, at, kept) {
    return () => {
        c.loci_plan_destroy(at);
        if (kept.tables) c.free(kept.tables);
    };
}
function blockFreer(c, at, owned) {
    return () => {
        c.free(at);
        for (const each of owned) each.free();
    };
}

// What a plan, tables or a cache hold in the module's memory.
class Held {
    constructor(owner, free) {
        this.run = free;
        forgotten.register(owner, this, this);
    }
    free() {
        const run = this.run;
        this.run = null;
        forgotten.unregister(this);
        run?.();
    }
    alive(what) { check(this.run, `this ${what} has been freed`); }
}

// ---- The module -------------------------------------------------------------------------------

// What is left of a system: no files and no environment, and whatever ends the program, as for want
// of memory, ends the call.
const NO_SUCH_FILE = 8;
function instantiate(module) {
    let c = null;
    const system = {
        environ_get: () => 0,
        environ_sizes_get(count, bytes) {
            const memory = new DataView(c.memory.buffer);
            memory.setUint32(count, 0, true);
            memory.setUint32(bytes, 0, true);
            return 0;
        },
        proc_exit(code) { throw new LociError(`it ended with ${code}, most likely for want of memory`, "no_memory"); },
    };
    const rest = { get: (known, name) => known[name] ?? (() => NO_SUCH_FILE) };
    c = new WebAssembly.Instance(module, { wasi_snapshot_preview1: new Proxy(system, rest) }).exports;
    c._initialize();
    return c;
}

async function compile(source) {
    if (source instanceof WebAssembly.Module) return source;
    if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return WebAssembly.compile(source);
    if (typeof Response !== "undefined" && source instanceof Response) return compile(await source.arrayBuffer());
    const url = new URL(source, import.meta.url);
    if (url.protocol !== "file:") return compile(await fetch(url));
    const { readFile } = await import(/* webpackIgnore: true */ /* @vite-ignore */ "node:fs/promises");
    return compile(await readFile(url));
}

/** Compiles loci.wasm, by default the file next to loci.js, and returns the library. */
export async function load(source = new URL("./loci.wasm", import.meta.url)) {
    return new Loci(await compile(source));
}

class Loci {
    constructor(module) {
        this.c = instantiate(module);
        this.structs = JSON.parse(this.string(this.c.structs()));
        this.error = new Frame(this).struct("error", {});
        this.table = JSON.parse(this.string(this.c.encodings()));
        this.version = this.table.version;
        this.known = new Map(this.table.encodings.map(e => [e.name, e]));
    }
    get buffer() { return this.c.memory.buffer; }
    string(at) {
        const bytes = new Uint8Array(this.buffer), from = at >>> 0;
        return new TextDecoder().decode(bytes.slice(from, bytes.indexOf(0, from)));
    }
    set(name, at, values) {
        const memory = new DataView(this.buffer), layout = this.structs[name];
        for (const [field, value] of Object.entries(values)) {
            const [offset, form] = layout[field];
            if (form === "d") memory.setFloat64(at + offset, value, true);
            else if (form === "q") memory.setBigInt64(at + offset, BigInt.asIntN(64, BigInt(value)), true);
            else memory.setInt32(at + offset, Number(value), true);
        }
    }
    // The sentence of a status that is not 0, or of a size that is.
    fail(status, otherwise) {
        const memory = new DataView(this.buffer), { error } = this.structs;
        const said = this.string(this.error + error.text[0]);
        const known = status || memory.getInt32(this.error + error.status[0], true) || 1;
        throw new LociError(said || otherwise || "the library gave no reason", STATUS[known]);
    }
    clear() { new Uint8Array(this.buffer, this.error, this.structs.error.bytes).fill(0); }
    try(run) {
        this.clear();
        const status = run();
        if (status) this.fail(status);
    }
    size(run, otherwise) {
        this.clear();
        const size = run() >>> 0;
        if (!size) this.fail(0, otherwise);
        return size;
    }

    /** All encodings with their options, ordered by kind. */
    list() { return this.table.encodings.map(e => this.describe(e.name)); }

    /** One encoding, by its name alone. */
    describe(name) {
        const e = this.known.get(text(name, "name"));
        if (!e) {
            this.plan({ encoding: name || " ", heads: 1, dim: 8 }).free();
            throw new LociError(`'${name}' is a text with options; describe() wants the name alone`);
        }
        const option = ({ default_value, words, ...o }) => {
            const list = words ? words.split("|") : [];
            return { ...o, default: default_value === null ? null : list[default_value] ?? default_value, words: list };
        };
        return { ...e, places: [...e.places], options: e.options.map(option) };
    }

    /** Decides a problem once: encoding, sizes and options. */
    plan(given) { return new Plan(this, given); }

    /** Keys and values of growing sequences, for decode. */
    cache(given) { return new Cache(this, given); }

    look(encoding, given) {
        const { len = 64, dim = 64, heads = 8, head = 0, seed = 1 } = given;
        const bytes = new TextEncoder().encode(text(encoding, "encoding")), at = this.c.room(bytes.length) >>> 0;
        if (!at) throw new LociError(this.string(this.c.sentence()));
        new Uint8Array(this.buffer, at, bytes.length + 1).set([...bytes, 0]);
        const key = [encoding, len, dim, heads, head, seed].join();
        if (this.looked?.key === key) return this.looked.has;
        this.looked = null;
        const has = this.c.look(len, dim, heads, head, seed);
        if (has < 0) throw new LociError(this.string(this.c.sentence()));
        this.looked = { key, has: this.table.what.filter((_, i) => has >> i & 1) };
        return this.looked.has;
    }

    /** Which figures an encoding has, its whole plan, and where its tensors come from. */
    about(encoding, given = {}) {
        const figures = this.look(encoding, options(given, FIGURE, "about()"));
        const { text: plan, tensors } = JSON.parse(this.string(this.c.about()));
        return { figures, text: plan, tensors };
    }

    /** A figure as `loci show` draws it: SVG, a piece of HTML, or its numbers in JSON. */
    show(encoding, given = {}) {
        const { format = "svg", ...figure } = options(given, [...FIGURE, "format"], "show()");
        const form = oneOf(format, FORMATS, "format"), has = this.look(encoding, figure);
        const what = figure.what ?? has[0];
        check(has.includes(what), `${encoding} has no figure '${what}', only ${has.join(", ")}`);
        const at = this.c.figures(this.table.what.indexOf(what), form);
        if (!at) throw new LociError(this.string(this.c.sentence()));
        return this.string(at);
    }
}

// Rows of an array without a shape.
function length(plan, x, name, batch, heads, width) {
    const each = batch * heads * width, count = reals(x, plan.type, name).length;
    check(each ? count % each === 0 : !count,
        `${name} has ${count} numbers, which is no multiple of ${each}: batch ${batch}, ${heads} heads of ${width}`);
    return each ? count / each : 0;
}
function sized(x, name, count) {
    check(x.length === count, `${name} has ${x.length} numbers, but must have ${count}`);
    return x;
}
// Shapes of tensors that an encoding accepts in several forms.
function listed(frame, shapes) {
    const { library } = frame, layout = library.structs.tensor, names = Object.keys(shapes);
    const at = frame.room(names.length * layout.bytes);
    names.forEach((name, i) => {
        const [encoding, own] = [name.slice(0, name.indexOf(".")), name.slice(name.indexOf(".") + 1)], shape = shapes[name];
        check(name.includes(".") && Array.isArray(shape) && shape.length <= 5, `shapes: '${name}' must be a name such as t5.table with at most 5 sizes`);
        const tensor = { encoding: frame.text(encoding), name: frame.text(own), role: 0, rank: shape.length };
        library.set("tensor", at + i * layout.bytes, tensor);
        new Int32Array(library.buffer, at + i * layout.bytes + layout.shape[0], shape.length).set(shape);
    });
    return { tensors: at, tensor_count: names.length };
}

// ---- Who sees whom ------------------------------------------------------------------------------

// Positions, coordinates, segments, first and last keys as C reads them; `distance` of the result
// bounds those of all pairs.  Lists with the batch in front make all others so.
function places(plan, { batch, rows, keys }, o, call) {
    const found = [];
    const both = (one, q, k) => {
        if (o[one] !== undefined) {
            check(o[q] === undefined && o[k] === undefined, `${one} stands for both ${q} and ${k}`);
            return [o[one], o[one], one, one];
        }
        check((o[q] === undefined) === (o[k] === undefined), `${q} and ${k} go together`);
        return [o[q], o[k], q, k];
    };
    const add = (field, x, name, each, make) => {
        if (x === undefined) return;
        const list = make(x, name);
        check(list.length === each || list.length === batch * each,
            `${name} has ${list.length} numbers, but must have ${each}${batch > 1 ? ` or ${batch * each}` : ""}`);
        found.push({ field, list, each });
    };
    const doubles = (x, name) => x instanceof Float64Array ? x : Float64Array.from(x, each => number(each, name));
    const [qp, kp, qn, kn] = both("pos", "q_pos", "k_pos");
    add("q_pos", qp, qn, rows, int64);
    add("k_pos", kp, kn, keys, int64);
    const [qc, kc, qcn, kcn] = both("coords", "q_coords", "k_coords");
    add("q_coord", qc, qcn, plan.axes * rows, doubles);
    add("k_coord", kc, kcn, plan.axes * keys, doubles);
    const [qs, ks, qsn, ksn] = both("seg", "q_seg", "k_seg");
    add("q_seg", qs, qsn, rows, int64);
    add("k_seg", ks, ksn, keys, int64);
    if (o.k_first !== undefined || o.k_last !== undefined) {
        add("k_first", o.k_first ?? Array(rows).fill(0), "k_first", rows, int64);
        add("k_last", o.k_last ?? Array(rows).fill(Math.max(keys - 1, 0)), "k_last", rows, int64);
    }
    const batched = batch > 1 && found.some(({ list, each }) => each > 0 && list.length > each);
    call.per_batch = batched ? 1 : 0;
    const lists = found.map(({ field, list, each }) => {
        if (!batched || list.length > each) return [field, list];
        const whole_ = new list.constructor(batch * each);
        for (let b = 0; b < batch; b++) whole_.set(list, b * each);
        return [field, whole_];
    });
    const [q, k] = ["q_pos", "k_pos"].map(name => lists.find(([field]) => field === name)?.[1]);
    if (q?.length && k?.length) lists.distance = distance(q, k);
    return lists;
}
// The largest distance of a row and a key; those of other batch entries may only make it larger.
function distance(q, k) {
    const range = list => list.reduce(([low, high], x) => [x < low ? x : low, x > high ? x : high], [list[0], list[0]]);
    const [q0, q1] = range(q), [k0, k1] = range(k), [a, b] = [q1 - k0, k1 - q0];
    return Number(a > b ? a : b > 0n ? b : 0n);
}
function starts(frame, o, call) {
    if (o.cu_seqlens_q === undefined) return check(o.cu_seqlens_k === undefined, "cu_seqlens_q is missing: cu_seqlens_k was given");
    const q = int64(o.cu_seqlens_q, "cu_seqlens_q"), k = int64(o.cu_seqlens_k ?? q, "cu_seqlens_k");
    check(q.length > 0 && q.length === k.length, "cu_seqlens_q and cu_seqlens_k must have as long lists, from 0 to the last end");
    Object.assign(call, { q_starts: frame.put(q), k_starts: frame.put(k), sequences: q.length - 1 });
}
function mask(frame, plan, { batch, rows, keys }, o, call) {
    if (o.mask === undefined || o.mask === null) return;
    const all = batch * plan.heads * rows * keys, x = o.mask, bytes = x instanceof Uint8Array;
    const own = bytes ? x : reals(x, plan.type, "mask");
    check(own.length === all || own.length === rows * keys,
        `mask has ${own.length} numbers, but must have ${rows * keys} [rows, keys] or ${all} [batch, heads, rows, keys]`);
    call.mask_kind = bytes ? SEEN : ADDED;
    Object.assign(call, dense("mask", frame.put(own)));
    if (own.length !== all)
        Object.assign(call, { "mask.batch": BROADCAST, "mask.head": BROADCAST, "mask.row": keys });
}

// ---- Plans ------------------------------------------------------------------------------------

// -1 is open and 0 the own position, as in flash-attention; C has 0 and NONE.
function windowSide(x) {
    check(Number.isInteger(x) && x >= -1, `window_size has two whole numbers from -1 on, not ${x}`);
    return x === 0 ? NONE : Math.max(x, 0);
}

class Plan {
    constructor(library, given) {
        const o = options(given, PLAN, "plan()");
        this.library = library;
        this.encoding = text(o.encoding, "encoding");
        this.stage = o.stage ?? "attention";
        this.dtype = o.dtype ?? "float32";
        this.causal = o.causal ?? true;
        const size = (name, low) => o[name] === undefined ? 0 : whole(o[name], name, low);
        this.heads = size("heads", 0);
        this.dim = size("dim", 0);
        this.kv_heads = size("kv_heads", 1) || this.heads;
        this.value_dim = size("value_dim", 1) || this.dim;
        this.model_dim = size("model_dim", 1);
        const [left, right] = o.window_size ?? [-1, -1];
        const scale = o.scale === undefined ? 0 : number(o.scale, "scale");
        check(o.scale !== 0, "scale must not be 0; without it the encoding has its own");
        oneOf(this.dtype, Object.keys(TYPES), "dtype");
        this.type = TYPES[this.dtype];
        const desc = {
            stage: oneOf(this.stage, STAGES, "stage"), heads: this.heads, dim: this.dim,
            kv_heads: size("kv_heads", 1), value_dim: size("value_dim", 1), model_dim: this.model_dim,
            dtype: this.dtype === "float64" ? 1 : 0, full: this.causal ? 0 : 1,
            window_left: windowSide(left), window_right: this.causal ? 0 : windowSide(right), scale,
            max_len: size("max_len", 1), keys_rotated: o.keys_rotated ? 1 : 0,
        };
        const { c } = library;
        this.at = framed(library, frame => {
            const out = frame.put(new Uint32Array(1));
            if (o.shapes) Object.assign(desc, listed(frame, o.shapes));
            desc.encoding = frame.text(this.encoding);
            const at = frame.struct("desc", desc);
            library.try(() => c.loci_plan_create(out, at, library.error));
            return new Uint32Array(library.buffer, out, 1)[0];
        });
        const at = this.at, kept = this.kept = { tables: 0, distance: 0 };
        this.held = new Held(this, planFreer(c, at, kept));
        this.text = library.string(c.loci_plan_text(at));
        this.axes = c.loci_axes(at);
        this.readTensors();
        // of any encoding of the text
        const acts = place => this.encoding.split("+").some(part =>
            library.known.get(part.split(":")[0].trim())?.places.includes(place));
        this.weighs = acts("weight");       // it has a remainder and no sum of weights
        this.averages = acts("state");      // and ae
    }
    readTensors() {
        const { library, at } = this, { c } = library, layout = library.structs.tensor;
        const count = c.loci_tensors(at, 0, 0);
        this.sizes = [];
        this.tensors = framed(library, frame => {
            const room = frame.room(count * layout.bytes);
            c.loci_tensors(at, room, count);
            return Array.from({ length: count }, (_, i) => {
                const memory = new DataView(library.buffer, room + i * layout.bytes, layout.bytes);
                const int = ([offset], k = 0) => memory.getInt32(offset + 4 * k, true);
                const shape = Array.from({ length: int(layout.rank) }, (_, k) => int(layout.shape, k));
                this.sizes.push(shape);
                return {
                    name: `${library.string(int(layout.encoding))}.${library.string(int(layout.name))}`,
                    role: ROLES[int(layout.role)], shape: shape.map(n => n < 0 ? null : n),
                    source: SOURCES[c.loci_tensor_source(at, i)], low: c.loci_tensor_low(at, i),
                };
            });
        });
        this.prepares = this.tensors.some(t => t.role !== "input");
    }

    /** Frees the plan now. */
    free() { this.held.free(); }
    [Symbol.dispose ?? Symbol("dispose")]() { this.free(); }

    /** Learned and fixed tensors as the encodings' papers start them. */
    init(seed = 0) {
        this.held.alive("plan");
        check(typeof seed === "bigint" || Number.isSafeInteger(seed), `seed must be a whole number, not ${seed}`);
        return framed(this.library, frame => {
            const made = {};
            this.tensors.forEach(({ name, role }, i) => {
                if (role === "input") return;
                const count = many(this.sizes[i]), at = frame.numbers(this.type, count);
                this.library.c.loci_tensor_init(this.at, i, BigInt(seed), at);
                made[name] = frame.get(this.type, at, count);
            });
            return made;
        });
    }

    /** Radians per position of each pair, after scaling; empty without such a rotation. */
    get frequencies() { return this.readFrequencies().list; }
    /** The factor that a scaling of rope puts on rotated q and k. */
    get attention_factor() { return this.readFrequencies().factor; }
    readFrequencies() {
        this.held.alive("plan");
        const { c } = this.library;
        return framed(this.library, frame => {
            const factor = frame.put(new Float64Array([1]));
            const count = c.loci_frequencies(this.at, 0, 0, factor), at = frame.numbers(Float64Array, count);
            c.loci_frequencies(this.at, at, count, factor);
            return { list: frame.get(Float64Array, at, count), factor: frame.get(Float64Array, factor, 1)[0] };
        });
    }

    // ---- Tensors and tables ---------------------------------------------------------------------

    // The list of pointers of C, with 0 for what is not there.
    gather(frame, given, shape, wanted = () => true) {
        const named = { ...given };
        const list = this.tensors.map(({ name }, i) => {
            const x = named[name];
            delete named[name];
            if (x === undefined || x === null) {
                check(!wanted(i), `tensors: ${name} is missing, with the shape [${this.shapeOf(i, shape, "words")}]`);
                return 0;
            }
            const own = reals(x, this.type, name), count = many(this.shapeOf(i, shape));
            check(own.length === count, `${name} has ${own.length} numbers, but must have ${count}: [${this.shapeOf(i, shape)}]`);
            return frame.put(own);
        });
        const [extra] = Object.keys(named);
        check(extra === undefined, `tensors: ${this.encoding} has no tensor '${extra}'`);
        return list;
    }
    shapeOf(i, { batch, rows, keys } = {}, words) {
        const known = { [BATCH]: batch, [QUERIES]: rows, [KEYS]: keys };
        const named = { [BATCH]: "batch", [QUERIES]: "rows", [KEYS]: "keys" };
        return this.sizes[i].map(n => n >= 0 ? n : words ? named[n] : known[n]);
    }
    tables(frame, distance, list) {
        const { library, at } = this, { c } = library;
        const size = library.size(() => c.loci_tables_size(at, distance),
            `${this.encoding}: tables for distances up to ${distance} are too large`);
        const room = frame.room(size);
        library.try(() => c.loci_prepare_on(0, at, distance, list, room, library.error));
        return room;
    }
    // Without tensors they are kept, for the next power of two.
    tablesFor(frame, distance, list, prepared) {
        check(distance < 2 ** 30, `positions must be less than 2^30 apart here, not ${distance}`);
        if (prepared) return prepared.at;
        if (this.prepares) return this.tables(frame, distance, list);
        if (!this.kept.tables || distance > this.kept.distance) {
            const rounded = Math.max(512, 2 ** Math.ceil(Math.log2(distance)));
            const made = this.tables(frame, Math.min(rounded, 2 ** 30), list);
            frame.keep(made);
            if (this.kept.tables) this.library.c.free(this.kept.tables);
            Object.assign(this.kept, { tables: made, distance: rounded });
        }
        return this.kept.tables;
    }

    /** Tables of learned and fixed tensors, to pass as `tensors` to later calls. */
    prepared(tensors = {}, { max_distance } = {}) {
        this.held.alive("plan");
        return new Prepared(this, tensors, whole(max_distance, "max_distance", 0, 2 ** 30));
    }

    // ---- Calls ----------------------------------------------------------------------------------

    // Everything of a call but its rows: who sees whom, and the tensors.
    lay(frame, shape, o, wanted) {
        const { batch, rows, keys } = shape, call = { batch, q_len: rows, k_len: keys, error: this.library.error };
        const lists = places(this, shape, o, call);
        for (const [field, x] of lists) call[field] = frame.put(x);
        if (o.k_lens !== undefined) {
            const lens = typeof o.k_lens === "number" ? Array(batch).fill(o.k_lens) : o.k_lens;
            call.k_lens = frame.put(sized(int64(lens, "k_lens"), "k_lens", batch));
        }
        starts(frame, o, call);
        mask(frame, this, shape, o, call);
        if (o.dropout_p) {
            call.dropout = number(o.dropout_p, "dropout_p");
            check(o.dropout_seed !== undefined, "dropout_p wants a dropout_seed");
            call.dropout_seed = BigInt(o.dropout_seed);
            call.dropout_offset = BigInt(o.dropout_offset ?? 0);
        }
        const prepared = o.tensors instanceof Prepared ? o.tensors : null;
        prepared?.belongs(this);
        const given = { ...(prepared ? prepared.tensors : o.tensors), ...o.inputs };
        call.list = this.gather(frame, given, shape, wanted);
        call.tensors = frame.put(new Uint32Array(call.list));
        const tables = this.tablesFor(frame, lists.distance ?? Math.max(rows, keys, 1), call.tensors, prepared);
        const { list, ...fields } = call;
        return { fields, list, tables };
    }
    struct(frame, fields) { return frame.struct("call", fields); }
    work(frame, call, backward) {
        const { library } = this;
        return frame.room(library.size(() => library.c.loci_workspace(this.at, call, backward)));
    }
    view(name, at, heads, rows, width, layout) {
        if (layout === "bhld" || layout === undefined) return dense(name, at);
        return {
            ...dense(name, at), [`${name}.batch`]: rows * heads * width || BROADCAST, [`${name}.head`]: width,
            [`${name}.row`]: heads * width,
        };
    }
    attends(q, k, v, o, more = []) {
        this.held.alive("plan");
        options(o, [...CALL, ...more], "this call");
        const batch = whole(o.batch ?? 1, "batch", 1);
        const rows = length(this, q, "q", batch, this.heads, this.dim);
        const keys = length(this, k, "k", batch, this.kv_heads, this.dim);
        if (v !== undefined) {
            const own = length(this, v, "v", batch, this.kv_heads, this.value_dim);
            check(own === keys, `v has ${own} rows and k ${keys}`);
        }
        oneOf(o.layout ?? "bhld", LAYOUTS, "layout");
        check(o.layout !== "thd" || batch === 1, "layout thd has no batch");
        return { batch, rows, keys };
    }
    rows(frame, shape, q, k, v, o) {
        const { kv_heads, heads, dim, value_dim, type } = this;
        const put = (name, x) => frame.put(reals(x, type, name));
        return {
            ...this.view("q", put("q", q), heads, shape.rows, dim, o.layout),
            ...this.view("k", put("k", k), kv_heads, shape.keys, dim, o.layout),
            ...(v === undefined ? {} : this.view("v", put("v", v), kv_heads, shape.keys, value_dim, o.layout)),
        };
    }

    /** Attention: o, or { o, lse, ae } with `return_lse`.  lse of sba is its remainder. */
    forward(q, k, v, o = {}) {
        const shape = this.attends(q, k, v, o, ["return_lse"]), linear = this.stage === "linear_attention";
        check(linear || this.stage === "attention", `the plan is one for stage ${this.stage}, and this is attention`);
        const { library, type, heads, value_dim } = this, { c } = library;
        const count = shape.batch * heads * shape.rows;
        return framed(library, frame => {
            const { fields, tables } = this.lay(frame, shape, o);
            const out = frame.numbers(type, count * value_dim);
            const lse = o.return_lse && !linear ? frame.numbers(type, count) : 0;
            const ae = this.averages ? frame.numbers(type, count * this.dim) : 0;
            const call = this.struct(frame, {
                ...fields, ...this.rows(frame, shape, q, k, v, o), [this.weighs ? "rem" : "lse"]: lse, ae,
                ...this.view("o", out, heads, shape.rows, value_dim, o.layout),
            });
            const work = this.work(frame, call, 0);
            library.try(() => linear ? c.loci_linear_forward(this.at, tables, work, call, 0, 0)
                : c.loci_forward(this.at, tables, work, call));
            const made = frame.get(type, out, count * value_dim);
            if (!o.return_lse) return made;
            return {
                o: made, ...(lse ? { lse: frame.get(type, lse, count) } : {}),
                ...(ae ? { ae: frame.get(type, ae, count * this.dim) } : {}),
            };
        });
    }

    /** Gradients of forward(), from its outputs: { dq, dk, dv, dtensors }. */
    backward(dout, q, k, v, out, lse, o = {}) {
        const shape = this.attends(q, k, v, o, ["dlse", "dae", "ae"]), linear = this.stage === "linear_attention";
        check(linear || this.stage === "attention", `the plan is one for stage ${this.stage}, and this is attention`);
        const { library, type, heads, kv_heads, dim, value_dim } = this, { c } = library;
        const { batch, rows, keys } = shape, count = batch * heads * rows;
        return framed(library, frame => {
            const { fields, list, tables } = this.lay(frame, shape, o);
            const put = (x, name, size) => x === undefined || x === null ? 0 : frame.put(sized(reals(x, type, name), name, size));
            const view = (name, at, of, n, width) => this.view(name, at, of, n, width, o.layout);
            check(out, "out is missing: the output of forward()");
            check(linear || lse, "lse is missing: forward() returns it with return_lse");
            check(!this.averages || o.ae, "ae is missing: forward() returns it with return_lse");
            const at = {
                dq: frame.numbers(type, q.length), dk: frame.numbers(type, k.length), dv: frame.numbers(type, v.length),
                mask: o.mask && !(o.mask instanceof Uint8Array) ? frame.numbers(type, count * keys) : 0,
            };
            const dlist = this.gradients(frame, list, shape);
            const call = this.struct(frame, {
                ...fields, ...this.rows(frame, shape, q, k, v, o), ae: put(o.ae, "ae", count * dim),
                ...view("o", put(out, "out", count * value_dim), heads, rows, value_dim),
                [this.weighs ? "rem" : "lse"]: linear ? 0 : put(lse, "lse", count),
            });
            const dview = dout ? view("dout", put(dout, "dout", count * value_dim), heads, rows, value_dim) : {};
            const grad = frame.struct("grad", {
                ...dview, [this.weighs ? "drem" : "dlse"]: put(o.dlse, "dlse", count), dae: put(o.dae, "dae", count * dim),
                ...view("dq", at.dq, heads, rows, dim), ...view("dk", at.dk, kv_heads, keys, dim),
                ...view("dv", at.dv, kv_heads, keys, value_dim), dtensors: frame.put(new Uint32Array(dlist)),
                ...(at.mask ? dense("dmask", at.mask) : {}),
            });
            const work = this.work(frame, call, 1);
            library.try(() => linear ? c.loci_linear_backward(this.at, tables, work, call, grad)
                : c.loci_backward(this.at, tables, work, call, grad));
            const dtensors = this.collect(frame, dlist, shape);
            if (at.mask) dtensors.mask = frame.get(type, at.mask, count * keys);
            return {
                dq: frame.get(type, at.dq, q.length), dk: frame.get(type, at.dk, k.length),
                dv: frame.get(type, at.dv, v.length), dtensors,
            };
        });
    }
    // Room for the gradients of the tensors that are there.
    gradients(frame, list, shape) {
        return list.map((at, i) => at && this.tensors[i].role !== "fixed"
            ? frame.numbers(this.type, many(this.shapeOf(i, shape))) : 0);
    }
    collect(frame, dlist, shape) {
        const made = {};
        dlist.forEach((at, i) => {
            if (at) made[this.tensors[i].name] = frame.get(this.type, at, many(this.shapeOf(i, shape)));
        });
        return made;
    }

    /** The weights that rows give to keys, [batch, heads, rows, keys]. */
    weights(q, k, o = {}) {
        const shape = this.attends(q, k, undefined, o), { library, type, heads } = this;
        check(this.stage === "attention", `the plan is one for stage ${this.stage}, and weights() is attention`);
        const v = new type(shape.batch * this.kv_heads * shape.keys * this.value_dim);
        const { lse, ae } = this.forward(q, k, v, { ...o, return_lse: true });
        const count = shape.batch * heads * shape.rows;
        return framed(library, frame => {
            const { fields, tables } = this.lay(frame, shape, o);
            const out = frame.numbers(type, count * this.value_dim), made = frame.numbers(type, count * shape.keys);
            const call = this.struct(frame, {
                ...fields, ...this.rows(frame, shape, q, k, v, o), ae: ae ? frame.put(ae) : 0,
                [this.weighs ? "rem" : "lse"]: frame.put(lse),
                ...this.view("o", out, heads, shape.rows, this.value_dim, o.layout),
            });
            const work = this.work(frame, call, 1), view = frame.struct("view", dense("x", made));
            library.try(() => library.c.loci_weights(this.at, tables, work, call, view));
            return frame.get(type, made, count * shape.keys);
        });
    }

    // Rows of one kind, for rotate() and embed().
    alone(x, o, more, role) {
        this.held.alive("plan");
        options(o, [...PLACES, ...TENSORS, ...more], "this call");
        const batch = whole(o.batch ?? 1, "batch", 1), embeds = this.stage === "embed";
        const width = role === "value" ? this.value_dim : this.dim;
        const heads = role === "query" || this.stage === "rotate" ? this.heads : this.kv_heads;
        const rows = length(this, x, "x", batch, embeds ? 1 : heads, embeds ? this.model_dim : width);
        // Inputs by row of the other role are not read.
        const other = role === "query" ? KEYS : QUERIES;
        const wanted = i => embeds || !this.sizes[i].includes(other);
        return { shape: { batch, rows, keys: rows }, heads, width, wanted };
    }

    /** Rotates queries, keys or values: role is query, key or value. */
    rotate(x, o = {}) { return this.turn(x, null, o).y; }
    /** Gradients of rotate(): { dx, dtensors }. */
    rotate_backward(dy, x, o = {}) { return this.turn(x, dy, o); }
    turn(x, dy, o) {
        const role = o.role ?? "query", { library, type } = this, { c } = library;
        oneOf(role, Object.keys(WHICH), "role");
        const { shape, heads, width, wanted } = this.alone(x, o, ["role", "layout"], role);
        return framed(library, frame => {
            const { fields, list, tables } = this.lay(frame, shape, o, wanted);
            const call = this.struct(frame, fields), work = this.work(frame, call, dy ? 1 : 0);
            const view = at => frame.struct("view", this.view("x", at, heads, shape.rows, width, o.layout));
            const vx = view(frame.put(reals(x, type, "x"))), y = frame.numbers(type, x.length), vy = view(y);
            const given = [this.at, tables, work, call, WHICH[role], vx];
            if (!dy) {
                library.try(() => c.loci_rotate(...given, vy));
                return { y: frame.get(type, y, x.length) };
            }
            const vdy = view(frame.put(sized(reals(dy, type, "dy"), "dy", x.length)));
            const dlist = this.gradients(frame, list, shape);
            const dtensors = frame.put(new Uint32Array(dlist));
            library.try(() => c.loci_rotate_backward(...given, vdy, vy, dtensors));
            return { dx: frame.get(type, y, x.length), dtensors: this.collect(frame, dlist, shape) };
        });
    }

    /** x with the embeddings of its positions, [batch, rows, model_dim]; stage embed. */
    embed(x, o = {}) {
        const { shape } = this.alone(x, o, []), { library, type } = this;
        return framed(library, frame => {
            const { fields, tables } = this.lay(frame, shape, o);
            const call = this.struct(frame, fields), y = frame.numbers(type, x.length);
            const vx = frame.struct("view", dense("x", frame.put(reals(x, type, "x")))), vy = frame.struct("view", dense("x", y));
            library.try(() => library.c.loci_embed(this.at, tables, call, vx, vy));
            return frame.get(type, y, x.length);
        });
    }
    /** Gradients of embed(): { dx, dtensors }; dx are the numbers of dy. */
    embed_backward(dy, o = {}) {
        const { shape } = this.alone(dy, o, []), { library, type } = this;
        return framed(library, frame => {
            const { fields, list, tables } = this.lay(frame, shape, o);
            const call = this.struct(frame, fields), work = this.work(frame, call, 1), own = reals(dy, type, "dy");
            const view = frame.struct("view", dense("x", frame.put(own)));
            const dlist = this.gradients(frame, list, shape);
            const dtensors = frame.put(new Uint32Array(dlist));
            library.try(() => library.c.loci_embed_backward(this.at, tables, work, call, view, dtensors));
            return { dx: own.slice(), dtensors: this.collect(frame, dlist, shape) };
        });
    }
}

// The tables of a plan's tensors.
class Prepared {
    constructor(plan, tensors, distance) {
        const { library } = plan;
        this.plan = plan;
        const inputs = new Set(plan.tensors.filter(t => t.role === "input").map(t => t.name));
        this.tensors = Object.fromEntries(Object.entries(tensors).map(([name, x]) => {
            check(!inputs.has(name), `tensors: ${name} comes with each call, in inputs`);
            return [name, x.slice()];
        }));
        this.at = framed(library, frame => {
            const list = plan.gather(frame, this.tensors, {}, i => plan.tensors[i].role !== "input");
            const made = plan.tables(frame, Math.max(distance, 1), frame.put(new Uint32Array(list)));
            frame.keep(made);
            return made;
        });
        this.held = new Held(this, blockFreer(library.c, this.at, []));
    }
    belongs(plan) {
        this.held.alive("table");
        check(this.plan === plan, "these tables were prepared by another plan");
    }
    /** Frees the tables now. */
    free() { this.held.free(); }
    [Symbol.dispose ?? Symbol("dispose")]() { this.free(); }
}

// ---- Decode -------------------------------------------------------------------------------------

const CACHE = [...PLAN.filter(name => !["stage", "causal", "keys_rotated", "model_dim"].includes(name)),
    "batch", "capacity", "tensors", "ring", "max_distance", "layout"];

class Cache {
    constructor(library, given) {
        const { batch = 1, capacity, tensors = {}, ring = false, max_distance = 0, layout = "bhld", ...problem } =
            options(given, CACHE, "cache()");
        this.library = library;
        this.batch = whole(batch, "batch", 1);
        this.capacity = Math.ceil(whole(capacity, "capacity", 1, 2 ** 30) / 64) * 64;
        this.max_distance = Math.max(this.capacity, whole(max_distance, "max_distance", 0, 2 ** 30 - 1));
        oneOf(layout, LAYOUTS.slice(0, 2), "layout of a cache");
        this.layout = layout;
        this.ring = Boolean(ring);
        const { c } = library, plan = this.plan = rotatedPlan(library, problem);
        try {
            this.tables = plan.prepared(tensors, { max_distance: this.max_distance });
            const size = library.size(() => c.loci_cache_size(plan.at, this.batch, this.capacity),
                `a cache for a batch of ${this.batch} and a capacity of ${this.capacity} cannot be`);
            this.memory = framed(library, frame => {
                const memory = frame.room(size), out = frame.put(new Uint32Array(1));
                library.try(() => c.loci_cache_create(out, plan.at, this.batch, this.capacity, ring ? 1 : 0, memory, library.error));
                this.at = new Uint32Array(library.buffer, out, 1)[0];
                frame.keep(memory);
                return memory;
            });
        } catch (e) {
            this.tables?.free();
            plan.free();
            throw e;
        }
        this.nbytes = c.loci_cache_size(plan.at, this.batch, this.capacity);
        this.held = new Held(this, blockFreer(c, this.memory, [this.tables, plan]));
    }

    /** Frees the cache now. */
    free() { this.held.free(); }
    [Symbol.dispose ?? Symbol("dispose")]() { this.free(); }

    /** Keys so far, of one sequence. */
    length(entry = 0) {
        this.held.alive("cache");
        return Number(this.library.c.loci_cache_length(this.at, whole(entry, "entry", 0, this.batch - 1)));
    }
    /** Keys so far, of each sequence. */
    get lengths() { return Array.from({ length: this.batch }, (_, b) => this.length(b)); }

    /** Appends the keys and values of new tokens. */
    append(k, v, o = {}) { this.attends(null, k, v, o); }
    /** Attends from rows to all keys. */
    attend(q, o = {}) { return this.attends(q, null, null, o); }
    /** Appends new tokens and attends from them: o, [batch, heads, n, value_dim]. */
    step(q, k, v, o = {}) { return this.attends(q, k, v, o); }

    attends(q, k, v, o) {
        this.held.alive("cache");
        options(o, ["pos", "coords", "k_lens", "inputs"], "a cache's call");
        const { library, plan, batch, layout } = this, { c } = library, { type, heads, kv_heads, dim, value_dim } = plan;
        const of = (x, name, own, width) => x ? length(plan, x, name, batch, own, width) : null;
        const rows = of(q, "q", heads, dim), keys = of(k, "k", kv_heads, dim), values = of(v, "v", kv_heads, value_dim);
        check(keys === values && (rows === null || keys === null || rows === keys),
            `q, k and v have ${[rows, keys, values].filter(n => n !== null).join(", ")} rows: they are of the same new tokens`);
        const n = rows ?? keys, shape = { batch, rows: n, keys: n };
        return framed(library, frame => {
            const call = { ...o, tensors: this.tables };
            // Inputs by key are those of the new tokens.
            const wanted = i => plan.tensors[i].role === "input" && (keys !== null || !plan.sizes[i].includes(KEYS));
            const { fields, tables } = plan.lay(frame, shape, call, wanted);
            const count = batch * heads * n * value_dim, out = q ? frame.numbers(type, count) : 0;
            const at = plan.struct(frame, {
                ...fields, q_len: rows ?? 0, cache: this.at,
                ...(q ? plan.view("q", frame.put(reals(q, type, "q")), heads, n, dim, layout) : {}),
                ...(k ? plan.view("k", frame.put(reals(k, type, "k")), kv_heads, n, dim, layout) : {}),
                ...(v ? plan.view("v", frame.put(reals(v, type, "v")), kv_heads, n, value_dim, layout) : {}),
                ...(q ? plan.view("o", out, heads, n, value_dim, layout) : {}),
                ae: q && plan.averages ? frame.numbers(type, batch * heads * n * dim) : 0,
            });
            const work = plan.work(frame, at, 0), before = this.lengths;
            try {
                if (k) library.try(() => c.loci_cache_append(plan.at, tables, work, this.at, at));
                if (q) library.try(() => c.loci_forward(plan.at, tables, work, at));
            } catch (e) {
                before.forEach((most, entry) => {
                    if (this.length(entry) > most) c.loci_cache_truncate(this.at, entry, BigInt(most), 0);
                });
                throw e;
            }
            return q ? frame.get(type, out, count) : undefined;
        });
    }

    /** Drops the keys from an index on, of one sequence or of all. */
    truncate(length_, entry) {
        this.held.alive("cache");
        const { c, error } = this.library, most = BigInt(whole(length_, "length", 0));
        for (const b of this.entries(entry)) this.library.try(() => c.loci_cache_truncate(this.at, b, most, error));
    }
    /** Drops keys in the middle.  Later keys move up, and their positions with them. */
    remove(first, count, entry) {
        this.held.alive("cache");
        const { library, plan } = this, list = [BigInt(whole(first, "first", 0)), BigInt(whole(count, "count", 0))];
        const entries = this.entries(entry);
        framed(library, frame => {
            const call = plan.struct(frame, { batch: this.batch, cache: this.at, error: library.error });
            const work = plan.work(frame, call, 0);
            for (const b of entries)
                library.try(() => library.c.loci_cache_remove(plan.at, this.tables.at, work, this.at, b, ...list, call));
        });
    }
    // The shortest comes first: if it has too few keys, no other has changed.
    entries(entry) {
        if (entry !== undefined) return [whole(entry, "entry", 0, this.batch - 1)];
        return [...Array(this.batch).keys()].sort((a, b) => this.length(a) - this.length(b));
    }
}

// Keys are kept rotated, if the encoding rotates them.
function rotatedPlan(library, problem) {
    try {
        return new Plan(library, { ...problem, keys_rotated: true });
    } catch (e) {
        if (!(e instanceof LociError)) throw e;
        return new Plan(library, problem);
    }
}
