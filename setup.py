"""The package definition. Tools are configured in pyproject.toml, pins are in requirements.txt."""

from pathlib import Path

from setuptools import find_packages, setup

READER = ["google-crc32c>=1.5", "numpy>=2.0", "tensorstore>=0.1.80", "zstandard>=0.22"]

EXTRAS = {
    "pipelines": [
        "apache-beam==2.77.*",
        "awkward>=2.6.3",
        "fsspec>=2024.6",
        "gigatoken==0.10.*",  # compared with tokenizers by measurement, release by release
        "grpcio>=1.60",
        "huggingface_hub>=1",
        "numpy<2.5",
        "orjson>=3.10",
        "pyarrow>=20,<26",
        "pydantic>=2.7,<3",
        "pyyaml>=6",
        "tokenizers>=0.23,<0.24",
        "transformers>=5,<6",
    ],
    "gcs": ["gcsfs>=2024.6"],
    "s3": ["s3fs>=2024.6"],
    "dataflow": ["apache-beam[gcp]==2.77.*", "gcsfs>=2024.6"],
    "dask": ["apache-beam[dask]==2.77.*", "distributed"],
    "torch": ["torch>=2.6"],
    "jax": ["jax>=0.5"],
    "test": [
        "dask[distributed]",
        "datasets>=4",
        "hypothesis>=6.100",
        "kubernetes-validate",
        "mypy==2.4.*",
        "packaging",
        "psutil>=5.9",
        "pytest>=8",
        "pytest-xdist>=3.5",
        "ruff==0.17.*",
        "zarr>=3",
    ],
    "test-dataflow": ["hypothesis>=6.100", "packaging", "pytest>=8"],
    "test-torch": ["accelerate>=1", "hypothesis>=6.100", "pytest>=8", "transformers>=5,<6"],
    "test-jax": ["absl-py", "grain>=0.2.10", "hypothesis>=6.100", "jax[cpu]>=0.5", "pytest>=8"],
    "bench": ["psutil>=5.9"],
}

setup(
    name="forebay",
    version="0.1.0",
    description="A training-data cache: Apache Beam fills it, training jobs draw from it",
    long_description=Path(__file__).with_name("README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["cachelib", "cachelib.*", "pipelines", "pipelines.*"]),
    package_data={"cachelib": ["py.typed"], "pipelines": ["py.typed"]},
    install_requires=READER,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["forebay = pipelines.entry:command"]},
)
