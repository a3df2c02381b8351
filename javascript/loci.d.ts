// SPDX-License-Identifier: MIT
// Types of loci.js.  docs/javascript.md explains the arguments.

/** Kind of error: bad_arg, unsupported, no_memory and others. */
export type Status = "bad_arg" | "unsupported" | "no_memory" | "cancelled" | "transport";
/** What loci refuses, with the reason in one sentence. */
export declare class LociError extends Error {
    constructor(text: string, status?: Status);
    readonly status: Status;
}

/** Compiles loci.wasm, by default the file next to loci.js, and returns the library. */
export declare function load(source?: URL | string | BufferSource | WebAssembly.Module | Response): Promise<Loci>;

/** Numbers as a plan stores them: a Float64Array with dtype float64, else a Float32Array. */
export type Reals = Float32Array | Float64Array;
/** Numbers that loci reads; plain lists are converted. */
export type RealsLike = Reals | readonly number[];
export type IntsLike = BigInt64Array | Int32Array | Uint32Array | Int16Array | readonly (number | bigint)[];
/** Tensors by name, such as "t5.table". */
export type Tensors = Record<string, RealsLike>;
export type Layout = "bhld" | "blhd" | "thd";
export type Stage = "attention" | "linear_attention" | "rotate" | "embed";
export type What = "map" | "curve" | "spectrum" | "angles" | "embedding" | "similarity" | "attention" | "properties";

export interface Option {
    name: string;
    kind: "number" | "whole" | "word" | "list";
    /** It has no default and must be given. */
    required: boolean;
    /** null if it depends on other options. */
    default: number | string | null;
    min: number | null;
    max: number | null;
    /** Values, if they are words. */
    words: string[];
    help: string;
}
export interface Encoding {
    name: string;
    brief: string;
    cite: string;
    /** Where it acts, such as rotate or score. */
    places: string[];
    causal_only: boolean;
    options: Option[];
    /** Error of float32 relative to 1 + max|exact|. */
    tolerance: number;
    /** A text with this encoding. */
    example: string;
}
export interface Tensor {
    name: string;
    role: "learned" | "fixed" | "input";
    /** null is a size that each call decides: batch, rows or keys. */
    shape: (number | null)[];
    source: "other" | "log gate" | "keys" | "states" | "unit" | "strength";
    /** The least value that training keeps a learned tensor at. */
    low: number;
}

export interface PlanOptions {
    /** Name and options of one or more encodings, such as "rope:pairing=half+alibi". */
    encoding: string;
    heads?: number;
    /** Width of queries and keys of one head. */
    dim?: number;
    kv_heads?: number;
    value_dim?: number;
    /** Width of hidden states, for stage embed and for encodings that depend on it. */
    model_dim?: number;
    dtype?: "float32" | "float64";
    stage?: Stage;
    /** Hides later keys from each row; the usual. */
    causal?: boolean;
    /** Keys that a row sees to its left and right: -1 is open, 0 the own position only. */
    window_size?: readonly [number, number];
    scale?: number;
    max_len?: number;
    keys_rotated?: boolean;
    /** Shapes of tensors that differ from the usual ones, by name; -1, -2, -3 are batch, rows, keys. */
    shapes?: Record<string, readonly number[]>;
}
interface Places {
    batch?: number;
    /** Positions of rows and keys alike; by default keys count from 0 and the last row is at the last key. */
    pos?: IntsLike;
    /** [axes, rows]: coordinates of rows and keys alike, for encodings of several axes. */
    coords?: RealsLike;
}
interface Given {
    /** Learned, fixed and input tensors by name, or what plan.prepared() returned. */
    tensors?: Tensors | Prepared;
    /** Inputs of this call, beside prepared tensors. */
    inputs?: Tensors;
}
export interface CallOptions extends Places, Given {
    q_pos?: IntsLike;
    k_pos?: IntsLike;
    q_coords?: RealsLike;
    k_coords?: RealsLike;
    /** Segments: a row sees keys of its own; negative is padding. */
    seg?: IntsLike;
    q_seg?: IntsLike;
    k_seg?: IntsLike;
    /** Number of valid keys of each batch entry. */
    k_lens?: number | IntsLike;
    /** Where packed sequences start, and the end of the last one. */
    cu_seqlens_q?: IntsLike;
    cu_seqlens_k?: IntsLike;
    /** First and last key that each row sees. */
    k_first?: IntsLike;
    k_last?: IntsLike;
    /** [rows, keys] or [batch, heads, rows, keys]: bytes, 0 hides; or numbers that are added. */
    mask?: Uint8Array | RealsLike;
    layout?: Layout;
    dropout_p?: number;
    dropout_seed?: number | bigint;
    dropout_offset?: number | bigint;
}
export interface BackwardOptions extends CallOptions {
    dlse?: RealsLike;
    dae?: RealsLike;
    ae?: RealsLike;
}
export interface RowOptions extends Places, Given {
    role?: "query" | "key" | "value";
    layout?: Layout;
}
export interface StepOptions {
    pos?: IntsLike;
    coords?: RealsLike;
    /** Number of new tokens of each sequence, where they differ. */
    k_lens?: number | IntsLike;
    inputs?: Tensors;
}
export interface Outputs {
    o: Reals;
    /** Logarithm of each row's sum; of sba, the remainder. */
    lse?: Reals;
    /** With tape only: the averages of its states. */
    ae?: Reals;
}
export interface Gradients {
    dq: Reals;
    dk: Reals;
    dv: Reals;
    /** By name; that of an added mask is "mask". */
    dtensors: Record<string, Reals>;
}

