# SPDX-License-Identifier: MIT
"""explorer.py PAGE LOCI [all]: tests the explorer as users operate it, in headless Chromium.

A line "ok WHAT" or "FAILED WHAT" for each check, and "end" when all are done.  With `all`, the
numbers of every encoding and figure.  Numbers of the page are those of `loci show --json`: the same
engine, except for the last places of libm.
"""

import json
import math
import subprocess
import sys
import tempfile

import browser

PAGE, LOCI, ALL = sys.argv[1], sys.argv[2], sys.argv[3:] == ["all"]


def check(what, holds, said=""):
    print(f"ok {what}" if holds else f"FAILED {what}{': ' + str(said) if said else ''}", flush=True)


# ---- The page as somebody sees it --------------------------------------------------------------------------


def element(name):
    return f"document.getElementById({json.dumps(name)})"


def shown(page):
    """The figures are those of the selection, or there is a sentence."""
    return page.wait("document.getElementById('panel')?.getAttribute('aria-busy') === 'false'")


def choose(page, name, value):
    """Moves a control and releases it, like a user."""
    page.value(f"""{{ const e = {element(name)}; e.focus(); e.value = {json.dumps(value)};
        for (const kind of ["input", "change"]) e.dispatchEvent(new Event(kind, {{ bubbles: true }}));
        e.blur() }}""")
    shown(page)


def tab(page, what):
    page.value(f"{element('tab-' + what)}.click()")
    shown(page)


def numbers(page):
    """The text of the page with its numbers opened."""
    if not page.value(f"{element('numbers')}.open"):
        page.value(f"{element('numbers')}.open = true")
    page.wait(f"{element('json')}.textContent.startsWith('[')")
    shown(page)
    return json.loads(page.value(f"{element('json')}.textContent"))


def fragment(page):
    return page.value("location.hash")


def sentence(page):
    return page.value(f"{element('error')}.hidden ? '' : {element('error')}.textContent")


def overflow(page):
    return page.value("document.documentElement.scrollWidth - innerWidth")


def focused(page):
    return page.value("document.activeElement.id")


# ---- The program -------------------------------------------------------------------------------------------


def program(text, what, *flags):
    out = subprocess.run(
        [LOCI, "show", text, "--what", what, "--json", *flags], capture_output=True, text=True, check=True
    )
    return json.loads(out.stdout)["figures"]


def largest(x):
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, list):
        return max(map(largest, x), default=0)
    return abs(x) if isinstance(x, (int, float)) else 0


def differ(a, b, size, where=""):
    """The first difference of two figures, or None."""
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return (
            None if math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12 * size) else f"{where}: {a!r} and {b!r}"
        )
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        pairs = [(key, a[key], b[key]) for key in a]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        size = largest(a)
        pairs = [(i, *both) for i, both in enumerate(zip(a, b))]
    else:
        return None if a == b else f"{where}: {a!r:.60} and {b!r:.60}"
    return next((d for d in (differ(x, y, size, f"{where}.{key}") for key, x, y in pairs) if d), None)


def plain(figure):
    """The first column of a table: the others contain deviations near 0, which are noise."""
    return [next(iter(row.values())) for row in figure["rows"]] if "rows" in figure else figure


def compare(page, text, what, *flags):
    got, want = ([plain(f) for f in figures] for figures in (numbers(page), program(text, what, *flags)))
    check(f"{text}, {what} {' '.join(flags)}", (said := differ(got, want, 1)) is None, said)


# ---- What a reader does ------------------------------------------------------------------------------------


