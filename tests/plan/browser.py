"""A headless Chromium, driven over the WebDriver protocol: enough to read a page as a reader sees it."""

import json
import shutil
import subprocess
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # W3C WebDriver: the key of a web element


class Page:
    """An open page."""

    def __init__(self, session: str) -> None:
        self._session = session

    def call(self, path: str, body: dict | None = None):
        """Send one WebDriver command and give its value."""
        data = None if body is None else json.dumps(body).encode()
        with _DIRECT.open(f"{self._session}/{path}", data, timeout=1000) as answer:
            return json.load(answer)["value"]

    def run(self, script: str, *arguments):
        """Run a function body in the page and give what it returns."""
        return self.call("execute/sync", {"script": script, "args": list(arguments)})

    def point_at(self, selector: str) -> None:
        """Move the mouse over the first element that a CSS selector finds."""
        element = self.call("element", {"using": "css selector", "value": selector})
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        move = {"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": {_ELEMENT: element[_ELEMENT]}}
        self.call("actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [move]}]})


@contextmanager
def open_page(path: Path):
    """Open a file in headless Chromium; skips where it or its driver is not installed."""
    chromium = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed (apt-get install chromium chromium-driver)")
    with subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            ready = next(line for line in process.stdout if "successfully on port" in line)
            port = ready.rstrip(".\n").rpartition(" ")[2]
            flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,900"]
            options = {"binary": chromium, "args": flags}
            wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
            base = Page(f"http://127.0.0.1:{port}")
            session = Page(f"http://127.0.0.1:{port}/session/{base.call('session', wanted)['sessionId']}")
            session.call("url", {"url": path.as_uri()})
            yield session
            _DIRECT.open(urllib.request.Request(session._session, method="DELETE"), timeout=1000).close()
        finally:
            process.terminate()
