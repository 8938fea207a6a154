"""Kafka's broker settings that have no effect here: accepted, checked, stored and shown, so that files and programs
written for Kafka work unchanged.

Together the tables have all settings of Kafka 3.9.1. Names, types, defaults, ranges, and whether a setting is dynamic,
are Kafka's. Each text begins with "Without effect" and gives the reason.
"""

from typing import Final

from .broker_settings import BOOLEAN, DOUBLE, INT, LIST, LONG, NEVER, SHORT, STRING
from .settings import INT_MAX, WITHOUT_EFFECT, Choice, Range, Setting, Shape, Type, table

CLASS, PASSWORD = Type.CLASS, Type.PASSWORD
RELEASE_DIGITS_MAX = 4
CODE = "no Java classes are loaded"
KRAFT = "there is no KRaft: brokers use ZooKeeper or an embedded store"
KERBEROS = "Kerberos is not supported"
REFRESHED = "the times at which a broker refreshes its token are fixed"
TIERED = "there is no tiered storage"
NEXT_GROUPS = "the consumer group protocol of KIP-848 is not supported"
SHARED = "share groups are not supported"
METRICS = "metrics are served at metrics.listener"
WINDOWS = "the window of quotas is fixed"
PURGATORIES = "there are no purgatories for waiting requests"
BETWEEN_BROKERS = "timeouts and buffers of connections between brokers are fixed"
OPENSSL = "TLS uses OpenSSL"


def _check_release(text: str) -> None:
    """Check that a text is a Kafka release, like 3.9 or 3.9-IV0. Raises ValueError."""
    number, dash, step = text.partition("-")
    parts = number.split(".")
    if not 2 <= len(parts) <= RELEASE_DIGITS_MAX or not all(part.isascii() and part.isdecimal() for part in parts):
        raise ValueError(text)
    if dash and not (step.startswith("IV") and step[2:].isdecimal()):
        raise ValueError(text)


RELEASE: Final = Shape("a Kafka release, like 3.9 or 3.9-IV0", _check_release)


def _at_start(name: str, kind: Type, default: str | None, valid: Range | Choice | Shape | None = None) -> Setting:
    return Setting(name, kind, default, "", valid)


def _running(name: str, kind: Type, default: str | None, valid: Range | Choice | Shape | None = None) -> Setting:
    return Setting(name, kind, default, "", valid, dynamic=True)


def _since(why: str, *settings: Setting) -> dict[str, Setting]:
    """Settings that have no effect for one reason."""
    return table(*(setting._replace(doc=f"{WITHOUT_EFFECT}: {why}.") for setting in settings))


