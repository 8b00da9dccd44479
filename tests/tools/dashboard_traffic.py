"""Runs and faults for some minutes, watched by a real exporter and a real Prometheus: what docs/dashboard.png is made of.

    python tests/tools/dashboard_traffic.py --minutes 12 --picture docs/dashboard.png

A Valkey server, the agents, the shop and the scripted model of `makegood demo`, a supervised worker, `makegood monitor`,
and the system's `prometheus` (Debian: apt-get install prometheus) with our rules. Answers are lost, services fail, worker
processes are killed, an operator decides about reviews. At the end tests/tools/dashboard_picture.py draws the dashboard;
without --picture everything goes on until Ctrl-C, and the address of Prometheus is printed. For maintainers, not for CI.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dashboard_picture
import psutil

from makegood import Client, MakegoodError
from makegood.cli import demo_model
from makegood.cli.demo_world import environment
from makegood.cli.supervise import start_supervisor
from makegood.testing import Behaviour, Provider, Reply, RequestRecord
from makegood.testing.shop import Shop
from makegood.workers.embedded import EmbeddedServer
from makegood.workers.embedded_process import free_port

RULES = Path(__file__).resolve().parents[2] / "src/makegood/monitoring/prometheus/rules.yml"
SCRAPE_S = 5
PAUSE_S = (0.05, 0.6)
"""Between two runs."""

FAULT_S = (2.0, 6.0)
"""Between two faults."""

PATIENCE_S = 25.0
"""How long a review waits for the operator."""

AGAIN = 0.05
"""How often the model asks for what it has already got."""

TEXTS = {
    "clerk": "Please order a lamp for C{n}.",
    "support": "The lamp is broken, says C{n}.",
    "stock": "How many lamps are left, asks C{n}.",
    "trips": "Please book a trip to Rome for C{n}.",
    "holidays": "Please book a trip to Oslo for C{n}.",
    "buyer": "What does a lamp cost, asks C{n}.",
}
WEIGHTS = (6, 4, 4, 3, 3, 1)


@dataclass
class Traffic:
    """Load, faults and an operator, each in a thread of its own."""

    client: Client
    shop: Shop
    worker: psutil.Process
    env: dict[str, str]
    rnd: random.Random = field(default_factory=lambda: random.Random(5))
    over: threading.Event = field(default_factory=threading.Event)
    judged: set[str] = field(default_factory=set)

    def load(self) -> None:
        """Runs of all agents; now and then one is cancelled."""
        number = 0
        while not self.over.wait(self.rnd.uniform(*PAUSE_S)):
            number += 1
            agent = self.rnd.choices(list(TEXTS), WEIGHTS)[0]
            run = self.client.enqueue(agent, TEXTS[agent].format(n=number), key=f"r{number}")
            if number % 41 == 0:
                run.cancel(reason="no longer wanted", actor="traffic")

    def strike(self) -> None:
        """Faults of the shop, and deaths of worker processes."""
        shop = self.shop
        faults: list[tuple[int, Callable[[], object]]] = [
            (6, lambda: shop.lose_answer("/tickets")),
            (4, lambda: shop.fail("/orders", 503, times=2)),
            (3, lambda: shop.fail("/stock", 503, times=4)),
            (7, lambda: shop.slow("/cars", 8.0, times=1)),
            (2, lambda: shop.fail("/cars", 500, times=1)),
            (3, self.fail_undo),
            (4, lambda: shop.slow("/quotes", 3.0, times=2)),
            (4, lambda: shop.lose_answer("/hotels")),
            (4, self.kill),
        ]
        while not self.over.wait(self.rnd.uniform(*FAULT_S)):
            self.rnd.choices([act for _, act in faults], [weight for weight, _ in faults])[0]()

    def fail_undo(self) -> None:
        """A run fails, and its hotel cannot be cancelled."""
        self.shop.fail("/hotels/", 500, times=3)
        self.shop.fail("/cars", 500, times=1)

    def kill(self) -> None:
        """SIGKILL of a worker process."""
        with suppress(psutil.NoSuchProcess):
            workers = [each for each in self.worker.children() if each.is_running()]
            if workers:
                os.kill(self.rnd.choice(workers).pid, signal.SIGKILL)

    def operate(self) -> None:
        """Decide about reviews that have waited, and say of timeouts whether they were right."""
        seen: dict[str, float] = {}
        while not self.over.wait(1.0):
            for review in self.client.reviews():
                since_s = seen.setdefault(review["run_id"], time.monotonic())
                if time.monotonic() - since_s > PATIENCE_S:
                    seen.pop(review["run_id"])
                    self.decide(review)
            for result in self.client.runs(state="timed_out", limit=5):
                if result.run_id not in self.judged:
                    self.judged.add(result.run_id)
                    verdict = "false_kill" if len(self.judged) % 50 == 7 else "true_kill"
                    self.command("timeouts", "verdict", result.run_id, verdict)

    def decide(self, review: dict[str, Any]) -> None:
        """Mostly another try, sometimes as it stands."""
        action = self.rnd.choices(["retry", "resolve"], [3, 1])[0]
        self.command("review", action, review["run_id"], "--actor", "ada", "--reason", "repaired")

    def command(self, *words: str) -> None:
        """`makegood WORDS`; what it refuses is shown."""
        run = [sys.executable, "-m", "makegood", *words]
        done = subprocess.run(run, check=False, env=self.env, capture_output=True, text=True, timeout=60)
        if done.returncode:
            print(f"makegood {' '.join(words)}: {done.stderr.strip()}", flush=True)

    def play(self, minutes: float) -> None:
        """All of it, for so long."""
        threads = [
            threading.Thread(target=self.surely, args=(each,))
            for each in (self.load, self.strike, self.operate)
        ]
        for thread in threads:
            thread.start()
        try:
            time.sleep(60 * minutes)
        finally:
            self.over.set()
            for thread in threads:
                thread.join()

    def surely(self, work: Callable[[], None]) -> None:
        """Again after an error, since a server may be busy; the error is shown."""
        while not self.over.is_set():
            try:
                work()
            except MakegoodError as error:
                print(error, flush=True)


def answer(request: RequestRecord) -> Behaviour:
    """The demo's model, with a little time and plausible numbers of tokens; sometimes it asks for an order twice."""
    reply = demo_model.answer(request)
    if not isinstance(reply, Reply):
        return reply
    usage = (len(json.dumps(request.messages)) // 4, random.randint(15, 60))
    if "is placed" in reply.text and random.random() < AGAIN:
        customer = demo_model.asked_for(request).rpartition(" ")[2].rstrip(".")
        reply = Reply(tool_calls=[("place_order", {"customer": customer, "item": "lamp"})])
    return replace(reply, delay_s=random.uniform(0.05, 0.4), usage=usage)


def until_ready(process: subprocess.Popen[str]) -> str:
    """The line that says so; whatever the process says later is read and forgotten."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("ready "):
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return line
    raise SystemExit("The worker or the monitor did not get ready.")


def start_worker(stack: ExitStack, env: dict[str, str]) -> psutil.Process:
    """A supervised worker; returns the supervisor."""
    process = stack.enter_context(start_supervisor(("runs", "cleanup"), env, stderr=subprocess.PIPE))
    stack.callback(process.terminate)
    until_ready(process)
    return psutil.Process(process.pid)


def start_monitor(stack: ExitStack, env: dict[str, str]) -> str:
    """`makegood monitor`; returns its host and port."""
    command = [sys.executable, "-m", "makegood", "monitor", "--port", "0"]
    process = stack.enter_context(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
    stack.callback(process.terminate)
    return until_ready(process).split("//")[1].split("/")[0]


def start_prometheus(stack: ExitStack, folder: Path, monitor: str) -> str:
    """The system's Prometheus, in a folder of its own; returns its address."""
    port = free_port()
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "makegood", "static_configs": [{"targets": [monitor]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    process = stack.enter_context(subprocess.Popen(command))
    stack.callback(process.terminate)
    return f"http://127.0.0.1:{port}"


def main() -> int:
    """Parse the options, start everything, play, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(EmbeddedServer(ephemeral=True))
        shop = stack.enter_context(Shop())
        model = stack.enter_context(Provider(answer))
        env = environment(server.url, shop.url, model.url)
        env |= {"MAKEGOOD_LEASE_S": "5", "MAKEGOOD_PROCESSES": "2"}
        worker = start_worker(stack, env)
        prometheus = start_prometheus(stack, folder, start_monitor(stack, env))
        print(f"Prometheus: {prometheus}", flush=True)
        client = stack.enter_context(Client(server.url, broker_url=server.url))
        time.sleep(3 * SCRAPE_S)  # the zeros that every counter begins with have been seen
        Traffic(client, shop, worker, env).play(options.minutes if options.picture else 10**6)
        if options.picture:
            dashboard_picture.draw(prometheus, options.minutes, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
