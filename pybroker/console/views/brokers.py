"""The brokers, and one broker: its log dirs, and its settings that differ from their default."""

from starlette.requests import Request
from starlette.responses import Response

from pybroker import errors
from pybroker.client.admin import ConfigResource, ResourceType
from pybroker.client.net.metadata import Node
from pybroker.console.certificates import certificates, ends_soon
from pybroker.console.clients import ViewerClients
from pybroker.console.guard import viewer_of
from pybroker.console.pages import ROWS_MAX, BadRequest, NotFound, Pages
from pybroker.console.reports import BrokerReport, report_of
from pybroker.console.views.cluster_state import error_name, is_low, log_dirs, read_state
from pybroker.console.views.topics import differing
from pybroker.errors import KafkaError
from pybroker.operations import metrics_listener
from pybroker.operations.each_broker import Silent


class BrokerPages:
    """The pages about brokers."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def all(self, request: Request) -> Response:
        clients = viewer_of(request).clients
        state = read_state(clients)
        return self._pages.page(
            request, "brokers.html", state=state, is_low=is_low, error_name=error_name,
            certificates=certificates(clients, state.cluster.nodes), ends_soon=ends_soon,
        )  # fmt: skip

    def one(self, request: Request) -> Response:
        text = request.query_params.get("id", "")
        if not (text.isascii() and text.isdigit() and len(text) < 11):
            raise BadRequest(f"the id of a broker is a number, not {text[:50]!r}")
        clients = viewer_of(request).clients
        with clients.admin() as admin:
            node = next((each for each in admin.describe_cluster().nodes if each.id == int(text)), None)
            if node is None:
                raise NotFound(f"No broker {text} is registered.")
            try:
                configs, refused = differing(admin.configs(ConfigResource(ResourceType.BROKER, str(node.id)))), ""
            except KafkaError as error:
                if error.code != errors.CLUSTER_AUTHORIZATION_FAILED:
                    raise
                configs, refused = [], error.message
        disks, unread = log_dirs(clients, [node])
        report, no_report = report_at(clients, node)
        replicas = sorted((r for each in disks for r in each.replicas), key=lambda r: -r.size_bytes)
        return self._pages.page(
            request, "broker.html", node=node, configs=configs, refused=refused, disks=disks, unread=unread,
            report=report, no_report=no_report, replicas=replicas[:ROWS_MAX], more=len(replicas) - ROWS_MAX,
            is_low=is_low, error_name=error_name,
        )  # fmt: skip


def report_at(clients: ViewerClients, node: Node) -> tuple[BrokerReport | None, str]:
    """Return what a broker reports over HTTP; or None, and why not."""
    try:
        where = metrics_listener.address(node, clients.admin_at)
        return report_of(metrics_listener.text(where, "/metrics", metrics_listener.METRICS_BYTES_MAX)), ""
    except (Silent, ValueError) as reason:
        return None, str(reason)
    except KafkaError as error:
        return None, error.message
