# SPDX-License-Identifier: MIT
"""A page in headless Chromium, controlled through two pipes.

It needs no server, no network and only the standard library.

with Browser(profile) as page:
    page.open("file:///.../index.html")
    page.value("document.title")
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time


def program():
    """The path of Chromium, or None."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return shutil.which(name)
    return None


def start(profile):
    """A Browser.  Some systems have a Chromium that they do not permit to run: then the program ends with a sentence."""
    try:
        return Browser(profile)
    except (RuntimeError, OSError) as e:
        print(f"left out: Chromium does not start here ({e})\nend")
        sys.exit()


class Browser:
    def __init__(self, profile, patience=120):
        self.patience, self.number, self.waiting, self.events = patience, 0, b"", []
        to_it, self.write_to = os.pipe()
        self.read_from, from_it = os.pipe()
        # It wants to read from 3 and to write to 4, so ours must be neither.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_it, from_it)]
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        self.log = open(os.path.join(profile, "said"), "wb")
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash", program(), *flags],
            pass_fds=ends,
            stdout=self.log,
            stderr=self.log,
            cwd=profile,
            env={**os.environ, "HOME": profile, "TMPDIR": "."},
        )  # sockets have short names only
        for fd in (to_it, from_it, *ends):
            os.close(fd)
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = None
        self.session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime"):
            self.ask(f"{domain}.enable")

    session = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.write_to)
        os.close(self.read_from)
        self.log.close()

    def ask(self, method, **parameters):
        """The answer to a command of Chromium's protocol. Messages end with a 0."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + self.patience
        while True:
            answer = self._next(end, method)
            if answer.get("id") != self.number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]

    def _next(self, end, method):
        while b"\0" not in self.waiting:
            ready = select.select([self.read_from], [], [], max(0, end - time.monotonic()))[0]
            more = os.read(self.read_from, 1 << 20) if ready else b""
            if not more:
                raise RuntimeError(f"Chromium {'ended' if ready else 'does not answer'}: {method}")
            self.waiting += more
        message, _, self.waiting = self.waiting.partition(b"\0")
        return json.loads(message)

    def value(self, expression):
        """The value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def wait(self, expression):
        """Waits until it is true. False: timeout."""
        end = time.monotonic() + self.patience / 4
        while time.monotonic() < end:
            if self.value(expression):
                return True
            time.sleep(0.02)
        return False

    def open(self, address):
        self.ask("Page.navigate", url=address)

    def size(self, width, height=900, phone=False):
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )

    def dark(self, on):
        self.ask(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}],
        )

    KEYS = {
        "Tab": 9,
        "Enter": 13,
        "Space": 32,
        "End": 35,
        "Home": 36,
        "ArrowLeft": 37,
        "ArrowUp": 38,
        "ArrowRight": 39,
        "ArrowDown": 40,
        "Backspace": 8,
    }

    def key(self, name, shift=False):
        """Presses a key."""
        code = self.KEYS[name]
        text = {"Enter": "\r", "Space": " "}.get(name)
        what = {
            "key": " " if name == "Space" else name,
            "code": name,
            "windowsVirtualKeyCode": code,
            "modifiers": 8 if shift else 0,
        }
        self.ask(
            "Input.dispatchKeyEvent",
            type="keyDown" if text else "rawKeyDown",
            **({"text": text} if text else {}),
            **what,
        )
        self.ask("Input.dispatchKeyEvent", type="keyUp", **what)

    def type(self, text):
        self.ask("Input.insertText", text=text)

    def picture(self, path, whole=True):
        """A PNG of the page."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as out:
            out.write(base64.b64decode(shot["data"]))
