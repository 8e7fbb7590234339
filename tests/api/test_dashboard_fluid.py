"""Many resources and a long trace in Chromium: only what is seen is drawn, and frame times are printed.

RESOURCES=1000 measures a large cluster; creating them takes most of the time.
"""

import os
import sys
import time
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from playwright.async_api import Page, expect

from pavane_operator.kube.resources import NAMESPACES
from tests.api.browser import SHOWN_MS, opened
from tests.api.plane import plane, raft_cluster
from tests.requires import requires

pytestmark = pytest.mark.long  # how fluid the pages are; what they show: test_dashboard*.py

RESOURCES = int(os.environ.get("RESOURCES", "150"))
SPANS = 2000
DRAWN_MAX = 100
"""Rows of either list in the page, far below what there is."""
TRACE = "ab" * 16
SCROLL = """async (selector) => {
    const box = selector ? document.querySelector(selector) : document.scrollingElement;
    const gaps = [];
    let last = performance.now(), drawn = 0;
    for (let step = 1; step <= 60; step += 1) {
        box.scrollTop = (box.scrollHeight - box.clientHeight) * step / 60;
        const now = await new Promise(requestAnimationFrame);
        gaps.push(now - last);
        last = now;
        drawn = Math.max(drawn, document.querySelectorAll("tbody tr, .span").length);
    }
    gaps.sort((a, b) => a - b);
    return {median: gaps[30], p95: gaps[57], slowest: gaps[59], drawn};
}"""
"""Scrolls from the top to the end in sixty frames."""


async def measured(page: Page, what: str, selector: str = "") -> None:
    found = await page.evaluate(SCROLL, selector)
    times = ", ".join(f"{name} {found[name]:.1f} ms" for name in ("median", "p95", "slowest"))
    sys.stdout.write(f"{what}: frames {times}, {found['drawn']} rows drawn at most\n")
    assert found["drawn"] < DRAWN_MAX


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_many_resources_are_scrolled_and_filtered(tmp_path: Path) -> None:
    requires("chromium")
    async with plane(tmp_path) as here:
        await here.kube.create(NAMESPACES, {"metadata": {"name": "many"}})
        for number in range(RESOURCES):
            body = raft_cluster(f"r{number:04}")
            body |= {"apiVersion": "pavane.dev/v1alpha1", "kind": "RaftCluster"}
            body["metadata"]["namespace"] = "many"
            await here.local.cluster.create("raftclusters.pavane.dev", body)
        async with opened(here) as page:
            await expect(page.get_by_text(f"{RESOURCES} in all")).to_be_visible(timeout=SHOWN_MS)
            await measured(page, f"{RESOURCES} resources")
            await expect(page.get_by_role("link", name=f"r{RESOURCES - 1:04}", exact=True)).to_be_visible(
                timeout=SHOWN_MS
            )
            await page.get_by_label("Filter by name or namespace").fill("r0123")
            await expect(page.get_by_role("link", name="r0123", exact=True)).to_be_visible(timeout=SHOWN_MS)
            await expect(page.locator("tbody tr")).to_have_count(1, timeout=SHOWN_MS)


@pytest.mark.timeout(240)
async def test_a_trace_of_two_thousand_spans_is_scrolled(tmp_path: Path) -> None:
    requires("chromium")
    async with plane(tmp_path) as here:
        answer = await here.http.post(
            "/v1/traces", content=large_trace(), headers={"Content-Type": "application/x-protobuf"}
        )
        assert answer.is_success, answer.text
        async with opened(here) as page:
            await page.goto(f"{here.http.base_url}#/traces/{TRACE}")
            await expect(page.get_by_text(f"{SPANS} spans in")).to_be_visible(timeout=SHOWN_MS)
            await measured(page, f"{SPANS} spans", ".waterfall")
            last = page.locator(".span", has_text=f"step {SPANS - 1} ")
            await expect(last).to_be_visible(timeout=SHOWN_MS)
            await last.click()
            await expect(page.get_by_role("region", name="Attributes, table")).to_contain_text("number")
            # Each program calls the next one.
            await expect(page.locator(".graph .name")).to_have_text(["program-0", "program-1", "program-2"])
            calls = page.get_by_role("table", name="Calls between services").get_by_role("row")
            await expect(calls.filter(has_text="program-0 calls program-1")).to_contain_text("calls")
            await expect(calls.filter(has_text="program-1 calls program-2")).to_contain_text("1 failed")


def large_trace() -> bytes:
    """Spans of three programs, each span below one of the program before."""
    request = ExportTraceServiceRequest()
    scopes = []
    for program in range(3):
        of_program = request.resource_spans.add()
        attribute = of_program.resource.attributes.add(key="service.name")
        attribute.value.string_value = f"program-{program}"
        scopes.append(of_program.scope_spans.add())
    begin = time.time_ns() - 10 * SPANS * 1000
    for number in range(SPANS):
        program = number % 3
        span = scopes[program].spans.add(
            trace_id=bytes.fromhex(TRACE),
            span_id=(number + 1).to_bytes(8, "big"),
            parent_span_id=number.to_bytes(8, "big") if program else b"",
            name=f"step {number}",
            kind=1,
            start_time_unix_nano=begin + number * 1000,
            end_time_unix_nano=begin + number * 1000 + 5000,
        )
        span.attributes.add(key="number").value.int_value = number
    scopes[2].spans[0].status.code = Status.STATUS_CODE_ERROR
    scopes[2].spans[0].status.message = "refused"
    return request.SerializeToString()
