"""A browser for the tests of the site and of the film."""

import contextlib
import functools
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

BROWSER = shutil.which("chromium"), shutil.which("chromedriver")
NEEDS_BROWSER = pytest.mark.skipif(None in BROWSER, reason="apt-get install chromium-driver")


@pytest.fixture(scope="module")
def chromium():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER[0]
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(BROWSER[1]))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


class WithNotFound(SimpleHTTPRequestHandler):
    """A server that shows 404.html for what is not there, as those of GitHub and others do."""

    def send_error(self, code, *arguments, **others):
        page = Path(self.directory) / "404.html"
        if code != 404 or not page.exists():
            super().send_error(code, *arguments, **others)
            return
        content = page.read_bytes()
        self.send_response(404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        """Say nothing."""


@contextlib.contextmanager
def served(folder):
    """Serve the files of a folder -> the address, without a slash at its end."""
    handler = functools.partial(WithNotFound, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