/** A problem of attention, decided once.  free() it, or let it be collected. */
export interface Plan {
    readonly encoding: string;
    /** The encoding with all options, the scale and the instruction set. */
    readonly text: string;
    readonly heads: number;
    readonly kv_heads: number;
    readonly dim: number;
    readonly value_dim: number;
    readonly model_dim: number;
    readonly dtype: "float32" | "float64";
    readonly stage: Stage;
    readonly causal: boolean;
    readonly axes: number;
    readonly tensors: readonly Tensor[];
    readonly frequencies: Float64Array;
    readonly attention_factor: number;
    init(seed?: number | bigint): Record<string, Reals>;
    prepared(tensors: Tensors | undefined, options: { max_distance: number }): Prepared;
    forward(q: RealsLike, k: RealsLike, v: RealsLike, options?: CallOptions & { return_lse?: false }): Reals;
    forward(q: RealsLike, k: RealsLike, v: RealsLike, options: CallOptions & { return_lse: true }): Outputs;
    backward(dout: RealsLike | null, q: RealsLike, k: RealsLike, v: RealsLike, out: RealsLike,
        lse: RealsLike | null | undefined, options?: BackwardOptions): Gradients;
    weights(q: RealsLike, k: RealsLike, options?: CallOptions): Reals;
    rotate(x: RealsLike, options?: RowOptions): Reals;
    rotate_backward(dy: RealsLike, x: RealsLike, options?: RowOptions): { dx: Reals; dtensors: Record<string, Reals> };
    embed(x: RealsLike, options?: Places & Given): Reals;
    embed_backward(dy: RealsLike, options?: Places & Given): { dx: Reals; dtensors: Record<string, Reals> };
    free(): void;
}
/** Tables of a plan's tensors, to pass as `tensors`. */
export interface Prepared {
    free(): void;
}

export interface CacheOptions extends Omit<PlanOptions, "stage" | "causal" | "keys_rotated" | "model_dim"> {
    heads: number;
    dim: number;
    batch?: number;
    /** Keys of each sequence, rounded up to a multiple of 64. */
    capacity: number;
    tensors?: Tensors;
    /** New keys overwrite old ones behind a window. */
    ring?: boolean;
    max_distance?: number;
    layout?: "bhld" | "blhd";
}
/** Keys and values of growing sequences.  free() it, or let it be collected. */
export interface Cache {
    readonly plan: Plan;
    readonly batch: number;
    readonly capacity: number;
    readonly nbytes: number;
    readonly lengths: number[];
    length(entry?: number): number;
    step(q: RealsLike, k: RealsLike, v: RealsLike, options?: StepOptions): Reals;
    append(k: RealsLike, v: RealsLike, options?: StepOptions): void;
    attend(q: RealsLike, options?: StepOptions): Reals;
    truncate(length: number, entry?: number): void;
    remove(first: number, count: number, entry?: number): void;
    free(): void;
}

export interface FigureOptions {
    what?: What;
    len?: number;
    dim?: number;
    heads?: number;
    head?: number;
    seed?: number;
}
export interface Loci {
    readonly version: string;
    list(): Encoding[];
    describe(name: string): Encoding;
    plan(options: PlanOptions): Plan;
    cache(options: CacheOptions): Cache;
    about(encoding: string, options?: FigureOptions): { figures: What[]; text: string; tensors: string };
    show(encoding: string, options?: FigureOptions & { format?: "svg" | "html" | "json" }): string;
}
