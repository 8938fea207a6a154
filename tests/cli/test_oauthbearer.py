"""Commands that log in with a token: from a file, or from an endpoint with a secret from a file or the environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import run
from tests.cli.system.test_users import config
from tests.clients.system.test_oauthbearer import MODULE, SIGNER, Issuer, settings
from tests.harness import HOST, BrokerProcess, free_port
from tests.tokens import jwks

HOW = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a listener that accepts tokens of SIGNER."""
    directory = tmp_path_factory.mktemp("secured")
    keys = directory / "keys.json"
    keys.write_bytes(jwks(SIGNER))
    port, clients = free_port(), free_port()
    broker = BrokerProcess(directory / "data", port, settings(port, clients, keys))
    broker.start()
    yield f"{HOST}:{clients}"
    broker.close()


def test_a_token_in_a_file(clients: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(SIGNER.token())
    file = config(tmp_path / "c", f"{HOW}sasl.oauthbearer.token.endpoint.url={token.as_uri()}\n")
    file.chmod(0o644)  # it has no secret
    where = ["-b", clients, "--command-config", file]
    assert run("topics", "create", "seasons", *where).code == 0
    assert run("produce", "seasons", *where, stdin="spring\n").code == 0
    assert run("consume", "seasons", "--from-beginning", "--exit-at-end", *where).out == "spring\n"
    token.write_text(SIGNER.token(lives_s=-100))
    done = run("topics", "list", *where)
    assert done.code == 1 and done.sentence.endswith("it did not accept the token; the reason is in the broker's log")


def test_a_token_of_an_endpoint(clients: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = Issuer()
    with issuer.web:
        at = f"{HOW}sasl.oauthbearer.token.endpoint.url={issuer.url}\n"
        login = f'sasl.jaas.config={MODULE} required clientId="svc" clientSecret="of svc" scope="x";\n'
        file = config(tmp_path / "c", at + login)
        where = ["-b", clients, "--command-config", file]
        done = run("topics", "list", *where)
        assert done.code == 0, done.err
        file.chmod(0o644)
        assert "chmod 600" in run("topics", "list", *where).sentence
        config(file, f"{at}sasl.oauthbearer.client.credentials.client.id=svc\n")
        assert "client.secret is not given" in run("topics", "list", *where).sentence
        monkeypatch.setenv("PYBROKER_SASL_PASSWORD", "of svc")
        assert run("topics", "list", *where).code == 0
        monkeypatch.setenv("PYBROKER_SASL_PASSWORD", "a guess")
        done = run("topics", "list", *where)
        assert done.code == 1 and "status 401" in done.sentence and "guess" not in done.err
