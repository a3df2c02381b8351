# SPDX-License-Identifier: MIT
"""lab_dump.py FILE...: checks files of `loci lab dump` with a model written for this test alone.

The loss and the step of AdamW are recomputed in plain Python; logits and gradients, if PyTorch is
installed, in float64, with gradients by autograd. Each encoding is written from its page in
docs/encodings and shares no code with the library. Errors are the largest ones of a tensor,
relative to 1 + its largest number, or 0.001 + it for gradients, and must stay below 1e-9, or 1e-4
in files of floats. Prints a line for each file."""

import array
import json
import math
import re
import struct
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = None

BETA1, BETA2, EPSILON, DECAY, CLIP = 0.9, 0.98, 1e-8, 0.1, 1.0
GATED = ("fox", "fox-pro")
PRO = ("fox-pro", "nope-pro", "rope-pro")


def read(path):
    """The configuration, and tensors by name as (shape, numbers)."""
    with open(path, "rb") as file:
        head = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    kinds = {"F64": "d", "F32": "f", "I32": "i", "I64": "q"}
    tensors = {}
    for name, t in head.items():
        if name != "__metadata__":
            numbers = array.array(kinds[t["dtype"]], data[slice(*t["data_offsets"])])
            assert len(numbers) == math.prod(t["shape"]), f"{name} is not as long as its shape"
            tensors[name] = t["shape"], numbers
    config = json.loads(head["__metadata__"]["config"])
    config["wide"] = head["logits"]["dtype"] == "F64"
    return config, tensors


def error(got, want, least=1.0):
    """The error between two lists of numbers. NaN and infinity are infinite errors."""
    worst, most = 0.0, 0.0
    for g, w in zip(got, want, strict=True):
        if not abs(g - w) <= worst:
            worst = abs(g - w)
        most = max(most, abs(w))
    return worst / (least + most) if worst == worst else math.inf


# ---- Without PyTorch: names, loss and the step -----------------------------------------------------------


def shapes(c, vocabulary):
    """Tensors that every arm has."""
    dim, ffn, kv = c["dim"], c["ffn"], c["dim"] // c["heads"] * c["kv_heads"]
    want = {"embed": [vocabulary, dim], "norm": [dim], "unembed": [dim, vocabulary]}
    for i in range(c["layers"]):
        layer = {
            "norm1": [dim],
            "wq": [dim, dim],
            "wk": [dim, kv],
            "wv": [dim, kv],
            "wo": [dim, dim],
            "norm2": [dim],
            "w1": [dim, ffn],
            "w2": [ffn, dim],
        }
        if c["arm"].split("@")[0] in GATED:
            layer |= {"wf": [dim, c["heads"]], "bf": [c["heads"]]}
        want |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return want


def wrong_names(c, x):
    """Missing tensors or wrong shapes, in words. None if all are right."""
    batch, length, vocabulary = x["logits"][0]
    for name, shape in {
        "tokens": [batch, length],
        "targets": [batch, length],
        "positions": [batch, length],
        "loss": [1],
    }.items():
        if x[name][0] != shape:
            return f"{name} has shape {x[name][0]}, not {shape}"
    names = {key[2:] for key in x if key.startswith("w.")}
    for name, shape in shapes(c, vocabulary).items():
        if name not in names or x["w." + name][0] != shape:
            return f"w.{name} is not there with shape {shape}"
    more = ("d.", "n.") if c["step"] == 1 else ("d.", "n.", "m.", "s.")
    for name in names:
        for prefix in more:
            if prefix + name not in x or x[prefix + name][0] != x["w." + name][0]:
                return f"{prefix}{name} is not there with the shape of w.{name}"
        if name not in shapes(c, vocabulary) and not re.search(
            r"(^|\.)(pe|tape)\.|\.(wg|wi1|bi1|wi2|bi2|sk|sv|nq|nk|no)$", name
        ):
            return f"w.{name} is no tensor that is written down"
    return None


