"""Jobs as the client of Dataflow submits them: its own code, against a stand-in of the jobs API."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from apache_beam.portability.api import beam_runner_api_pb2

from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from tests.pipelines.conftest import corpus, tokenizer
from tests.stores.servers import BUCKET, Server, fake_gcs_server
from tests.templates.test_dataflow import ROOT, TEMPLATES, launched

__all__ = ["corpus", "tokenizer"]

pytestmark = pytest.mark.dataflow

IMAGE = "images.example/forebay:1"
BATCH, STREAMING = 1, 2
"""How the jobs API numbers kinds of jobs."""


@dataclass
class Jobs:
    """A stand-in of the jobs API.

    Attributes:
        port: where it listens.
        requests: (method, path, body) of each that came.
    """

    port: int
    requests: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(size) or b"{}")
            there.requests.append((self.command, self.path.partition("?")[0], body))
            job = {"id": "job-1", "projectId": "p", "name": body.get("name", ""), "location": "r"}
            answer = json.dumps({**job, "currentState": "JOB_STATE_PENDING"}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_PUT = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    there = Jobs(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield there
    server.shutdown()
    server.server_close()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    folder = tmp_path / "store"
    folder.mkdir()
    with fake_gcs_server(folder) as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        yield server


@dataclass(frozen=True)
class Submitted:
    """A job as the API got it, and its pipeline as it was staged."""

    job: dict[str, Any]
    pipeline: beam_runner_api_pb2.Pipeline
    staged: set[str]

    @property
    def steps(self) -> list[str]:
        names = [t.unique_name for t in self.pipeline.components.transforms.values()]
        assert len(set(names)) == len(names)
        return sorted(n for n in names if n.count("/") <= 1 and not n.startswith("ref_"))


def submit(
    kind: str, parameters: dict[str, str], jobs: Jobs, store: Server, tmp_path: Path, **more: str
) -> None:
    engine = {
        "runner": "DataflowRunner",
        "project": "p",
        "region": "r",
        "job_name": f"forebay-{kind}",
        "staging_location": f"gs://{BUCKET}/staging",
        "temp_location": f"gs://{BUCKET}/tmp",
        "dataflow_endpoint": f"http://localhost:{jobs.port}",
        **more,
    }
    done = launched(
        sys.executable,
        kind,
        {**parameters, **engine},
        tmp_path / "elsewhere",
        "--no_auth",
        PYTHONPATH=str(ROOT),
        FOREBAY_IMAGE=IMAGE,
        **store.variables,
    )
    assert done.returncode == 0, done.stderr


def what_came(jobs: Jobs, store: Server) -> Submitted:
    """The one request: whoever waits for a job would ask for it again and again."""
    ((method, path, job),) = jobs.requests
    assert (method, path) == ("POST", "/v1b3/projects/p/locations/r/jobs")
    url = job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]
    folder = (store.folder / url.removeprefix("gs://")).parent
    pipeline = beam_runner_api_pb2.Pipeline.FromString((folder / "pipeline.pb").read_bytes())
    return Submitted(job, pipeline, {path.name for path in folder.iterdir()})


def test_a_build_is_one_job_in_the_image_of_its_launcher(
    jobs: Jobs, store: Server, corpus: Path, tokenizer: str, tmp_path: Path
) -> None:
    cache = f"gs://{BUCKET}/cache"
    parameters = {"inputs": str(corpus), "tokenizer": tokenizer, "to": cache, "order": "shuffle(7)",
                  "split_bytes": "16K"}  # fmt: skip
    more = {"max_num_workers": "7", "worker_machine_type": "n2-standard-4", "experiments": "x=1"}
    submit("batch", parameters, jobs, store, tmp_path, **more)
    found = what_came(jobs, store)
    job, environment = found.job, found.job["environment"]
    assert (job["name"], job["type"]) == ("forebay-batch", BATCH)
    assert {"x=1", "use_runner_v2"} <= set(environment["experiments"])
    (pool,) = environment["workerPools"]
    assert pool["workerHarnessContainerImage"] == IMAGE
    assert [each["containerImage"] for each in pool["sdkHarnessContainerImages"]] == [IMAGE]
    assert pool["autoscalingSettings"]["maxNumWorkers"] == 7
    assert pool["machineType"] == "n2-standard-4"
    assert found.staged == {"pipeline.pb", "submission_environment_dependencies.txt"}
    for each in found.pipeline.components.environments.values():
        assert IMAGE.encode() in each.payload
    steps = ["Waves", "WriteShards", "MergeShards", "CommitShards"]
    passes = ["Runs", "MergeRanges", "CommitRanges"]
    assert found.steps == sorted(
        [
            "Cache", "Cache/Plan", "Cache/Conclude",
            *(f"Cache/{step} {branch:02d}" for step in steps for branch in range(3)),
            *(f"Cache/{step} {number}" for step in passes for number in range(2)),
        ]
    )  # fmt: skip
    there = Storage.at(cache)
    assert there.list("_plans/")
    assert there.list("tokenizer/")
    assert Ledger(there).head() is None  # workers are to commit


def test_a_stream_is_a_streaming_job(
    jobs: Jobs, store: Server, corpus: Path, tokenizer: str, tmp_path: Path
) -> None:
    parameters = {"inputs": str(corpus), "tokenizer": tokenizer, "to": f"gs://{BUCKET}/cache",
                  "every": "5"}  # fmt: skip
    submit("streaming", parameters, jobs, store, tmp_path)
    found = what_came(jobs, store)
    assert found.job["type"] == STREAMING
    options = found.job["environment"]["sdkPipelineOptions"]["options"]
    assert options["streaming"] is True
    assert options["enable_streaming_engine"] is True
    assert {"Looks", "FindFiles", "StreamShards", "CommitStream"} <= set(found.steps)


def test_a_job_may_be_written_to_a_file_as_launchers_of_templates_do(
    jobs: Jobs, store: Server, corpus: Path, tokenizer: str, tmp_path: Path
) -> None:
    parameters = {"inputs": str(corpus), "tokenizer": tokenizer, "to": f"gs://{BUCKET}/cache"}
    place = f"gs://{BUCKET}/launch/job.json"
    submit("batch", parameters, jobs, store, tmp_path, template_location=place)
    assert not jobs.requests
    job = json.loads((store.folder / BUCKET / "launch" / "job.json").read_bytes())
    (pool,) = job["environment"]["workerPools"]
    assert pool["workerHarnessContainerImage"] == IMAGE


@pytest.mark.parametrize("kind", ["batch", "streaming"])
def test_metadata_has_the_schema_of_the_api(kind: str) -> None:
    from google.cloud.dataflow_v1beta3.types import TemplateMetadata

    text = (TEMPLATES / kind / "metadata.json").read_text("utf-8")
    parsed = TemplateMetadata.from_json(text)  # raises for fields that it does not know
    assert [each.name for each in parsed.parameters]
    assert all(each.label and each.help_text for each in parsed.parameters)
    assert {each.param_type.name for each in parsed.parameters} == {"TEXT"}
