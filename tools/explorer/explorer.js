// SPDX-License-Identifier: MIT
// explorer.js -- the page around loci.js: controls made from the library's table of options, its
// figures, and a link that holds all that is chosen.
"use strict";
(async () => {

const $ = id => document.getElementById(id);
function make(tag, properties = {}, ...children) {
    const { attributes = {}, ...rest } = properties;
    const element = Object.assign(document.createElement(tag), rest);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
}

// ---- The library ------------------------------------------------------------------------------

const packed = Uint8Array.from(atob($("module").textContent), c => c.charCodeAt(0));
const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
const module = await WebAssembly.compile(await new Response(unpacked).arrayBuffer());

// It computes in a worker, one question at a time.  A new question waits for the answer to the one
// before, or where that takes too long, for a worker that starts afresh.
const PATIENCE = 300;
const source = URL.createObjectURL(new Blob([$("worker").textContent], { type: "text/javascript" }));
let worker, asked = null, later = null;     // what it works on, and what comes next
function start() {
    worker?.terminate();
    worker = new Worker(source);
    worker.postMessage({ module });
    return new Promise((done, failed) => {
        worker.onmessage = ({ data }) => {
            if (data.table) return done(data.table);
            const question = asked;
            asked = null;
            show(question, data);
            if (later) ask(later);
            else $("panel").setAttribute("aria-busy", "false");
        };
        worker.onerror = failed;
    });
}
function ask(question) {
    later = null;
    asked = question;
    worker.postMessage(question);
}
async function plan() {
    $("panel").setAttribute("aria-busy", "true");
    const question = { state: { ...state }, json: $("numbers").open, link: link() };
    if (!asked) return ask(question);
    later = question;
    await new Promise(done => setTimeout(done, PATIENCE));
    if (later !== question || !asked) return;
    asked = null;
    later = null;
    await start();
    if (!asked) ask(question);
}

const table = await start();
const find = name => table.encodings.find(e => e.name === name);

// ---- The state, and the link that holds it ----------------------------------------------------

const usual = { text: "alibi", what: "map", len: 64, heads: 8, dim: 64, head: 0, seed: 1 };
const problem = [
    { name: "len", label: "Length", min: 2, max: table.most.len, help: "tokens" },
    { name: "heads", label: "Heads", min: 1, max: table.most.heads },
    { name: "dim", label: "Head width", min: 2, max: table.most.dim, help: "channels of a head" },
    { name: "head", label: "Head", min: 0, max: table.most.heads - 1, help: "the one that is shown, from 0" },
    { name: "seed", label: "Seed", min: 1, max: table.most.seed, help: "of random tensors and vectors" },
];
let state = { ...usual }, shown = usual.what;   // shown: state.what, where this encoding has it

function read(hash) {
    const [first, ...others] = hash.replace(/^#/, "").split("&"), s = { ...usual };
    const plain = part => { try { return decodeURIComponent(part); } catch { return part; } };
    if (first) s.text = plain(first);
    for (const part of others) {
        const [name, value] = part.split("=");
        if (name === "what" && table.what.includes(value)) s.what = value;
        else if (problem.some(p => p.name === name) && value) s[name] = Number(value);
    }
    return s;
}
function link() {
    const first = encodeURIComponent(state.text).replace(/%(2B|3A|3D|2C|2F)/g, decodeURIComponent);
    const numbers = problem.filter(p => state[p.name] !== usual[p.name]);
    return ["#" + first, ...numbers.map(p => `${p.name}=${state[p.name]}`), `what=${state.what}`].join("&");
}
// What somebody types or slides is one step back, whatever came on the way.  All controls follow,
// but for the one that was moved.
let moving = false;
function changed(done = true, source = null) {
    if (location.hash !== link()) history[moving ? "replaceState" : "pushState"](null, "", link());
    moving = !done;
    showControls(source);
    plan();
}
function arrived() {
    state = read(location.hash);
    moving = false;
    showControls(null);
    plan();
}
window.addEventListener("popstate", arrived);

// ---- Texts: name:option=value,...+name --------------------------------------------------------

function parse(whole) {
    return whole.split(/\+(?![\d.])/).map(part => {
        const colon = part.indexOf(":"), options = new Map();
        for (const o of colon < 0 ? [] : part.slice(colon + 1).split(",")) {
            const equals = o.indexOf("=");
            options.set(equals < 0 ? o : o.slice(0, equals), equals < 0 ? "" : o.slice(equals + 1));
        }
        return { name: colon < 0 ? part : part.slice(0, colon), options };
    });
}
function unparse(parts) {
    return parts.map(p => p.name + (p.options.size ? ":" : "")
        + [...p.options].map(([name, value]) => `${name}=${value}`).join(",")).join("+");
}
function setOption(part, name, value, done, source) {
    const parts = parse(state.text);
    if (!parts[part]) return;
    if (value === "") parts[part].options.delete(name);
    else parts[part].options.set(name, value);
    state.text = unparse(parts);
    changed(done, source);
}

// ---- Controls ---------------------------------------------------------------------------------

// A slider has 1000 steps.  What it covers is what one would try, by powers where that is much;
// the field beside it takes all that is allowed.
const STEPS = 1000;
function scale({ min: low, max: high, default_value: middle, kind }) {
    if (low < 0 && low < -10 * Math.max(1, Math.abs(middle))) low = -10 * Math.max(1, Math.abs(middle));
    if (low > 0) low = Math.max(low, middle / 1000);
    high = Math.min(high, 1000 * Math.max(1, Math.abs(middle)), low < -1 ? -low : Infinity);
    if (kind === "whole") low = Math.ceil(low), high = Math.floor(high);
    const wide = high - low > 200, shift = low > 0 ? 0 : 1 - low;
    const round = x => kind === "whole" ? Math.round(x) : Number(x.toPrecision(3));
    const a = Math.log(low + shift), b = Math.log(high + shift);
    return wide && low >= -1
        ? { to: x => STEPS * (Math.log(Math.max(x, low) + shift) - a) / (b - a),
            from: t => round(Math.exp(a + (b - a) * t / STEPS) - shift) }
        : { to: x => STEPS * (x - low) / (high - low), from: t => round(low + (high - low) * t / STEPS) };
}
// A control is { row, set(value, source) }; it calls give(value, done, source) with texts, "" for
// the default.
function numberControl(id, o, give) {
    const field = make("input", { id, type: "number", min: o.min, max: o.max,
        step: o.kind === "whole" ? 1 : "any", placeholder: o.required ? "required" : o.default_value ?? "by rule" });
    const row = make("div", { className: "pair" }, field);
    let slider;
    field.addEventListener("input", () => give(field.value, false, field));
    field.addEventListener("change", () => give(field.value, true, field));
    if (o.default_value !== null) {
        const by = scale(o);
        slider = make("input", { type: "range", min: 0, max: STEPS, step: 1,
            attributes: { "aria-label": `${o.label ?? o.name}, slider` } });
        const move = done => give(String(by.from(slider.value)), done, slider);
        slider.addEventListener("input", () => move(false));
        slider.addEventListener("change", () => move(true));
        slider.addEventListener("keydown", event => {         // a step is at least one that is seen
            const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
            if (!step) return;
            event.preventDefault();
            const was = by.from(slider.value);
            do slider.value = Number(slider.value) + step;
            while (by.from(slider.value) === was && slider.value > 0 && slider.value < STEPS);
            move(true);
        });
        row.prepend(slider);
        slider.follow = (value, source) => {
            if (slider !== source) slider.value = by.to(value);
            slider.setAttribute("aria-valuetext", String(value));
        };
    }
    return { row, set(value, source) {
        if (field !== source) field.value = value;
        slider?.follow(value === "" ? o.default_value : Number(value), source);
    } };
}
function wordControl(id, o, give) {
    const words = o.words.split("|"), first = o.required || o.default_value === null ? null : words[o.default_value];
    const field = make("select", { id });
    if (first === null) field.append(make("option", { value: "", textContent: o.required ? "—" : "by rule" }));
    for (const word of words) field.append(make("option", { value: word, textContent: word }));
    field.addEventListener("change", () => give(field.value === first ? "" : field.value, true, field));
    return { row: field, set(value) { field.value = value === "" ? first ?? "" : value; } };
}
function textControl(id, o, give) {
    const field = make("input", { id, type: "text", placeholder: o.required ? "required" : "none" });
    field.addEventListener("input", () => give(field.value, false, field));
    field.addEventListener("change", () => give(field.value, true, field));
    return { row: field, set(value, source) { if (field !== source) field.value = value; } };
}
function control(id, o, give) {
    const kinds = { number: numberControl, whole: numberControl, word: wordControl, list: textControl };
    const made = kinds[o.kind](id, o, give);
    const help = make("p", { className: "help", id: `${id}-help`, textContent: o.help ?? "" });
    const field = made.row.id === id ? made.row : made.row.querySelector("#" + CSS.escape(id));
    field.setAttribute("aria-describedby", help.id);
    const label = make("label", { htmlFor: id, textContent: o.label ?? o.name });
    return { ...made, element: make("div", { className: "field" }, label, made.row, help) };
}

// Those of an encoding: one whose default is a rule waits under "more", unless the text has it.
let built = "", controls = [];
function buildPart(part, i, alone) {
    const e = find(part.name), box = make("fieldset", {}, make("legend", { textContent: part.name }));
    if (!e) return "";                      // the sentence says so
    box.append(make("p", { className: "brief", textContent: e.brief }),
               make("p", { className: "help", textContent: [e.cite, ...e.places].join(" · ") }));
    const more = make("details", {}, make("summary", { textContent: "More options" }));
    for (const o of e.options) {
        const c = control(`option-${i}-${o.name}`, o, (...given) => setOption(i, o.name, ...given));
        controls.push({ part: i, option: o, ...c });
        const later = e.options.length > 6 && !o.required && o.default_value === null && !part.options.has(o.name);
        (later ? more : box).append(c.element);
    }
    if (more.children.length > 1) box.append(more);
    if (!alone) {
        const gone = make("button", { type: "button", textContent: `Remove ${part.name}` });
        gone.addEventListener("click", () => {
            state.text = unparse(parse(state.text).filter((_, k) => k !== i));
            changed();
            $("text").focus();
        });
        box.append(gone);
    }
    return box;
}
function showControls(source) {
    const parts = parse(state.text), names = parts.map(p => p.name).join("+");
    if (names !== built) {
        controls = [];
        $("parts").replaceChildren(...parts.map((p, i) => buildPart(p, i, parts.length === 1)));
        built = names;
    }
    for (const c of controls) c.set(parts[c.part].options.get(c.option.name) ?? "", source);
    for (const p of problem) p.control.set(String(state[p.name]), source);
    if ($("text") !== source) $("text").value = state.text;
    $("encoding").value = parts.length === 1 && find(names) ? names : "";
}

// ---- Figures ----------------------------------------------------------------------------------

function showTabs(has) {
    for (const [i, tab] of [...$("tabs").children].entries()) {
        const chosen = table.what[i] === shown;
        tab.hidden = !has.includes(table.what[i]);
        tab.setAttribute("aria-selected", String(chosen));
        tab.tabIndex = chosen ? 0 : -1;
    }
    $("panel").setAttribute("aria-labelledby", `tab-${shown}`);
}
function sentence(words) {
    $("error").hidden = !words;
    $("error").textContent = words;
    $("text").setAttribute("aria-invalid", String(Boolean(words)));
    $("panel").classList.toggle("old", Boolean(words));
}
function command(s) {
    const flags = problem.filter(p => s[p.name] !== usual[p.name]).map(p => ` --${p.name} ${s[p.name]}`);
    return `loci show '${s.text.replaceAll("'", "'\\''")}' --what ${shown}${flags.join("")}`;
}
function show(question, answer) {
    $("panel").dataset.link = question.link;
    sentence(answer.sentence ?? "");
    if (answer.sentence) return void $("starting")?.remove();
    $("below").hidden = false;
    shown = answer.shown;
    showTabs(answer.has);
    $("panel").innerHTML = answer.html;
    $("json").textContent = answer.json ?? "";
    $("plan").textContent = answer.about.text;
    $("tensors").textContent = answer.about.tensors;
    $("command").textContent = command(question.state);
    document.title = `${question.state.text} · loci explorer`;
}

// ---- The page ---------------------------------------------------------------------------------

const groups = new Map();
for (const e of table.encodings) {
    const place = e.places[0] ?? "nothing";
    groups.set(place, [...groups.get(place) ?? [], e]);
}
for (const list of [$("encoding"), $("more")])
    for (const [place, members] of groups)
        list.append(make("optgroup", { label: place },
            ...members.map(e => make("option", { value: e.name, textContent: e.name, title: e.brief }))));
$("encoding").prepend(make("option", { value: "", textContent: "as written below", hidden: true }));
$("encoding").addEventListener("change", () => {
    if ($("encoding").value) state.text = find($("encoding").value).example;
    changed();
});
$("text").addEventListener("input", () => {
    state.text = $("text").value.trim();
    changed(false, $("text"));
});
$("text").addEventListener("change", () => changed());
$("add").addEventListener("click", () => { state.text += "+" + find($("more").value).example; changed(); });
$("controls").addEventListener("submit", event => event.preventDefault());
for (const p of problem) {
    const o = { ...p, kind: "whole", default_value: usual[p.name] };
    p.control = control(p.name, o, (value, ...how) => {
        state[p.name] = value === "" ? usual[p.name] : Number(value);
        changed(...how);
    });
    $("problem").append(p.control.element);
}
for (const what of table.what) {
    const tab = make("button", { type: "button", id: `tab-${what}`, textContent: what, hidden: true,
        attributes: { role: "tab", "aria-controls": "panel" } });
    tab.addEventListener("click", () => { state.what = what; changed(); });
    $("tabs").append(tab);
}
$("tabs").addEventListener("keydown", event => {
    const there = [...$("tabs").children].filter(tab => !tab.hidden), at = there.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    there.at(to % there.length).focus();
    there.at(to % there.length).click();
});
$("numbers").addEventListener("toggle", plan);
$("skip").addEventListener("click", event => { event.preventDefault(); $("panel").focus(); });
$("version").textContent = `loci ${table.version}`;
arrived();
})().catch(e => {
    document.getElementById("panel").textContent = `This browser cannot run the library: ${e.message}`;
});
