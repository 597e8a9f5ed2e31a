"""What templates/flink says, checked against Kubernetes, Flink's and Beam's pins and the code."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import kubernetes_validate
import pytest
from apache_beam import __version__ as BEAM
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    PipelineOptions,
    PortableOptions,
)
from apache_beam.runners.worker import worker_pool_main

from pipelines.config import build_config, growing_config
from tests.flink import templates
from tests.flink.templates import FOLDER, command, containers, objects, read

KUBERNETES = "1.30"

ROOT = FOLDER.parents[1]


def compose() -> dict[str, Any]:
    services: dict[str, Any] = read("compose.yaml")["services"]
    return services


def dockerfile() -> str:
    return (FOLDER / "Dockerfile").read_text("utf-8")


@pytest.mark.parametrize("each", objects(), ids=lambda each: each["kind"])
def test_manifests_are_what_kubernetes_takes(each: dict[str, Any]) -> None:
    named = {**each, "metadata": {"name": "some", **each["metadata"]}}
    kubernetes_validate.validate(named, KUBERNETES, strict=True)


def test_a_misspelt_key_is_found() -> None:
    wrong = {**objects()[0], "specs": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def test_what_pods_name_is_there() -> None:
    kustomization = read("kustomization.yaml")
    maps = {each["name"]: each["files"] for each in kustomization["configMapGenerator"]}
    assert all((FOLDER / file).is_file() for files in maps.values() for file in files)
    assert set(kustomization["resources"]) < set(templates.MANIFESTS)
    claims = {o["metadata"]["name"] for o in objects() if o["kind"] == "PersistentVolumeClaim"}
    for pod in (o["spec"]["template"] for o in objects() if "template" in o["spec"]):
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        for container in pod["spec"]["containers"]:
            mounts = {mount["name"] for mount in container.get("volumeMounts", ())}
            assert mounts <= set(volumes)
        for volume in volumes.values():
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps
            else:
                assert volume["persistentVolumeClaim"]["claimName"] in claims


def test_services_lead_to_pods() -> None:
    pods = [o["spec"]["template"] for o in objects() if "template" in o["spec"]]
    for service in (o for o in objects() if o["kind"] == "Service"):
        (pod,) = (p for p in pods if service["spec"]["selector"] == p["metadata"]["labels"])
        opened = {p["containerPort"] for c in pod["spec"]["containers"] for p in c["ports"]}
        assert {port["port"] for port in service["spec"]["ports"]} <= opened


def test_compose_runs_what_kubernetes_runs() -> None:
    services = compose()
    for name in ("jobmanager", "taskmanager", "worker-pool", "submit", "stream"):
        container, service = containers()[name], services[name]
        assert service["image"] == container["image"], name
        assert service["command"] == container["args"], name
    of_host = {"--job-host=$(POD_IP)": "--job-host=jobserver"}
    assert services["jobserver"]["command"] == [of_host.get(a, a) for a in command("jobserver")]
    assert services["jobserver"]["image"] == containers()["jobserver"]["image"]
    assert services["worker-pool"]["build"]["dockerfile"] == "templates/flink/Dockerfile"


def test_images_are_of_the_pinned_beam_and_of_one_flink() -> None:
    images = {container["image"] for container in containers().values()}
    (flink,) = (image for image in images if image.startswith("flink:"))
    (server,) = (image for image in images if "job_server" in image)
    version = re.fullmatch(r"flink:(\d+\.\d+)\.\d+-java17", flink)
    assert version is not None
    assert server == f"apache/beam_flink_job_server:{BEAM}-flink{version[1]}"
    assert version[1] in FlinkRunnerOptions.PUBLISHED_FLINK_VERSIONS
    pins = (ROOT / "requirements.txt").read_text("utf-8")
    assert f"apache-beam=={BEAM}\n" in pins
    (ours,) = images - {flink, server}
    (released,) = re.findall(r'version="([^"]+)"', (ROOT / "setup.py").read_text("utf-8"))
    assert ours == f"forebay:{released}"
    assert ours in dockerfile()
    assert "-c requirements.txt" in dockerfile()


def test_the_image_copies_what_is_there() -> None:
    for line in re.findall(r"^COPY (.+)$", dockerfile(), re.M):
        assert all((ROOT / name).exists() for name in line.split()[:-1]), line


def test_the_configuration_is_one_of_a_build_and_of_a_stream() -> None:
    values = read("build.yaml")
    build_config(values)
    growing_config(values, "stream")


@pytest.mark.parametrize("container", ["submit", "stream"])
def test_the_engine_is_reached_as_beam_means_it(container: str) -> None:
    assert command(container)[:3] == ["forebay", container, "/etc/forebay/build.yaml"]
    flags = templates.engine(container)
    options = PipelineOptions(flags)
    assert options.get_all_options(drop_default=True).keys() >= {
        flag.partition("=")[0].removeprefix("--") for flag in flags
    }
    portable = options.view_as(PortableOptions)
    opened = [port for each in containers().values() for port in each.get("ports", ())]
    ports = {port["name"]: port["containerPort"] for port in opened}
    assert portable.job_endpoint == f"jobserver:{ports['jobs']}"
    assert portable.environment_type == "EXTERNAL"
    assert portable.environment_config == f"localhost:{ports['pool']}"
    slots = read("conf/config.yaml")["taskmanager.numberOfTaskSlots"]
    assert int(portable.sdk_worker_parallelism) == slots


def test_the_sidecar_starts_a_worker_pool() -> None:
    program, flag, module, *arguments = command("worker-pool")
    assert (program, flag, module) == ("python", "-m", worker_pool_main.__name__)
    said = subprocess.run(
        [sys.executable, "-m", module, *arguments, "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for argument in arguments:
        assert argument.partition("=")[0] in said


def test_make_says_in_one_line_that_it_ran_nothing() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    recipe = re.search(r"^test-flink:.*\n\t@(.+(?:\\\n.+)*)(?<!\\)$", makefile, re.M)
    assert recipe is not None
    script = recipe[1].replace("\\\n", " ").replace("$$", "$").replace("$(PYTEST)", "false")
    shell = ["bash", "-c", script]
    done = subprocess.run(shell, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("test-flink ran nothing: ")
    assert done.stdout.count("\n") == 1
    both = {"FLINK_HOME": "x", "FOREBAY_FLINK_JOB_SERVER_JAR": "x", "PATH": "/usr/bin:/bin"}
    assert subprocess.run(shell, env=both, check=False).returncode == 1
