"""The names of settings that only tune Java's consumer and producer (Apache Kafka 3.9 and 4.1)."""

from typing import Final


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


COMMON: Final = _names(
    """
    auto.include.jmx.reporter client.dns.lookup client.id connections.max.idle.ms default.api.timeout.ms
    enable.metrics.push metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
    metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms receive.buffer.bytes
    reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retry.backoff.max.ms retry.backoff.ms
    sasl.client.callback.handler.class sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
    sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
    sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
    sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
    sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
    sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
    sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
    sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
    sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
    security.providers send.buffer.bytes socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
    ssl.cipher.suites ssl.enabled.protocols ssl.engine.factory.class ssl.keymanager.algorithm ssl.protocol ssl.provider
    ssl.secure.random.implementation ssl.trustmanager.algorithm
    """
)
OF_CONSUMERS: Final = COMMON | _names(
    """
    allow.auto.create.topics auto.commit.interval.ms check.crcs client.rack exclude.internal.topics fetch.max.bytes
    fetch.max.wait.ms fetch.min.bytes group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
    max.poll.interval.ms max.poll.records partition.assignment.strategy session.timeout.ms share.acknowledgement.mode
    """
)
OF_PRODUCERS: Final = COMMON | _names(
    """
    compression.gzip.level compression.lz4.level compression.zstd.level max.block.ms
    max.in.flight.requests.per.connection metadata.max.idle.ms partitioner.adaptive.partitioning.enable
    partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys transaction.timeout.ms
    transaction.two.phase.commit.enable
    """
)
