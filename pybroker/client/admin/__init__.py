"""The admin client, in families of operations: topics and their records, configs, groups, brokers, users."""

from pybroker.client import foreign
from pybroker.client.admin.acls import AclsAdmin
from pybroker.client.admin.brokers import BrokersAdmin, ClusterDescription
from pybroker.client.admin.configs import (
    Alteration,
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigsAdmin,
    ConfigSource,
    ResourceType,
)
from pybroker.client.admin.group_offsets import Committed, GroupOffsetsAdmin
from pybroker.client.admin.groups import GroupDescription, GroupListing, GroupsAdmin, Member
from pybroker.client.admin.quotas import QuotasAdmin
from pybroker.client.admin.reassignments import PartitionReassignment, ReassignmentsAdmin
from pybroker.client.admin.tokens import DelegationToken, TokensAdmin
from pybroker.client.admin.topics import BROKER_DEFAULT, HIGH_WATERMARK, CreatedTopic, TopicsAdmin
from pybroker.client.admin.transactions import (
    HangingTransaction,
    PartitionProducer,
    TransactionDescription,
    TransactionListing,
    TransactionsAdmin,
)
from pybroker.client.admin.users import ScramUser, UsersAdmin
from pybroker.client.foreign import OfOtherClients
from pybroker.client.net.list_offsets import EARLIEST, LATEST
from pybroker.client.security.settings import SECURITY
from pybroker.client.settings import SecuritySettings, signed
from pybroker.decisions.planning.measuring import LogDir, Replica
from pybroker.security.acls import AclBinding, AclFilter
from pybroker.security.quotas import ClientQuotaFilterComponent

__all__ = [
    "BROKER_DEFAULT",
    "EARLIEST",
    "HIGH_WATERMARK",
    "LATEST",
    "AclBinding",
    "AclFilter",
    "Admin",
    "Alteration",
    "ClientQuotaFilterComponent",
    "ClusterDescription",
    "Committed",
    "ConfigEntry",
    "ConfigOperation",
    "ConfigResource",
    "ConfigSource",
    "CreatedTopic",
    "DelegationToken",
    "GroupDescription",
    "GroupListing",
    "HangingTransaction",
    "LogDir",
    "Member",
    "PartitionProducer",
    "PartitionReassignment",
    "Replica",
    "ResourceType",
    "ScramUser",
    "TransactionDescription",
    "TransactionListing",
]


@signed(SECURITY, SecuritySettings)
class Admin(
    OfOtherClients, TopicsAdmin, ReassignmentsAdmin, ConfigsAdmin, GroupOffsetsAdmin, GroupsAdmin, BrokersAdmin,
    UsersAdmin, TokensAdmin, AclsAdmin, QuotasAdmin, TransactionsAdmin,
):
    """Operations on one cluster, by any of its addresses; each raises KafkaError with a sentence for a person.

    `Admin("localhost:9092")`, or with a list of addresses, connects with its first call. A change returns
    when the brokers' metadata shows it, or a few seconds after their answer (Kafka's KRaft brokers answer earlier). Use
    it on one thread at a time.
    """

    _OTHERS = foreign.ADMIN