def loss(x):
    """The mean of the scored tokens, from the logits of the file."""
    vocabulary, logits = x["logits"][0][-1], x["logits"][1]
    terms = []
    for row, target in enumerate(x["targets"][1]):
        if target >= 0:
            scores = logits[row * vocabulary : (row + 1) * vocabulary]
            most = max(scores)
            terms.append(most + math.log(math.fsum(math.exp(s - most) for s in scores)) - scores[target])
    return math.fsum(terms) / len(terms)


def decays(name, shape):
    """Matrices of the model only: no learned tensors of an encoding, and no gains."""
    return len(shape) == 2 and not re.search(r"(^|\.)pe\.|tape\.(w|up|down)$", name)


def step(c, x):
    """Errors of the weights after the step, and of how far they went as a share of the rate."""
    names = [key[2:] for key in x if key.startswith("w.")]
    norm = math.sqrt(math.fsum(g * g for name in names for g in x["d." + name][1]))
    scale = min(1.0, CLIP / norm) if norm else 1.0
    fix1, fix2 = 1 - BETA1 ** c["step"], 1 - BETA2 ** c["step"]
    worst, worst_way = 0.0, 0.0
    for name in names:
        shape, w = x["w." + name]
        zeros = [0.0] * len(w)
        means, squares = (x.get(prefix + name, (shape, zeros))[1] for prefix in ("m.", "s."))
        rate, decay = c["lr"], DECAY if decays(name, shape) else 0.0
        want, way = [], []
        for value, g, m, s in zip(w, x["d." + name][1], means, squares, strict=True):
            g *= scale
            m, s = BETA1 * m + (1 - BETA1) * g, BETA2 * s + (1 - BETA2) * g * g
            move = m / fix1 / (math.sqrt(s / fix2) + EPSILON) + decay * value
            want.append(value - rate * move)
            way.append(move)
        if name.split(".")[-1] in ("r1", "r2"):  # kerple's stay positive
            want = [max(value, 0.01) for value in want]
        got = x["n." + name][1]
        worst = max(worst, error(got, want))
        worst_way = max(worst_way, error([(a - b) / rate for a, b in zip(w, got)], way))
    return worst, worst_way


# ---- With PyTorch: the model -----------------------------------------------------------------------------


def rms(x, eps=1e-6):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def frequencies(base, width):
    """base^(-2t/width), for half as many pairs."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def turn(x, c, s):
    """Channels t and t + D/2 by an angle with this cosine and sine; the lab's rope has pairing=half."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * c - b * s, a * s + b * c), -1)


def by_distance(numbers, d):
    """numbers[..., n] looked up by the distance of each pair: [batch, heads, i, j]."""
    return numbers[:, d].transpose(0, 1)


def slopes(heads):
    """As in the authors' code, for any number of heads."""
    power = 2 ** int(math.log2(heads))
    first = [2.0 ** (-8 * (h + 1) / power) for h in range(power)]
    between = [2.0 ** (-4 * (h + 1) / power) for h in range(0, 2 * power, 2)]
    return torch.tensor((first + between)[:heads], dtype=torch.float64)


def t5_bucket(d, n, most):
    """In whole numbers: bucket b > n/2 begins at (n/2) (most/(n/2))^((b - n/2)/(n - n/2))."""
    e = n // 2
    if d < e:
        return d
    return max(b for b in range(e, n) if most ** (b - e) * e ** (n - b) <= d ** (n - e))


def deberta_row(d, span, most):
    """Of version 2, with the distance cut to most - 1 first."""
    a, m = min(abs(d), most - 1), span // 2
    if a > m:  # m + the least whole c with ((most - 1)/m)^c >= (a/m)^(m - 1)
        a = m + next(c for c in range(m) if (most - 1) ** c * m ** (m - 1 - c) >= a ** (m - 1))
    return min(max((a if d > 0 else -a) + span, 0), 2 * span - 1)