def controls(page):
    check("it starts with a picture", page.value("document.querySelector('#panel svg') !== null"))
    check(
        "and its link is the usual one", page.value(f"{element('panel')}.dataset.link") == "#alibi&what=map"
    )
    check(
        "every encoding is there",
        page.value(f"{element('encoding')}.options.length - 1")
        == len(
            subprocess.run(
                [LOCI, "list", "--json"], capture_output=True, text=True, check=True
            ).stdout.splitlines()
        ),
    )
    compare(page, "alibi", "map")
    choose(page, "encoding", "kerple")
    tab(page, "curve")
    check("kerple's link", fragment(page) == "#kerple&what=curve", fragment(page))
    compare(page, "kerple", "curve")
    choose(page, "encoding", "rope")
    tab(page, "spectrum")
    compare(page, "rope:pairing=half", "spectrum")
    choose(page, "option-0-base", "500000")
    choose(page, "dim", "32")
    check(
        "an option moves the text and the link",
        fragment(page) == "#rope:pairing=half,base=500000&dim=32&what=spectrum",
        fragment(page),
    )
    compare(page, "rope:pairing=half,base=500000", "spectrum", "--dim", "32")
    page.value("history.back()")
    check("back", page.wait(f"{element('dim')}.value === '64'") and shown(page))
    check("and its numbers", numbers(page) == program("rope:pairing=half,base=500000", "spectrum"))
    choose(page, "encoding", "sinusoidal")
    tab(page, "similarity")
    compare(page, "sinusoidal", "similarity")
    choose(page, "more", "alibi")
    page.value(f"{element('numbers')}.open = false")


def links(page):
    page.open(f"file://{PAGE}#alibi+cape&len=48&head=3&what=map")
    page.wait(f"{element('panel')}?.dataset.link === '#alibi+cape&len=48&head=3&what=map'")
    check(
        "a link is read",
        page.value(f"{element('text')}.value") == "alibi+cape"
        and page.value(f"{element('len')}.value") == "48",
    )
    check("both parts have controls", page.value("document.querySelectorAll('#parts fieldset').length") == 2)
    compare(page, "alibi+cape", "map", "--len", "48", "--head", "3")
    choose(page, "option-1-add_bias", "0")
    check(
        "an option of the second part",
        fragment(page) == "#alibi+cape:add_bias=0&len=48&head=3&what=map",
        fragment(page),
    )
    compare(page, "alibi+cape:add_bias=0", "map", "--len", "48", "--head", "3")
    choose(page, "option-1-add_bias", "1")
    check(
        "the usual value is not written",
        fragment(page) == "#alibi+cape&len=48&head=3&what=map",
        fragment(page),
    )


def mistakes(page):
    choose(page, "text", "alibbi")
    check(
        "a sentence for a bad name",
        "did you mean" in sentence(page) or "alibbi" in sentence(page),
        sentence(page),
    )
    check("read out", page.value(f"{element('error')}.getAttribute('role')") == "alert")
    for text, words in (
        ("rope", "pairing"),
        ("alibi:slopes=steep", "steep"),
        ("t5:buckets=99999999", "buckets"),
        ("", ""),
        ("alibi+", ""),
        ("<b>&amp;", ""),
        ("deberta:span=65536,max_distance=65536", "numbers"),
        ("x" * 5000, "long"),
    ):
        choose(page, "text", text)
        check(f"a sentence for '{text[:40]}'", sentence(page) and words in sentence(page), sentence(page))
    choose(page, "text", "alibi")
    check("and none for a good one", sentence(page) == "", sentence(page))
    for name, value in (
        ("len", "1"),
        ("len", "1e9"),
        ("len", "3.5"),
        ("heads", "-4"),
        ("head", "8"),
        ("dim", "100000"),
        ("seed", "-1"),
    ):
        choose(page, name, value)
        check(f"a sentence for {name} {value}", "must be" in sentence(page), sentence(page))
        choose(page, name, "")
    check("none for the usual problem", sentence(page) == "", sentence(page))
    page.value("location.hash = '#cope:npos=65536&what=properties'")  # minutes
    page.wait(f"{element('text')}.value.startsWith('cope')")
    choose(page, "encoding", "clip")
    check(
        "what takes long is given up for what comes next",
        page.value(f"{element('panel')}.dataset.link") == "#clip&what=properties",
        page.value(f"{element('panel')}.dataset.link"),
    )
    check("the page is still alive", page.value("document.querySelector('#panel table') !== null"))


