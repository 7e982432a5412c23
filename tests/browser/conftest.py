"""A headless Chromium and a report page opened in it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import time

import pytest

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium():
    """Yield a browser for the session; skip tests if there is none."""
    webdriver = pytest.importorskip("selenium.webdriver")
    browser = next(filter(None, map(shutil.which, CHROMIUM)), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no Chromium with its driver here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    words = ["--headless=new", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        words.append("--no-sandbox")  # Chromium refuses to sandbox root
    for word in words:
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield found
    found.quit()


class Page:
    """A report that is open in the browser."""

    def __init__(self, browser, path, folder):
        self.browser = browser
        self.path = path
        self.folder = folder

    def open(self, width=1280, height=900, scheme="light"):
        """Open it in a window of that size; log console messages and requests from now on."""
        self.browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.browser.get("about:blank")
        self.browser.get_log("browser")
        self.browser.get_log("performance")
        self.browser.get(self.path.as_uri())
        self.settle()
        return self

    def settle(self):
        """Wait until pending changes are drawn."""
        self.browser.execute_async_script(
            "const frame = requestAnimationFrame, done = arguments[0]; setTimeout(() => frame(() => frame(done)), 120);"
        )

    def run(self, script, *arguments):
        return self.browser.execute_script(f"return {script}", *arguments)

    def one(self, selector):
        return self.browser.find_element("css selector", selector)

    def all(self, selector):
        return self.browser.find_elements("css selector", selector)

    def texts(self, selector):
        """Return the text contents of all matching elements in one call."""
        return self.run("[...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector)

    def search(self, text):
        box = self.one("#search")
        box.clear()
        box.send_keys(text)
        time.sleep(0.1)
        self.settle()

    def complaints(self):
        return [entry["message"] for entry in self.browser.get_log("browser")]

    def requests(self):
        """Return the URLs that the page requested, except its own."""
        messages = (json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance"))
        asked = [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]
        return [address for address in asked if address != self.path.as_uri()]

    def picture(self, name):
        """Save a picture of the entire page in the test's folder."""
        width, height = self.run("[innerWidth, Math.min(5000, document.documentElement.scrollHeight)]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path = self.folder / f"{name}.png"
        path.write_bytes(base64.b64decode(shot["data"]))
        return path


@pytest.fixture
def show(chromium, tmp_path):
    """Return a function that opens a report as a page."""

    def opened(report, title="model.onnx", difference=None, **window):
        path = tmp_path / "report.html"
        path.write_text(report.to_html(title, difference), encoding="utf-8")
        return Page(chromium, path, tmp_path).open(**window)

    return opened
