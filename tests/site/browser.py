"""A headless Chromium, driven through pipes by the protocol of its developer tools."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

CHROMIUM = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)


class Browser:
    """One tab. Messages are JSON that ends in a zero byte, on the descriptors 3 and 4 of the browser."""

    def __init__(self, profile: Path) -> None:
        """Open it, or skip the test where none is installed."""
        if CHROMIUM is None:
            pytest.skip("chromium is not installed: apt-get install chromium")
        theirs_in, self.to = os.pipe()
        self.back, theirs_out = os.pipe()
        # dup2 in a shell, as descriptors 3 and 4 of this process may be anything
        command = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(
            ["bash", "-c", command, CHROMIUM, *flags, "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.number, self.rest = 0, b""
        self.session: str | None = None
        self.errors: list[str] = []
        self.loaded = False
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.terminate()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)

    def ask(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def receive(self) -> Any:
        """Return the next message; errors of the page are collected."""
        while b"\0" not in self.rest:
            read = os.read(self.back, 1 << 20)
            assert read, "the browser has ended"
            self.rest += read
        message, self.rest = self.rest.split(b"\0", 1)
        answer = json.loads(message)
        event = answer.get("method")
        if event == "Page.loadEventFired":
            self.loaded = True
        elif event == "Runtime.exceptionThrown" or (
            event == "Log.entryAdded" and answer["params"]["entry"]["level"] == "error"
        ):
            self.errors.append(json.dumps(answer["params"])[:500])
        return answer

    def show(self, page: Path, *, mark: str = "", width: int = 1400, height: int = 900) -> None:
        """Load a file at a width, and wait until it is there."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        for url in ("about:blank", f"{page.resolve().as_uri()}{mark}"):  # another mark alone would load nothing
            self.loaded = False
            self.ask("Page.navigate", url=url)
            while not self.loaded:
                self.receive()

    def value(self, expression: str) -> Any:
        """Evaluate JavaScript in the page."""
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")
