"""Incidents as OpenTelemetry traces: one trace per incident, one span per phase.

What lives here: the spans and how the environment asks for them.  What never lives here: when an
incident is over (``chronicle``).

The trace has the id that the incident's events carry in their ``traceparent`` header, so whatever
else joins that trace lies beside the phases.  Span ids follow from it: a monitor that starts again
and reads the log again exports the same spans, not others.

Traces are made when the environment asks: ``OTEL_TRACES_EXPORTER`` (``otlp``, ``console``, ``none``), or
an endpoint (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``).  All other
``OTEL_*`` variables are the SDK's.  Needs ``trainmover[otel]``.

Sources: OpenTelemetry specification, environment variables; W3C Trace Context.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainmover.errors import ConfigError
from trainmover.monitor.chronicle import Fact
from trainmover.monitor.incidents import IncidentView, phases_of
from trainmover.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
FACTS_OF_A_SPAN = 128


def tracer_from_environment(environ: Mapping[str, str] | None = None) -> IncidentTracer | None:
    """What the environment asks for; None: no traces.

    Raises:
        ConfigError: it asks for something that is not there; says what to install or to set.
    """
    env = os.environ if environ is None else environ
    asked = env.get("OTEL_TRACES_EXPORTER", "otlp" if any(env.get(name) for name in ENDPOINTS) else "none")
    if asked == "none" or env.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    return IncidentTracer(_exporter(asked, env))


def _exporter(asked: str, env: Mapping[str, str]) -> SpanExporter:
    try:
        if asked == "console":
            from opentelemetry.sdk.trace.export import ConsoleSpanExporter

            return ConsoleSpanExporter()
        if asked == "otlp":
            protocol = env.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or env.get(
                "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
            )
            if protocol != "http/protobuf":
                raise ConfigError(
                    f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; traces are sent as http/protobuf"
                )
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            return OTLPSpanExporter()
    except ImportError:
        raise ConfigError("traces need OpenTelemetry: pip install 'trainmover[otel]'") from None
    raise ConfigError(f"OTEL_TRACES_EXPORTER is {asked!r}; it can be otlp, console or none")


class IncidentTracer:
    """Exports incidents that are over.

    Args:
        exporter: where spans go.
        at_once: export each span when it is made, for tests; else in batches, in the background.
    """

    def __init__(self, exporter: SpanExporter, *, at_once: bool = False) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

        self._ids = _ids()
        attributes: dict[str, Any] = {"service.version": __version__}
        if "OTEL_SERVICE_NAME" not in os.environ and "service.name" not in os.environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        ):
            attributes["service.name"] = "trainmover"
        self._provider = TracerProvider(
            resource=Resource.create(attributes), id_generator=self._ids, shutdown_on_exit=False
        )
        processor = SimpleSpanProcessor(exporter) if at_once else BatchSpanProcessor(exporter)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("trainmover.monitor", __version__)

    def end(self, job: str, incident: IncidentView, facts: Sequence[Fact]) -> None:
        """Export one incident."""
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        if not incident.times:
            return
        start, last = min(incident.times.values()), max(incident.times.values())
        self._ids.trace = trace_id(job, incident.id)
        self._ids.span = span_id(job, incident.id, "incident")
        attributes = {
            "trainmover.job": job,
            "trainmover.incident": incident.id,
            "trainmover.kind": incident.kind,
            "trainmover.leaver": incident.machine,
            "trainmover.joiner": incident.joiner,
            "trainmover.epoch": incident.epoch,
            "trainmover.step": incident.step,
            "trainmover.attempts": incident.attempts,
            "trainmover.restart": incident.restart,
            "trainmover.cause": incident.cause,
        }
        root = self._tracer.start_span(
            f"{incident.kind} of {incident.machine}",
            start_time=_nanoseconds(start),
            attributes={name: value for name, value in attributes.items() if value not in (None, "")},
        )
        for fact in facts[-FACTS_OF_A_SPAN:]:
            root.add_event(
                fact.type, {"text": fact.text, "source": fact.source}, timestamp=_nanoseconds(fact.time)
            )
        if incident.state == "refused":
            root.set_status(Status(StatusCode.ERROR, incident.held))
        context = set_span_in_context(root)
        for phase in phases_of(incident):
            self._ids.span = span_id(job, incident.id, phase.name)
            span = self._tracer.start_span(phase.name, context=context, start_time=_nanoseconds(phase.start))
            span.end(_nanoseconds(phase.end))
        root.end(_nanoseconds(last))

    def close(self) -> None:
        """Send what waits; blocks for as long as the exporter's own limits allow."""
        self._provider.shutdown()


def trace_id(job: str, incident: str) -> int:
    """The trace of an incident, as ``Envelope.traceparent`` has it."""
    return int(hashlib.sha256(f"{job}/{incident}".encode()).hexdigest()[:32], 16)


def span_id(job: str, incident: str, name: str) -> int:
    """A span of an incident; always the same."""
    return int(hashlib.sha256(f"{job}/{incident}/{name}".encode()).hexdigest()[:16], 16)


def _ids() -> Any:
    """A generator of ids that gives out what it was told."""
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class Told(IdGenerator):
        trace = 1
        span = 1

        def generate_trace_id(self) -> int:
            return self.trace

        def generate_span_id(self) -> int:
            return self.span

    return Told()


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
