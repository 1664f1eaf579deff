"""The Grafana dashboards as code: `python -m deploy.grafana` writes their JSON, `python -m deploy.grafana.preview` draws it."""