class Attention:
    """Of one layer: a text of encodings, what they learn, and the positions."""

    def __init__(self, text, learned, pos, a=None, heads=None, kv_heads=None):
        self.parts = {}
        for part in text.split("+"):
            name, _, options = part.partition(":")
            self.parts[name] = dict(o.split("=") for o in options.split(",") if o)
        self.learned, self.pos = learned, pos
        self.a, self.heads, self.kv_heads = a, heads, kv_heads
        self.apart = pos[:, :, None] - pos[:, None, :]  # [batch, i, j], of interest for j <= i
        self.d = self.apart.clamp(min=0)
        self.causal = torch.ones(pos.shape[1], pos.shape[1]).tril().bool()

    def option(self, part, name, usual):
        return type(usual)(self.parts[part].get(name, usual))

    def projected(self, number, heads):
        """An input by token: a projection of its own, [batch, heads, rows, width]."""
        y = self.a @ self.learned[f"wi{number}"]
        if f"bi{number}" in self.learned:
            y = y + self.learned[f"bi{number}"]
        return y.unflatten(-1, (heads, -1)).transpose(1, 2).repeat_interleave(self.heads // heads, 1)

    def scale(self, width):
        return width**-0.5

    def run(self, q, k, v, log_f, states):
        """All [batch, heads, rows, width]; returns o, and with states their average ae."""
        if "rope" in self.parts:
            at = self.pos[:, None, :, None].double()
            if self.option("rope", "positions", "token") == "given":
                at = at + self.projected(1, self.kv_heads)
            angle = at * frequencies(self.option("rope", "base", 10000.0), q.shape[-1])
            q, k = (turn(x, angle.cos(), angle.sin()) for x in (q, k))
        if "angles" in self.parts:
            steps = (1 + self.projected(1, self.kv_heads)) * frequencies(10000.0, q.shape[-1])
            angle = steps.cumsum(-2)
            q, k = (turn(x, angle.cos(), angle.sin()) for x in (q, k))
        if "tape" in self.parts:
            q, k = (turn(x, states[..., 0], states[..., 1]) for x in (q, k))
        scale = self.scale(q.shape[-1])
        a = scale * q @ k.transpose(-1, -2)
        terms = [getattr(self, name)(q, k, scale, log_f) for name in self.parts if hasattr(self, name)]
        scores = self.mix(a, sum(terms)) if "cape" in self.parts else sum(terms, a)
        if "sba" in self.parts:
            p = self.stick(scores)
        else:
            p = torch.softmax(scores.masked_fill(~self.causal, -math.inf), -1)
        o = p @ v
        if "shaw" in self.parts:
            o = o + torch.einsum("bhij,bijd->bhid", p, self.learned["v"][self.clipped()])
        if "tape" in self.parts:
            return o, torch.einsum("bhij,bhjtx->bhitx", p, states)
        return o, None

    # What is added to scores.

    def alibi(self, q, k, scale, log_f):
        made = self.option("alibi", "slopes", "official")
        if made == "official":
            return -slopes(q.shape[1])[:, None, None] * self.d[:, None]
        first = F.softplus(self.projected(1, self.heads))
        sides = {"keys": first.transpose(-1, -2), "queries": first}
        if made == "both":
            return -(first.transpose(-1, -2) + F.softplus(self.projected(2, self.heads))) * self.d[:, None]
        return -sides[made] * self.d[:, None]

    def t5(self, q, k, scale, log_f):
        n, most = self.option("t5", "buckets", 32), self.option("t5", "max_distance", 128)
        rows = torch.tensor([t5_bucket(d, n, most) for d in range(int(self.d.max()) + 1)])
        return by_distance(self.learned["table"].T, rows[self.d])

    def kerple(self, q, k, scale, log_f):
        r1, r2 = (self.learned[name][:, None, None] for name in ("r1", "r2"))
        return -r1 * torch.log(1 + r2 * self.d[:, None])

    def fire(self, q, k, scale, log_f):
        x = self.learned
        psi = lambda d: torch.log(x["c"].abs() * d + 1)
        threshold = x["l"].abs() * self.option("fire", "threshold", 512)
        way = psi(self.d) / (psi(torch.maximum(threshold, self.pos.double())) + 1e-6)[:, :, None]
        u = torch.relu(way[..., None] * x["w1"][:, 0] + x["b1"])
        u = torch.relu(u @ x["w2"].T + x["b2"])
        return (u @ x["w3"].T + x["b3"]).permute(0, 3, 1, 2)

    def fox(self, q, k, scale, log_f):
        until = log_f.cumsum(-1)
        return until[..., :, None] - until[..., None, :]

    def cope(self, q, k, scale, log_f):
        last = self.option("cope", "npos", 64) - 1
        gates = torch.sigmoid(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5) * self.causal
        p = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=last)
        low, high = p.detach().floor().long(), p.detach().ceil().long()
        z = q @ self.learned["e"].transpose(-1, -2)
        share = p - low
        return (1 - share) * z.gather(-1, low) + share * z.gather(-1, high)

    def clipped(self):
        left, right = (self.option("shaw", side, 16) for side in ("left", "right"))
        return (-self.apart).clamp(-left, right) + left

    def shaw(self, q, k, scale, log_f):
        return scale * torch.einsum("bhid,bijd->bhij", q, self.learned["k"][self.clipped()])

    def xl(self, q, k, scale, log_f):
        w, u, v = (self.learned[name] for name in "wuv")
        angle = torch.arange(int(self.d.max()) + 1)[:, None] * frequencies(10000.0, w.shape[-1])
        far = torch.einsum("hdm,nm->hnd", w, torch.cat((angle.sin(), angle.cos()), -1))
        pairs = torch.einsum("bhid,bhijd->bhij", q + v[:, None], far[:, self.d].transpose(0, 1))
        return scale * ((k @ u[:, :, None]).transpose(-1, -2) + pairs)

    def deberta(self, q, k, scale, log_f):
        span, most = self.option("deberta", "span", 256), self.option("deberta", "max_distance", 512)
        rows = torch.tensor([deberta_row(d, span, most) for d in range(int(self.d.max()) + 1)])[self.d]
        of_key, of_query = (self.learned[name][:, rows].transpose(0, 1) for name in "kq")
        return scale * (
            torch.einsum("bhid,bhijd->bhij", q, of_key) + torch.einsum("bhjd,bhijd->bhij", k, of_query)
        )

    # What becomes of scores.

    def mix(self, a, b):
        x = self.learned
        pairs = torch.cat((a, b), 1).permute(0, 2, 3, 1)
        mixed = F.leaky_relu(pairs @ x["w1"].T + x["b1"], 0.01) @ x["w2"].T + x["b2"]
        return a + b + mixed.permute(0, 3, 1, 2)

    def stick(self, s):
        seen = self.causal.tril(-1)  # a row does not see its own key
        kept = F.logsigmoid(-s).masked_fill(~seen, 0)
        newer = kept.flip(-1).cumsum(-1).flip(-1) - kept
        return torch.exp(F.logsigmoid(s) + newer) * seen


