"""Write every dashboard's JSON below `deploy/grafana/dashboards`."""

from __future__ import annotations

from deploy.grafana.files import FOLDER, written

if __name__ == "__main__":
    for name, text in written().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
