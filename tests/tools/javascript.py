# SPDX-License-Identifier: MIT
"""javascript.py FOLDER: loci.js of a package in headless Chromium, as a page imports it, served from this machine.

Prints "ok WHAT" or "FAILED WHAT" for each check, and "end".  FOLDER has the package in node_modules,
and page.mjs, which sets globalThis.said; node prints the same text.
"""

import functools
import http.server
import subprocess
import sys
import tempfile
import threading

import browser

FOLDER = sys.argv[1]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def main():
    with open(f"{FOLDER}/index.html", "w") as page:
        page.write('<!DOCTYPE html><script type="module" src="page.mjs"></script>')
    node = subprocess.run(
        ["node", "--input-type=module", "-e", 'await import("./page.mjs"); console.log(said);'],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=True,
    )
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=FOLDER))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, browser.start(profile) as page:
        page.open(f"http://127.0.0.1:{server.server_port}/index.html")
        came = page.wait("globalThis.said !== undefined")
        said = page.value("globalThis.said") if came else "nothing"
        same = said == node.stdout.strip() and said.startswith("[")
        print("ok the page has the bits of node" if same else f"FAILED the page: {said:.200}, node: {node.stdout:.200}")
    print("end")


main()
