"""The topic configs that core acts on: their defaults, and setting them on a log."""

from libc.stdint cimport int64_t

from pybroker.core.base.atomic cimport poke_i64
from pybroker.core.storage.log.log cimport log_t

DEFAULTS = {
    "segment.bytes": 1 << 30, "segment.ms": 604800000, "segment.jitter.ms": 0, "segment.index.bytes": 10 << 20,
    "index.interval.bytes": 4096, "retention.ms": 604800000, "retention.bytes": -1, "max.message.bytes": 1048588,
    "message.timestamp.type": 0, "file.delete.delay.ms": 60000, "producer.id.expiration.ms": 86400000,
    "cleanup.policy": 1, "flush.messages": (1 << 63) - 1,
}  # fmt: skip


cdef int64_t setting(object config, str name) except? -3:
    value = config.get(name)
    return <int64_t>(DEFAULTS[name] if value is None else value)


cdef int read_settings(log_t* l, object config) except -1:
    """Set the topic configs that core acts on. Each takes effect at once and by itself, as threads read them without a
    lock."""
    poke_i64(&l.settings.segment_bytes, setting(config, "segment.bytes"))
    poke_i64(&l.settings.segment_ms, setting(config, "segment.ms"))
    poke_i64(&l.settings.segment_jitter_ms, setting(config, "segment.jitter.ms"))
    poke_i64(&l.settings.segment_index_bytes, setting(config, "segment.index.bytes"))
    poke_i64(&l.settings.index_interval_bytes, setting(config, "index.interval.bytes"))
    poke_i64(&l.settings.retention_ms, setting(config, "retention.ms"))
    poke_i64(&l.settings.retention_bytes, setting(config, "retention.bytes"))
    poke_i64(&l.settings.max_message_bytes, setting(config, "max.message.bytes"))
    poke_i64(&l.settings.message_timestamp_type, setting(config, "message.timestamp.type"))
    poke_i64(&l.settings.file_delete_delay_ms, setting(config, "file.delete.delay.ms"))
    poke_i64(&l.settings.producer_id_expiration_ms, setting(config, "producer.id.expiration.ms"))
    poke_i64(&l.settings.flush_messages, setting(config, "flush.messages"))
    poke_i64(&l.settings.cleanup_policy, setting(config, "cleanup.policy"))
    return 0
