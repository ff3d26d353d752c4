"""Incidents as OpenTelemetry traces, in memory and to a receiver that speaks OTLP."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from trainmover.errors import ConfigError
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.monitor.chronicle import Chronicle
from trainmover.monitor.traces import IncidentTracer, tracer_from_environment


def tell(story, tracer: IncidentTracer) -> None:
    chronicle = Chronicle()
    chronicle.on_end.append(lambda incident, facts: tracer.end("job", incident, facts))
    for envelope in story.envelopes:
        chronicle.apply(envelope)


def spans_of(story):
    exporter = InMemorySpanExporter()
    tracer = IncidentTracer(exporter, at_once=True)
    tell(story, tracer)
    spans = exporter.get_finished_spans()
    tracer.close()
    return spans


def test_an_incident_is_one_trace_with_a_span_for_each_phase(story) -> None:
    """The phases follow one another inside the incident, which carries what is known of it."""
    story.kill()
    *phases, root = spans_of(story)
    assert root.name == "failure of m1"
    assert root.attributes["trainmover.joiner"] == "m2"
    assert root.attributes["trainmover.step"] == 4
    assert [event.name for event in root.events] == ["machine.failed", "standby.assigned"]
    assert [span.name for span in phases] == [
        "detect", "assign", "plan", "ask", "prepare", "switch and copy", "commit", "first step",
    ]  # fmt: skip
    assert {span.parent.span_id for span in phases} == {root.context.span_id}
    assert {span.context.trace_id for span in phases} == {root.context.trace_id}
    assert phases[0].start_time == root.start_time
    assert phases[-1].end_time == root.end_time
    assert root.end_time - root.start_time == 1_400_000_000
    assert all(before.end_time == after.start_time for before, after in pairwise(phases))


def test_the_trace_is_the_one_that_the_events_carry(story) -> None:
    """The id is that of the traceparent header of the incident's events; exported again it is the same."""
    story.kill()
    event = say.MachineFailed(machine="m1", incarnation="a", reason="")
    envelope = Envelope(id="x", source="s", time=1.0, job="job", event=event, incident="inc-1")
    first, second = spans_of(story), spans_of(story)
    assert f"{first[-1].context.trace_id:032x}" == envelope.traceparent.split("-")[1]
    assert [span.context.span_id for span in first] == [span.context.span_id for span in second]
    assert len({span.context.span_id for span in first}) == len(first)


def test_a_refused_move_is_an_error(story) -> None:
    """It says why."""
    story.tell(7.0, say.MoveRefused(machine="m0", incident="inc-2", reason="no standby"), "inc-2")
    (root,) = spans_of(story)
    assert not root.status.is_ok
    assert root.status.description == "no standby"


def test_the_environment_decides() -> None:
    """Without a word of it nothing is sent; what cannot be is refused in one sentence."""
    assert tracer_from_environment({}) is None
    assert tracer_from_environment({"OTEL_TRACES_EXPORTER": "none"}) is None
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert tracer_from_environment(endpoint | {"OTEL_SDK_DISABLED": "true"}) is None
    with pytest.raises(ConfigError, match="'zipkin'; it can be otlp, console or none"):
        tracer_from_environment({"OTEL_TRACES_EXPORTER": "zipkin"})
    with pytest.raises(ConfigError, match="http/protobuf"):
        tracer_from_environment(endpoint | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


class Receiver(BaseHTTPRequestHandler):
    """Keeps what is posted to it."""

    got: list[tuple[str, ExportTraceServiceRequest]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.got.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        return


def test_a_receiver_gets_it_over_otlp(story, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the standard variables the spans arrive, with the resource that they name."""
    story.kill()
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "our-training")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=lab")
        tracer = tracer_from_environment()
        assert tracer is not None
        tell(story, tracer)
        tracer.close()
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
    ((path, request),) = Receiver.got
    assert path == "/v1/traces"
    (resource,) = request.resource_spans
    attributes = {item.key: item.value.string_value for item in resource.resource.attributes}
    assert attributes["service.name"] == "our-training"
    assert attributes["deployment.environment"] == "lab"
    names = [span.name for scope in resource.scope_spans for span in scope.spans]
    assert names[-1] == "failure of m1"
    assert len(names) == 9
