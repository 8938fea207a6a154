"""The broker's and the topics' settings: one table each, which reads, checks, answers DescribeConfigs and documents."""

from .broker import BROKER, BrokerConfig, setting_of
from .settings import ConfigError, Entry, Setting, Source, Synonym, Type
from .topic import TOPIC, TopicConfig

__all__ = [
    "BROKER",
    "TOPIC",
    "BrokerConfig",
    "ConfigError",
    "Entry",
    "Setting",
    "Source",
    "Synonym",
    "TopicConfig",
    "Type",
    "setting_of",
]
