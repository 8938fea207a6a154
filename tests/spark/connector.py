"""Spark's own connector, format "kafka", from its published jars: the peer of the source and the sink."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import tempfile
from pathlib import Path

from tests.harness import ROOT

CONNECTOR = ROOT / "build" / "peers" / "spark-kafka"
ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.1.1"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
MAVEN_S_MAX = 300


def connector_jars() -> list[Path]:
    """The connector's jars; an empty list if Maven cannot download them."""
    CONNECTOR.parent.mkdir(parents=True, exist_ok=True)
    with (CONNECTOR.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # pytest-xdist's workers start at the same time
        if not CONNECTOR.exists():
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                _fetch()
    return sorted(CONNECTOR.glob("*.jar"))


def _fetch() -> None:
    """Download each artifact with Maven, without dependencies: PySpark's jars have these."""
    blank = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    wanted = "".join(blank.format(*artifact, alone) for artifact in ARTIFACTS)
    project = '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    project += "<groupId>pybroker.tests</groupId><artifactId>peer</artifactId><version>1</version>"
    with tempfile.TemporaryDirectory(dir=CONNECTOR.parent) as scratch:
        Path(scratch, "pom.xml").write_text(f"{project}<dependencies>{wanted}</dependencies></project>")
        copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"]
        subprocess.run(
            copy, cwd=scratch, check=True, capture_output=True, timeout=MAVEN_S_MAX, stdin=subprocess.DEVNULL
        )
        Path(scratch, "libs").rename(CONNECTOR)