def embedding(c, w, tokens, pos):
    x = w["embed"][tokens]
    if c["embed"] == "sinusoidal":
        angle = pos[..., None] * frequencies(10000.0, c["dim"])
        x = x + torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)
    elif c["embed"] == "learned":
        x = x + w["pe.table"][pos]
    elif c["embed"]:
        raise ValueError(f"no embedding {c['embed']} is written down here")
    return x


def shift(x, logits):
    """Each row lends from the one before, which is 0 before the first."""
    a = torch.sigmoid(logits).transpose(1, 2)[..., None]
    return a * F.pad(x, (0, 0, 1, -1)) + (1 - a) * x


def forward(c, w, tokens, pos):
    """Rows behind the end of a sequence are computed as well; nothing sees them."""
    heads, kv_heads, width = c["heads"], c["kv_heads"], c["dim"] // c["heads"]
    x, pro = embedding(c, w, tokens, pos), c["arm"] in PRO
    states = None
    if c["attention"] == "tape":
        angle = pos[:, None, :, None] * frequencies(10000.0, width)
        states = torch.stack((angle.cos(), angle.sin()), -1).expand(-1, heads, -1, -1, -1)
    for i in range(c["layers"]):
        p = {name.split(".", 2)[2]: t for name, t in w.items() if name.startswith(f"layers.{i}.")}
        gains = {name: p[name].view(heads, 1, width) for name in ("nq", "nk", "no") if name in p}
        a = rms(x) * p["norm1"]
        q, k, v = ((a @ p[name]).unflatten(-1, (-1, width)).transpose(1, 2) for name in ("wq", "wk", "wv"))
        log_f = F.logsigmoid(a @ p["wf"] + p["bf"]).transpose(1, 2) if "wf" in p else None
        if pro:
            k, v = shift(k, a @ p["sk"]), shift(v, a @ p["sv"])
            q, k = rms(q, 1e-5) * gains["nq"], rms(k, 1e-5) * gains["nk"]
        k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
        learned = {name[3:]: t for name, t in p.items() if name.startswith("pe.")}
        learned |= {name: t for name, t in p.items() if name[:2] in ("wi", "bi")}
        at = Attention(c["attention"], learned, pos, a, heads, kv_heads)
        o, ae = at.run(q, k, v, log_f, states)
        if pro:
            o = rms(o, 1e-6) * gains["no"]
        o = o.transpose(1, 2).flatten(-2)
        if pro:
            o = o * torch.sigmoid(a @ p["wg"])
        if states is not None:  # the sum over a row of w, so that heads do not mix
            states = states + p["tape.w"].sum(1)[:, None, None, None] * ae
        x = x + o @ p["wo"]
        m = F.gelu(rms(x) * p["norm2"] @ p["w1"], approximate="tanh") @ p["w2"]
        x = x + m
        if states is not None:
            units = torch.einsum("pg,bgrtx->bprtx", p["tape.up"], states)
            open_ = F.silu(m @ p["tape.wx"])
            states = states + torch.einsum("hp,brp,bprtx->bhrtx", p["tape.down"], open_, units)
    return rms(x) * w["norm"] @ w["unembed"]