def keyboard(page):
    page.open("about:blank")
    page.open(f"file://{PAGE}")
    page.wait(f"{element('panel')}?.dataset.link")
    for _ in range(9):
        page.key("Tab")
        if focused(page) == "encoding":
            break
    check("Tab comes to the encodings", focused(page) == "encoding", focused(page))
    check(
        "and one sees where it is",
        page.value("getComputedStyle(document.activeElement).outlineStyle") == "solid",
    )
    page.key("ArrowDown")
    check("an arrow takes the next one", page.wait("location.hash.startsWith('#t5')"), fragment(page))
    page.key("Tab")
    check("then to the text", focused(page) == "text", focused(page))
    page.key("End")
    page.type(",buckets=8")
    check(
        "which is typed",
        page.wait("location.hash === '#t5:bidirectional=0,buckets=8&what=map'"),
        fragment(page),
    )
    shown(page)
    page.key("Tab")
    check("then to the slider", page.value("document.activeElement.type") == "range")
    page.key("ArrowRight")
    check(
        "which moves by one",
        page.wait("location.hash === '#t5:bidirectional=0,buckets=9&what=map'"),
        fragment(page),
    )
    shown(page)
    page.key("Tab")
    check("then to its field", focused(page) == "option-0-buckets", focused(page))
    for _ in range(60):
        page.key("Tab")
        if focused(page).startswith("tab-"):
            break
    check("then to the figures", focused(page) == "tab-map", focused(page))
    page.key("ArrowRight")
    check(
        "an arrow shows the next",
        focused(page) == "tab-curve" and page.wait("location.hash.endsWith('what=curve')"),
        fragment(page),
    )
    page.key("End")
    check("and End the last", focused(page) == "tab-properties" and shown(page), focused(page))
    check("a table", page.wait("document.querySelector('#panel table') !== null"))
    page.key("Tab")
    check("then into the panel", focused(page) == "panel", focused(page))
    unnamed = page.value("""[...document.querySelectorAll("input, select")]
        .filter(e => !e.labels?.length && !e.ariaLabel)
        .map(e => e.id).join()""")
    check("every control has a label", unnamed == "", unnamed)


def narrow(page):
    page.size(360, 740, phone=True)
    for what in (
        "alibi&what=curve",
        "t5:bidirectional=0&what=properties",
        "rope:pairing=interleaved,scaling=yarn,factor=4,original_length=64&what=spectrum",
        "sinusoidal&what=similarity",
        "fox&what=attention",
    ):
        page.open("about:blank")
        page.open(f"file://{PAGE}#{what}")
        page.wait(f"{element('panel')}?.dataset.link")
        check(
            f"{what} fits into 360 pixels",
            overflow(page) <= 0 and not sentence(page),
            f"{overflow(page)} too many; {sentence(page)}",
        )


def everything(page):
    page.open(f"file://{PAGE}")
    page.wait(f"{element('panel')}?.dataset.link")
    listed = subprocess.run([LOCI, "list", "--json"], capture_output=True, text=True, check=True).stdout
    for e in map(json.loads, listed.splitlines()):
        choose(page, "encoding", e["name"])
        for what in page.value(
            "[...document.querySelectorAll('[role=tab]')].filter(t => !t.hidden).map(t => t.textContent)"
        ):
            tab(page, what)
            check(f"{e['name']}, {what}: no sentence", not sentence(page), sentence(page))
            compare(page, e["example"], what)


def main():
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, browser.start(profile) as page:
        page.size(1280)
        page.open(f"file://{PAGE}")
        page.wait(f"{element('panel')}?.dataset.link")
        for part in [everything] if ALL else [controls, links, mistakes, keyboard, narrow]:
            part(page)
        thrown = [
            e
            for e in page.events
            if e.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        ]
        check("nothing was thrown or complained of", not thrown, thrown[:1])
        asked = page.value("performance.getEntriesByType('resource').map(r => r.name).join()")
        check("nothing was fetched", not asked, asked)
    print("end")


main()
