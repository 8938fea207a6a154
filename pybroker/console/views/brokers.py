"""The brokers, and one broker: its log dirs, and its settings that differ from their default."""

from starlette.requests import Request
from starlette.responses import Response

from pybroker import errors
from pybroker.client.admin import ConfigResource, ResourceType
from pybroker.console.guard import viewer_of
from pybroker.console.pages import ROWS_MAX, BadRequest, NotFound, Pages
from pybroker.console.views.cluster_state import error_name, is_low, log_dirs, read_state
from pybroker.console.views.topics import differing
from pybroker.errors import KafkaError


class BrokerPages:
    """The pages about brokers."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def all(self, request: Request) -> Response:
        state = read_state(viewer_of(request).clients)
        return self._pages.page(request, "brokers.html", state=state, is_low=is_low, error_name=error_name)

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
        replicas = sorted((r for each in disks for r in each.replicas), key=lambda r: -r.size_bytes)
        return self._pages.page(
            request, "broker.html", node=node, configs=configs, refused=refused, disks=disks, unread=unread,
            replicas=replicas[:ROWS_MAX], more=len(replicas) - ROWS_MAX, is_low=is_low, error_name=error_name,
        )  # fmt: skip
