"""A headless Chromium, driven through its debugging pipe: no package beside the standard library is needed."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
#: what the page is waited for, and a single answer, in seconds
PATIENCE_S = 60.0
#: notes, before anything of the page runs, when it says that it is ready and has been painted
_WHEN_READY = """
new MutationObserver((_, self) => {
  if (!document.documentElement || !document.documentElement.dataset.ready) return;
  self.disconnect();
  requestAnimationFrame(() => requestAnimationFrame(() => { window.readyAfter = performance.now(); }));
}).observe(document, {attributes: true, subtree: true, attributeFilter: ['data-ready']});
"""


def find() -> str:
    """The path of a Chromium.

    Raises:
        FileNotFoundError: naming those that were looked for.
    """
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise FileNotFoundError(f"no browser; looked for {', '.join(NAMES)}; on Debian: apt-get install chromium")
    return found


@dataclass
class Page:
    """A tab.

    Attributes:
        errors: errors on its console, exceptions that nobody caught, requests that were refused.
        requests: addresses that it asked for, its own among them.
    """

    browser: Browser
    session: str
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.ask(method, parameters, self.session)

    def run(self, script: str) -> Any:
        """What an expression is; a promise is waited for."""
        answer = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script[:80]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Of which size it is, and in which theme."""
        phone = width < 600
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.ask("Emulation.setTouchEmulationEnabled", enabled=phone)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme)

    def open(self, path: Path) -> float:
        """Open a file; seconds from the navigation until it says that it is ready, and is painted."""
        self.ask("Page.navigate", url=path.absolute().as_uri())
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            after = self.run("window.readyAfter || 0")
            if after:
                return float(after) / 1e3
            self.browser.listen(0.02)
        raise TimeoutError(f"{path} was not ready after {PATIENCE_S:.0f} s; errors: {self.errors}")

    @property
    def first_s(self) -> float:
        """Seconds until something could be read: its winner and its table, which need no plot."""
        return float(self.run("performance.getEntriesByName('first-contentful-paint')[0].startTime")) / 1e3

    @property
    def main_thread_s(self) -> float:
        """Seconds of a core that the page's own thread has taken so far: what else runs here does not count."""
        metrics = self.ask("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what is seen, or the whole page, as PNG."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def hear(self, method: str, said: Mapping[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(said["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "assert"):
            self.errors.append(str(said["args"])[:500])
        elif method == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.errors.append(said["entry"]["text"][:500])
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"][:100])


class Browser:
    """A browser that is under way."""

    def __init__(self, to_it: int, from_it: int) -> None:
        self._to, self._from, self._said, self._number = to_it, from_it, b"", 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, Page] = {}

    @property
    def version(self) -> str:
        return str(self.ask("Browser.getVersion", {})["product"])

    @contextmanager
    def page(self) -> Iterator[Page]:
        """Within this scope, a new tab with no cache."""
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.ask(f"{domain}.enable")
        page.ask("Performance.enable", timeDomain="threadTicks")
        page.ask("Network.setCacheDisabled", cacheDisabled=True)
        page.ask("Page.addScriptToEvaluateOnNewDocument", source=_WHEN_READY)
        try:
            yield page
        finally:
            del self._pages[session]
            self.ask("Target.closeTarget", {"targetId": target})

    def ask(self, method: str, parameters: Mapping[str, Any], session: str = "") -> dict[str, Any]:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        end = time.monotonic() + PATIENCE_S
        while number not in self._answers:
            if time.monotonic() > end:
                raise TimeoutError(f"the browser did not answer {method} within {PATIENCE_S:.0f} s")
            self.listen(1.0)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def listen(self, wait_s: float) -> None:
        """Take in what the browser says, for so long at most."""
        ready, _, _ = select.select([self._from], [], [], wait_s)
        if not ready:
            return
        said = os.read(self._from, 1 << 20)
        if not said:
            raise ConnectionError("the browser has ended")
        *messages, self._said = (self._said + said).split(b"\0")
        for text in messages:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            elif message.get("sessionId") in self._pages:
                self._pages[message["sessionId"]].hear(message["method"], message["params"])


@contextmanager
def browser() -> Iterator[Browser]:
    """Within this scope, a Chromium of one's own, without a network and with an empty profile."""
    read_end, to_it = os.pipe()
    from_it, write_end = os.pipe()
    read_end, write_end = (fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (read_end, write_end))

    def place() -> None:  # where a browser that is debugged through a pipe looks for it
        os.dup2(read_end, 3)
        os.dup2(write_end, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
            "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
            "--host-resolver-rules=MAP * ~NOTFOUND", "--hide-scrollbars", f"--user-data-dir={profile}",
            "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        running = subprocess.Popen(command, pass_fds=(3, 4), preexec_fn=place, stderr=subprocess.DEVNULL)
        os.close(read_end)
        os.close(write_end)
        try:
            yield Browser(to_it, from_it)
        finally:
            running.terminate()
            try:
                running.wait(10)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()
            os.close(to_it)
            os.close(from_it)
