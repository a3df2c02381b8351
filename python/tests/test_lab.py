# SPDX-License-Identifier: MIT
"""The lab from Python: sequences, the model in torch, and runs that the program reads."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest
from typing import Any

import numpy as np

import loci
from loci import _c, _lab

try:
    _c.lab()
except loci.Error as error:
    raise unittest.SkipTest(str(error)) from None

import loci.lab

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = None  # type: ignore[assignment]

PROGRAM = os.environ.get("LOCI")  # of the same tree, where the tests of the tree run
if PROGRAM:
    PROGRAM = os.path.abspath(PROGRAM)


def program(*arguments: str) -> str:
    assert PROGRAM
    done = subprocess.run([PROGRAM, "lab", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(done.stderr)
    return done.stdout


def read_safetensors(path: str) -> dict[str, Any]:
    raw = pathlib.Path(path).read_bytes()
    head = json.loads(raw[8 : (start := 8 + int.from_bytes(raw[:8], "little"))])
    kinds = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8"}
    found: dict[str, Any] = {"config": json.loads(head.pop("__metadata__").get("config", "{}"))}
    for name, t in head.items():
        low, high = t["data_offsets"]
        found[name] = np.frombuffer(raw[start + low : start + high], kinds[t["dtype"]]).reshape(t["shape"])
    return found


class Folder(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name


class Data(Folder):
    def test_sequences(self) -> None:
        for task in loci.lab.tasks():
            words = loci.lab.tokens(task)
            for s in (loci.lab.batch(task, 2, seed=1), loci.lab.data(task, loci.lab.columns(task)[-1]["name"])):
                with self.subTest(task):
                    self.assertEqual(s.starts[0], 0)
                    self.assertEqual(s.starts[-1], len(s.tokens))
                    self.assertTrue((np.diff(s.starts) >= 2).all())
                    self.assertTrue((s.tokens[s.starts[:-1]] == 0).all())
                    self.assertTrue(((s.tokens >= 0) & (s.tokens < len(words))).all())
                    self.assertTrue(((s.targets >= -1) & (s.targets < len(words))).all())
                    self.assertTrue((s.targets >= 0).any())
            own, test = (
                loci.lab.data(task, loci.lab.columns(task)[0]["name"], split=x) for x in ("validation", "test")
            )
            self.assertEqual(len(own.starts), len(test.starts))
            self.assertNotEqual(own.tokens.tobytes(), test.tokens.tobytes())

    def test_steps_and_seeds_differ(self) -> None:
        tokens = [loci.lab.batch("copy", step, seed).tokens.tobytes() for step in (1, 2) for seed in (0, 1)]
        self.assertEqual(len(set(tokens)), 4)
        self.assertEqual(loci.lab.batch("copy", 2, 1).tokens.tobytes(), tokens[3])

    def test_settings(self) -> None:
        lengths = np.diff(loci.lab.batch("copy", 1, size="XS", most=6).starts)
        self.assertEqual((lengths.max(), len(lengths)), (14, 512 // 14))
        self.assertEqual(np.diff(loci.lab.batch("text", 1, length=24).starts).tolist(), [24] * 85)
        self.assertIn("n=12", [column["name"] for column in loci.lab.columns("copy", most=6)])

    def test_biases(self) -> None:
        path = os.path.join(self.folder, "x.safetensors")
        loci.lab.write_bias(path, [[0.0, -1.0, -2.5]])
        np.testing.assert_array_equal(read_safetensors(path)["bias"], np.float32([[0, -1, -2.5]]))
        for bias, name, said in (
            ([0.0, 1.0], path, "not of shape .2."),
            ([[np.nan]], path, "not finite"),
            ([[0.0]], "a+b.safetensors", "must not have"),
        ):
            with self.assertRaisesRegex(loci.Error, said):
                loci.lab.write_bias(name, bias)

    def test_a_text_of_ones_own(self) -> None:
        path = pathlib.Path(self.folder, "book.txt")
        path.write_bytes(b"a rose is " * 40000)
        s = loci.lab.batch("text", 1, size="XS", corpus=path)
        words = loci.lab.tokens("text", size="XS", corpus=path)
        self.assertEqual(sorted(words[1:]), sorted(set("a rose is ")))
        self.assertIn("arose"[1:], "".join(words[t] for t in s.tokens[1:40]).replace(" ", ""))

    def test_refusals(self) -> None:
        for call, said in (
            (lambda: loci.lab.batch("cpy", 1), "task 'cpy' is none of text, "),
            (lambda: loci.lab.batch("copy", 1, size="Q"), "size 'Q' is none of XS, S, M, L"),
            (lambda: loci.lab.batch("copy", 0), "step must be from 1"),
            (lambda: loci.lab.batch("copy", 1, seed=-1), "seed must be from 0"),
            (lambda: loci.lab.batch("copy", 1, most=3), "must be a whole number"),
            (lambda: loci.lab.batch("copy", 1, mst=3), "no setting 'mst' for copy"),
            (lambda: loci.lab.batch("copy", 1, tokens=16), "must have room for a sequence"),
            (lambda: loci.lab.batch("passkey", 1, length=20), "must be at least 34"),
            (lambda: loci.lab.data("copy", "n=31"), "column of copy 'n=31' is none of as trained, "),
            (lambda: loci.lab.data("copy", "n=30", split="train"), "split 'train' is none of test, validation"),
            (lambda: loci.lab.batch("text", 1, corpus="/nowhere"), "No such file"),
        ):
            with self.subTest(said), self.assertRaises(loci.Error) as caught:
                call()
            self.assertIn(said, str(caught.exception))

    @unittest.skipUnless(PROGRAM, "there is no program here")
    def test_the_programs_sequences(self) -> None:
        path = os.path.join(self.folder, "x.safetensors")
        for task in loci.lab.tasks():
            validation = ("validation", loci.lab.columns(task)[0]["name"])
            for column in (None, loci.lab.columns(task)[-1]["name"], validation):
                with self.subTest(f"{task} {column}"):
                    if column == validation:
                        program("data", "--task", task, "--column", column[1], "--split", column[0], "-o", path)
                        mine = loci.lab.data(task, column[1], split=column[0])
                    elif column is None:
                        program("data", "--task", task, "--seed", "3", "--step", "7", "-o", path)
                        mine = loci.lab.batch(task, 7, 3)
                    else:
                        program("data", "--task", task, "--column", column, "-o", path)
                        mine = loci.lab.data(task, column)
                    theirs = read_safetensors(path)
                    for name, x in mine._asdict().items():
                        np.testing.assert_array_equal(x, theirs[name])


def plain(q: Any, k: Any, v: Any, layer: int, positions: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def biased(q: Any, k: Any, v: Any, layer: int, positions: Any) -> Any:
    """alibi, for 4 heads."""
    apart = positions[:, None] - positions[None, :]
    bias = -torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256])[:, None, None] * apart
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(apart < 0, -torch.inf))


def both_ways(q: Any, k: Any, v: Any, layer: int, positions: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v)


def train(attention: Any, tasks: Any, **options: Any) -> Any:
    return loci.lab.train(attention, tasks, size="XS", progress=None, **options)


if torch is not None:

    class Learned(torch.nn.Module):
        """A number per distance and head."""

        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.zeros(2, 4, 400))

        def forward(self, q: Any, k: Any, v: Any, layer: int, positions: Any, x: Any) -> Any:
            assert x.shape == (q.shape[0], q.shape[2], q.shape[1] * q.shape[3])
            apart = positions[:, None] - positions[None, :]
            bias = self.table[layer][:, apart.clamp(0, 399)]
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(apart < 0, -torch.inf))


@unittest.skipIf(torch is None, "there is no torch here")
class Train(Folder):
    def means(self, results: Any) -> Any:
        return [[column["mean"] for column in result["columns"]] for result in results]

    @unittest.skipUnless(PROGRAM, "there is no program here")
    def test_the_labs_step(self) -> None:
        """Logits, loss and the weights after a step, against `loci lab dump`."""
        from loci import _lab_train as lab_train

        path = os.path.join(self.folder, "x.safetensors")
        for arm, attention in (("nope", plain), ("alibi", biased)):
            program("dump", "--arm", arm, "--task", "copy", "--size", "XS", "--seed", "2", "-o", path)
            x = read_safetensors(path)
            problem = _lab.problem("copy", "XS", None, {})
            model = lab_train.Model(problem, 2, attention, None)
            for name, p in model.named_parameters():
                np.testing.assert_array_equal(p.detach().numpy(), x["w." + name], name)
            tokens, _ = lab_train._padded(problem.train(2, 1), "cpu")
            there = x["positions"] == np.arange(tokens.shape[1])
            got = (model(tokens) @ model.unembed).detach().numpy()
            np.testing.assert_allclose(got[there], x["logits"][there], atol=2e-5)
            steps = 3000  # the rate of the first step
            self.assertAlmostEqual(lab_train.rate_of(problem, steps, 0), x["config"]["lr"], 12)
            log, _, _ = lab_train.fit(model, problem, 2, 1, "cpu")
            self.assertAlmostEqual(log[0][1], float(x["loss"][0]), 5)

    @unittest.skipUnless(PROGRAM, "there is no program here")
    def test_among_the_labs_seeds(self) -> None:
        """Plain attention is nope, and lands where nope does, seed by seed."""
        program(
            "run",
            "--arms",
            "nope",
            "--tasks",
            "text",
            "--size",
            "XS",
            "--steps",
            "60",
            "--seeds",
            "2",
            "-o",
            self.folder,
        )
        mine = train(plain, "text", steps=60, seeds=[0, 1], out=self.folder, name="plain")
        theirs = {}
        for path in pathlib.Path(self.folder).glob("runs/*/result.json"):
            result = json.loads(path.read_text())
            if result["arm"] == "nope":
                theirs[result["seed"]] = result
        for result in mine:
            other = theirs[result["seed"]]
            self.assertEqual(result["settings"], other["settings"])
            self.assertEqual((result["params"], result["length"]), (other["params"], other["length"]))
            self.assertEqual([c["name"] for c in result["columns"]], [c["name"] for c in other["columns"]])
            np.testing.assert_allclose(self.means([result]), self.means([other]), atol=0.005)
            self.assertAlmostEqual(result["validation"], other["validation"], 2)
            for a, b in zip(result["positions"], other["positions"], strict=True):
                self.assertEqual((a["from"], a["to"], a["count"]), (b["from"], b["to"], b["count"]))
        self.assertGreater(abs(self.means(mine)[0][0] - self.means(mine)[1][0]), 0.005)  # seeds differ by more
        text = program("report", self.folder)
        self.assertIn("torch, bits not repeatable", text)
        self.assertRegex(text, r"\nplain@torch +not learned ")

    @unittest.skipUnless(PROGRAM, "there is no program here")
    def test_the_program_reads_them(self) -> None:
        train(plain, ["copy", "text"], steps=4, out=self.folder, name="mine", length=24)
        program("report", self.folder, "-o", os.path.join(self.folder, "report.html"))
        self.assertIn("mine@torch", pathlib.Path(self.folder, "report.html").read_text())
        self.assertIn("2 of 2 runs", program("watch", self.folder))
        self.assertIn("mine@torch,,copy,XS,length=24,", program("report", self.folder, "--csv"))
        with self.assertRaisesRegex(AssertionError, "was trained in torch"):
            program("sample", self.folder, "mine@torch", "copy")

    def test_a_module(self) -> None:
        start = Learned()
        made = train(start, "copy", steps=5, seeds=[0, 1], out=self.folder, name="table")
        self.assertEqual(made[0]["params_encoding"], 2 * 4 * 400)
        self.assertTrue((start.table == 0).all(), "a run trains a copy")
        self.assertNotEqual(made[0]["weights_sha256"], made[1]["weights_sha256"])
        file = next(pathlib.Path(self.folder).glob("runs/*/weights.safetensors"))
        tables = read_safetensors(str(file))["attention.table"]
        self.assertTrue((tables[:, :, 1:20] != 0).any() and (tables[:, :, 200:] == 0).all())

    def test_embeddings(self) -> None:
        def shifted(x: Any, positions: Any) -> Any:
            return x + 0.1 * positions[:, None]

        made = train(plain, "copy", steps=2, out=self.folder, name="shifted", embedding=shifted)
        self.assertEqual(made[0]["arm"], "shifted@torch")

    def test_runs_are_kept(self) -> None:
        first = train(plain, "copy", steps=3, out=self.folder, name="mine")
        before = {p: p.stat().st_mtime_ns for p in pathlib.Path(self.folder).glob("runs/*/*")}
        self.assertEqual(train(plain, "copy", steps=3, out=self.folder, name="mine"), first)
        self.assertEqual({p: p.stat().st_mtime_ns for p in pathlib.Path(self.folder).glob("runs/*/*")}, before)
        with self.assertRaisesRegex(loci.Error, "other code; choose another name"):
            train(biased, "copy", steps=3, out=self.folder, name="mine")
        train(biased, "copy", steps=3, out=self.folder, name="other")
        train(biased, "copy", steps=3, out=self.folder, name="mine", replace=True)
        self.assertEqual(len(list(pathlib.Path(self.folder).glob("runs/*/result.json"))), 2)

    def test_threads(self) -> None:
        """One thread while it trains, unless more are asked for, and afterwards as many as before."""
        seen: list[int] = []

        def counted(q: Any, k: Any, v: Any, layer: int, positions: Any) -> Any:
            seen.append(torch.get_num_threads())
            return plain(q, k, v, layer, positions)

        before = torch.get_num_threads()
        self.addCleanup(torch.set_num_threads, before)
        torch.set_num_threads(2)
        train(counted, "copy", steps=1, out=self.folder, name="one")
        self.assertEqual((set(seen), torch.get_num_threads()), ({1}, 2))
        train(counted, "copy", steps=1, out=self.folder, name="three", threads=3)
        self.assertEqual((seen[-1], torch.get_num_threads()), (3, 2))
        self.refused("threads", plain, "copy", threads=0)
        self.assertEqual(torch.get_num_threads(), 2)

    def test_refusals(self) -> None:
        def wrong(q: Any, k: Any, v: Any, layer: int, positions: Any) -> Any:
            return q[:, :1]

        self.refused("not causal", both_ways, "copy")
        self.refused("in the shape of q", wrong, "copy")
        self.refused("must be 1 to 60 letters", plain, "copy", name="a@b")
        self.refused("task 'cpy'", plain, "cpy")
        self.refused("tasks or seeds are empty", plain, [])
        self.refused("no setting 'lr'", plain, "copy", lr=1)
        with self.assertRaisesRegex(TypeError, "must be callable"):
            train(3, "copy", out=self.folder, name="mine")
        pathlib.Path(self.folder, "lab.json").write_text("{}")
        self.refused("is not of this lab", plain, "copy")

    def refused(self, said: str, attention: Any, tasks: Any, **options: Any) -> None:
        with self.assertRaisesRegex(loci.Error, said):
            train(attention, tasks, **{"out": self.folder, "name": "mine", "steps": 2, **options})


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "lab-own-encoding.md"


@unittest.skipIf(torch is None or not PROGRAM or not PAGE.exists(), "there is no torch, no program or no page here")
class Page(Folder):
    def test_from_an_idea_to_a_row(self) -> None:
        """The blocks and commands of the page, in their order."""
        steps = re.finditer(r"^```python\n((?:.*\n)*?)```|^    loci lab (.*)$", PAGE.read_text(), re.M)
        before, said = os.getcwd(), {}
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder)
        with contextlib.redirect_stdout(io.StringIO()):
            for step in steps:
                if step[1]:
                    exec(step[1], {"__name__": "page"})
                else:
                    said[step[2]] = program(*step[2].split())
        self.assertGreater(len(said), 6)
        for command, text in said.items():
            if command.startswith("compare"):
                self.assertRegex(text, r"\n    8L +[0-9.]+ +[0-9.]+ ")
        report = program("report", "lab-mine", "--csv")
        for arm in ("root@torch", "root-learned@torch", "forget@torch", "bias:file=root.safetensors"):
            self.assertIn("\n" + arm, report)


if __name__ == "__main__":
    unittest.main()
