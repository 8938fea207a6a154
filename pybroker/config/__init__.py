"""Settings of brokers and topics: one table each, used to parse, check, describe and document them."""

from .broker import BROKER, BrokerConfig, setting_of
from .settings import ConfigError, DescribedConfig, Setting, Source, Synonym, Type
from .topic import TOPIC, TopicConfig

__all__ = [
    "BROKER",
    "TOPIC",
    "BrokerConfig",
    "ConfigError",
    "DescribedConfig",
    "Setting",
    "Source",
    "Synonym",
    "TopicConfig",
    "Type",
    "setting_of",
]