NO_EFFECT: Final[dict[str, Setting]] = {
    **_since(
        CODE,
        _at_start("alter.config.policy.class.name", CLASS, None),
        _at_start("client.quota.callback.class", CLASS, None),
        _at_start("create.topic.policy.class.name", CLASS, None),
        _running(
            "principal.builder.class",
            CLASS,
            "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        ),
        _at_start("sasl.client.callback.handler.class", CLASS, None),
        _at_start("sasl.login.callback.handler.class", CLASS, None),
        _at_start("sasl.login.class", CLASS, None),
        _at_start("sasl.server.callback.handler.class", CLASS, None),
        _at_start("security.providers", STRING, None),
        _running("ssl.engine.factory.class", CLASS, None),
    ),
    **_since(
        KRAFT,
        _at_start("broker.heartbeat.interval.ms", INT, "2000"),
        _at_start("broker.session.timeout.ms", INT, "9000"),
        _at_start("controller.listener.names", STRING, None),
        _at_start("controller.quorum.append.linger.ms", INT, "25"),
        _at_start("controller.quorum.bootstrap.servers", LIST, ""),
        _at_start("controller.quorum.election.backoff.max.ms", INT, "1000"),
        _at_start("controller.quorum.election.timeout.ms", INT, "1000"),
        _at_start("controller.quorum.fetch.timeout.ms", INT, "2000"),
        _at_start("controller.quorum.request.timeout.ms", INT, "2000"),
        _at_start("controller.quorum.retry.backoff.ms", INT, "20"),
        _at_start("controller.quorum.voters", LIST, ""),
        _at_start("early.start.listeners", STRING, None),
        _at_start("eligible.leader.replicas.enable", BOOLEAN, "false"),
        _at_start("initial.broker.registration.timeout.ms", INT, "60000"),
        _at_start("log.dir.failure.timeout.ms", LONG, "30000", Range(1)),
        _at_start("max.request.partition.size.limit", INT, "2000", Range(1)),
        _at_start("metadata.log.dir", STRING, None),
        _at_start("metadata.log.max.record.bytes.between.snapshots", LONG, "20971520", Range(1)),
        _at_start("metadata.log.max.snapshot.interval.ms", LONG, "3600000", Range(0)),
        _at_start("metadata.log.segment.bytes", INT, "1073741824", Range(12)),
        _at_start("metadata.log.segment.min.bytes", INT, "8388608", Range(12)),
        _at_start("metadata.log.segment.ms", LONG, "604800000"),
        _at_start("metadata.max.idle.interval.ms", INT, "500", Range(0)),
        _at_start("metadata.max.retention.bytes", LONG, "104857600"),
        _at_start("metadata.max.retention.ms", LONG, "604800000"),
        _at_start("process.roles", LIST, "", Choice(("broker", "controller"))),
        _at_start("sasl.mechanism.controller.protocol", STRING, "GSSAPI"),
        _at_start("server.max.startup.time.ms", LONG, NEVER, Range(0)),
        _at_start("unclean.leader.election.interval.ms", LONG, "300000", Range(1)),
        _at_start("unstable.feature.versions.enable", BOOLEAN, "false"),
        _at_start("zookeeper.metadata.migration.enable", BOOLEAN, "false"),
        _at_start("zookeeper.metadata.migration.min.batch.size", INT, "200", Range(1)),
    ),
    **_since(
        KERBEROS,
        _running("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit"),
        _running("sasl.kerberos.min.time.before.relogin", LONG, "60000"),
        _running("sasl.kerberos.principal.to.local.rules", LIST, "DEFAULT"),
        _running("sasl.kerberos.service.name", STRING, None),
        _running("sasl.kerberos.ticket.renew.jitter", DOUBLE, "0.05"),
        _running("sasl.kerberos.ticket.renew.window.factor", DOUBLE, "0.8"),
    ),
    **_since(
        REFRESHED,
        _at_start("sasl.login.connect.timeout.ms", INT, None),
        _at_start("sasl.login.read.timeout.ms", INT, None),
        _running("sasl.login.refresh.buffer.seconds", SHORT, "300"),
        _running("sasl.login.refresh.min.period.seconds", SHORT, "60"),
        _running("sasl.login.refresh.window.factor", DOUBLE, "0.8"),
        _running("sasl.login.refresh.window.jitter", DOUBLE, "0.05"),
        _at_start("sasl.login.retry.backoff.max.ms", LONG, "10000"),
        _at_start("sasl.login.retry.backoff.ms", LONG, "100"),
    ),
    **_since(
        "set the login module for a listener and a mechanism, as in listener.name.clients.plain.sasl.jaas.config",
        _running("sasl.jaas.config", PASSWORD, None),
    ),
    **_since(
        OPENSSL,
        _running("ssl.keymanager.algorithm", STRING, "SunX509"),
        _running("ssl.protocol", STRING, "TLSv1.3"),
        _running("ssl.provider", STRING, None),
        _running("ssl.secure.random.implementation", STRING, None),
        _running("ssl.trustmanager.algorithm", STRING, "PKIX"),
    ),
    **_since(
        "a running broker accepts new certificates with any names",
        _at_start("ssl.allow.dn.changes", BOOLEAN, "false"),
        _at_start("ssl.allow.san.changes", BOOLEAN, "false"),
    ),
    **_since(
        TIERED,
        _running("log.local.retention.bytes", LONG, "-2", Range(-2)),
        _running("log.local.retention.ms", LONG, "-2", Range(-2)),
        _running("remote.fetch.max.wait.ms", INT, "500", Range(1)),
        _running("remote.log.index.file.cache.total.size.bytes", LONG, "1073741824", Range(1)),
        _at_start("remote.log.manager.copier.thread.pool.size", INT, "-1", Range(1, also=-1)),
        _running("remote.log.manager.copy.max.bytes.per.second", LONG, NEVER, Range(1)),
        _at_start("remote.log.manager.copy.quota.window.num", INT, "11", Range(1)),
        _at_start("remote.log.manager.copy.quota.window.size.seconds", INT, "1", Range(1)),
        _at_start("remote.log.manager.expiration.thread.pool.size", INT, "-1", Range(1, also=-1)),
        _running("remote.log.manager.fetch.max.bytes.per.second", LONG, NEVER, Range(1)),
        _at_start("remote.log.manager.fetch.quota.window.num", INT, "11", Range(1)),
        _at_start("remote.log.manager.fetch.quota.window.size.seconds", INT, "1", Range(1)),
        _at_start("remote.log.manager.task.interval.ms", LONG, "30000", Range(1)),
        _at_start("remote.log.manager.task.retry.backoff.max.ms", LONG, "30000", Range(1)),
        _at_start("remote.log.manager.task.retry.backoff.ms", LONG, "500", Range(1)),
        _at_start("remote.log.manager.task.retry.jitter", DOUBLE, "0.2", Range(0, 0.5)),
        _at_start("remote.log.manager.thread.pool.size", INT, "10", Range(1)),
        _at_start("remote.log.metadata.custom.metadata.max.bytes", INT, "128", Range(0)),
        _at_start(
            "remote.log.metadata.manager.class.name",
            STRING,
            "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
        ),
        _at_start("remote.log.metadata.manager.class.path", STRING, None),
        _at_start("remote.log.metadata.manager.impl.prefix", STRING, "rlmm.config."),
        _at_start("remote.log.metadata.manager.listener.name", STRING, None),
        _at_start("remote.log.reader.max.pending.tasks", INT, "100", Range(1)),
        _at_start("remote.log.reader.threads", INT, "10", Range(1)),
        _at_start("remote.log.storage.manager.class.name", STRING, None),
        _at_start("remote.log.storage.manager.class.path", STRING, None),
        _at_start("remote.log.storage.manager.impl.prefix", STRING, "rsm.config."),
        _at_start("remote.log.storage.system.enable", BOOLEAN, "false"),
    ),
    **_since(
        NEXT_GROUPS,
        _at_start(
            "group.consumer.assignors",
            LIST,
            "org.apache.kafka.coordinator.group.assignor.UniformAssignor,"
            "org.apache.kafka.coordinator.group.assignor.RangeAssignor",
        ),
        _at_start("group.consumer.heartbeat.interval.ms", INT, "5000", Range(1)),
        _at_start("group.consumer.max.heartbeat.interval.ms", INT, "15000", Range(1)),
        _at_start("group.consumer.max.session.timeout.ms", INT, "60000", Range(1)),
        _at_start("group.consumer.max.size", INT, str(INT_MAX), Range(1)),
        _at_start("group.consumer.migration.policy", STRING, "disabled"),
        _at_start("group.consumer.min.heartbeat.interval.ms", INT, "5000", Range(1)),
        _at_start("group.consumer.min.session.timeout.ms", INT, "45000", Range(1)),
        _at_start("group.consumer.session.timeout.ms", INT, "45000", Range(1)),
        _at_start("group.coordinator.append.linger.ms", INT, "10", Range(0)),
        _at_start("group.coordinator.new.enable", BOOLEAN, "false"),
        _at_start(
            "group.coordinator.rebalance.protocols",
            LIST,
            "classic",
            Choice(("classic", "consumer", "share", "unknown")),
        ),
        _at_start("group.coordinator.threads", INT, "1", Range(1)),
    ),
    **_since(
        SHARED,
        _at_start("group.share.delivery.count.limit", INT, "5", Range(2, 10)),
        _at_start("group.share.enable", BOOLEAN, "false"),
        _at_start("group.share.heartbeat.interval.ms", INT, "5000", Range(1)),
        _at_start("group.share.max.groups", SHORT, "10", Range(1, 100)),
        _at_start("group.share.max.heartbeat.interval.ms", INT, "15000", Range(1)),
        _at_start("group.share.max.record.lock.duration.ms", INT, "60000", Range(30000, 3600000)),
        _at_start("group.share.max.session.timeout.ms", INT, "60000", Range(1)),
        _at_start("group.share.max.size", SHORT, "200", Range(10, 1000)),
        _at_start("group.share.min.heartbeat.interval.ms", INT, "5000", Range(1)),
        _at_start("group.share.min.record.lock.duration.ms", INT, "15000", Range(1000, 30000)),
        _at_start("group.share.min.session.timeout.ms", INT, "45000", Range(1)),
        _at_start("group.share.partition.max.record.locks", INT, "200", Range(100, 10000)),
        _at_start("group.share.record.lock.duration.ms", INT, "30000", Range(1000, 60000)),
        _at_start("group.share.session.timeout.ms", INT, "45000", Range(1)),
    ),
    **_since(
        METRICS,
        _at_start("auto.include.jmx.reporter", BOOLEAN, "true"),
        _at_start("kafka.metrics.polling.interval.secs", INT, "10", Range(1)),
        _at_start("kafka.metrics.reporters", LIST, ""),
        _running("metric.reporters", LIST, ""),
        _at_start("metrics.num.samples", INT, "2", Range(1)),
        _at_start("metrics.recording.level", STRING, "INFO"),
        _at_start("metrics.sample.window.ms", LONG, "30000", Range(1)),
        _at_start("telemetry.max.bytes", INT, "1048576", Range(1)),
    ),
    **_since(
        WINDOWS,
        _at_start("controller.quota.window.num", INT, "11", Range(1)),
        _at_start("controller.quota.window.size.seconds", INT, "1", Range(1)),
        _at_start("quota.window.num", INT, "11", Range(1)),
        _at_start("quota.window.size.seconds", INT, "1", Range(1)),
        _at_start("replication.quota.window.num", INT, "11", Range(1)),
        _at_start("replication.quota.window.size.seconds", INT, "1", Range(1)),
    ),
    **_since(
        PURGATORIES,
        _at_start("delete.records.purgatory.purge.interval.requests", INT, "1"),
        _at_start("fetch.purgatory.purge.interval.requests", INT, "1000"),
        _at_start("producer.purgatory.purge.interval.requests", INT, "1000"),
    ),
    **_since(
        BETWEEN_BROKERS,
        _at_start("controller.socket.timeout.ms", INT, "30000"),
        _at_start("replica.socket.receive.buffer.bytes", INT, "65536"),
        _at_start("replica.socket.timeout.ms", INT, "30000"),
        _at_start("request.timeout.ms", INT, "30000"),
        _at_start("socket.connection.setup.timeout.max.ms", LONG, "30000"),
        _at_start("socket.connection.setup.timeout.ms", LONG, "10000"),
    ),
    **_since(
        "the rate at which replicas are moved between log dirs has no window",
        _at_start("alter.log.dirs.replication.quota.window.num", INT, "11", Range(1)),
        _at_start("alter.log.dirs.replication.quota.window.size.seconds", INT, "1", Range(1)),
    ),
    **_since(
        "compaction has one buffer, log.cleaner.dedupe.buffer.size",
        _running("log.cleaner.io.buffer.load.factor", DOUBLE, "0.9"),
        _running("log.cleaner.io.buffer.size", INT, "524288", Range(0)),
    ),
    **_since(
        "the broker always preallocates space, without changing the size of the file",
        _running("log.preallocate", BOOLEAN, "false"),
    ),
    **_since(
        "the format on disk is always record batch v2",
        _at_start("log.message.format.version", STRING, "3.0-IV1", RELEASE),
    ),
    **_since(
        "the broker does not serve clients that need an older record format",
        _running("log.message.downconversion.enable", BOOLEAN, "true"),
    ),
    **_since(
        "brokers use the versions that all of them support",
        _at_start("inter.broker.protocol.version", STRING, "3.9-IV0", RELEASE),
        _at_start("unstable.api.versions.enable", BOOLEAN, "false"),
    ),
    **_since("background tasks start with the broker", _at_start("log.initial.task.delay.ms", LONG, "30000", Range(0))),
    **_since(
        "the controller uses the listener of inter.broker.listener.name",
        _at_start("control.plane.listener.name", STRING, None),
    ),
    **_since(
        "a broker without an id always gets one above 1000",
        _at_start("broker.id.generation.enable", BOOLEAN, "true"),
        _at_start("reserved.broker.max.id", INT, "1000", Range(0)),
    ),
    **_since(
        "an offset commit waits for all in-sync replicas",
        _at_start("offsets.commit.required.acks", SHORT, "-1"),
    ),
    **_since(
        "requests to ZooKeeper are not limited",
        _at_start("zookeeper.max.in.flight.requests", INT, "10", Range(1)),
    ),
}
