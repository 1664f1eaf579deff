"""The dashboards as files: what is committed below `dashboards` is what this makes of the code, to the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana import agent, fleet, worker

FOLDER: Final = Path(__file__).with_name("dashboards")


def written() -> dict[str, str]:
    """Each file's name and text."""
    built = [as_json(module.board()) for module in (fleet, agent, worker)]
    return {f"{board['uid']}.json": json.dumps(board, indent=2, sort_keys=True) + "\n" for board in built}


def as_json(board: Dashboard) -> dict[str, Any]:
    """What Grafana reads. The SDK puts every link and annotation into a menu; without that word they stand above the panels."""
    told: dict[str, Any] = json.loads(json.dumps(board, cls=JSONEncoder))
    for one in (*told["links"], *told["annotations"]["list"]):
        del one["placement"]
    return told