def model(c, x):
    """Errors of logits, loss and gradients."""
    tensor = lambda name: torch.tensor(x[name][1], dtype=None if name[:2] != "w." else torch.float64).view(
        x[name][0]
    )
    w = {name[2:]: tensor(name).requires_grad_() for name in x if name.startswith("w.")}
    tokens, targets, pos = (tensor(name).long() for name in ("tokens", "targets", "positions"))
    logits = forward(c, w, tokens, pos)
    mean = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    grads = torch.autograd.grad(mean, list(w.values()), allow_unused=True)
    there = torch.ones_like(pos, dtype=torch.bool)  # positions rise, and are 0 behind the end
    there[:, 1:] = pos[:, 1:] > pos[:, :-1]
    flat = lambda t: t.detach().flatten().tolist()
    errors = {
        "logits": error(x["logits"][1], flat(logits * there[..., None])),
        "loss": error(x["loss"][1], flat(mean)),
    }
    for (name, t), g in zip(w.items(), grads, strict=True):
        errors["d." + name] = error(x["d." + name][1], flat(torch.zeros_like(t) if g is None else g), 1e-3)
    return errors, int(there.sum()), there.numel()


# ---- Files -----------------------------------------------------------------------------------------------


def main():
    counts = [0, 0]
    for path in sys.argv[1:]:
        c, x = read(path)
        most = 1e-9 if c["wide"] else 1e-4
        errors, said = {}, wrong_names(c, x)
        if not said:
            errors["loss of these logits"] = error(x["loss"][1], [loss(x)])
            errors["n."], way = step(c, x)
            if c["wide"]:  # by 1e7 when the mean of squares is near 0
                errors["the way"] = way * 1e-2
            if torch:
                more, rows, room = model(c, x)
                errors |= more
            worst = max(errors, key=errors.get)
            if errors[worst] > most:
                said = ", ".join(f"{name} {e:.1e}" for name, e in errors.items() if not e <= most)
        counts[bool(said)] += 1
        what = f"{c['arm']}, {c['task']}, step {c['step']}"
        print(
            f"{what:<36} FAILED: {said}" if said else f"{what:<36} worst error {errors[worst]:.1e} ({worst})",
            flush=True,
        )
    print(f"{counts[0]} passed, {counts[1]} failed")
    return counts[1] > 0 or counts[0] == 0


if __name__ == "__main__":
    sys.exit(main())
